"""What an account means: findings, what-if lengths, hosts that set the pace, and their sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.recordings.ranks.account import Account
from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.pipeline import Pipeline
from lab.recordings.ranks.replay import Step
from lab.stats import robust

RECORDED, READY, READY_FREE = "as recorded", "all hosts ready", "all hosts ready, no contention"
FREE, EVEN = "no contention", "work even over stages"


@dataclass(frozen=True)
class Finding:
    """One cause on one rank. cost_ms: its size per step, over the others; saves_ms: what its repair gives.

    binding: the steps would be shorter without it; otherwise it is hidden behind another. saves_ms is None
    where no replay could tell.
    """

    rank: int
    cause: str
    binding: bool
    cost_ms: float
    steps: tuple[int, ...]
    saves_ms: float | None
    text: str


@dataclass(frozen=True)
class WhatIf:
    """One step replayed with something changed; change names it, length_ms is the whole step over ranks."""

    step: int
    change: str
    ranks: tuple[int, ...]
    length_ms: float
    recorded_ms: float


@dataclass(frozen=True)
class Piece:
    """A piece of the path: whose time, of which kind, from when to when (ns since the step's begin).

    key is the operation's key on its rank, -1 for the host. Pieces tile the step from begin to end.
    """

    rank: int
    kind: str
    begin_ns: float
    end_ns: float
    key: int = -1

    @property
    def ns(self) -> float:
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Explained:
    """One account with its replays. withheld says why a step has no what-if; steps are those that have.

    notes say where a replay rests on more than was recorded. pipelines: stages, schedules and bubbles.
    """

    account: Account
    findings: tuple[Finding, ...]
    what_if: tuple[WhatIf, ...]
    path: dict[int, list[Piece]]
    host_ms: dict[tuple[int, int], float]
    withheld: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()

    def length_ms(self, change: str) -> float | None:
        """The median length over steps with this change, None where it is not known."""
        lengths_ms = [one.length_ms for one in self.what_if if one.change == change]
        return robust.median(lengths_ms) if lengths_ms else None


def bound_ranks(explained: Explained) -> dict[int, float]:
    """Rank -> ms that its host needs per step, of the ranks whose hosts need longer than all GPUs."""
    ready = explained.length_ms(READY)
    if ready is None:
        return {}
    ranks = sorted({rank for _, rank in explained.host_ms})
    spans = {
        rank: robust.median([ms for (_, r), ms in explained.host_ms.items() if r == rank]) for rank in ranks
    }
    return {rank: span for rank, span in spans.items() if span > 1.05 * ready}


# What to try where every host is too slow, and where some are and the others keep up.
LIGHTER = "Try a lighter profile first (no shapes, no CPU ops), then larger shapes, compile or CUDA graphs."
DIFFERS = "The other hosts keep up, so look first for what differs there."


def host_bound(explained: Explained) -> str | None:
    """A sentence if the hosts, not the GPUs, set the pace: how many ranks, and by how much."""
    bound, ready = bound_ranks(explained), explained.length_ms(READY)
    if not bound:
        return None
    is_every = len(bound) == len({rank for _, rank in explained.host_ms})
    if is_every:
        subject = f"All {len(bound)} ranks are bound by their hosts"
    else:
        subject = f"{ranks_in_words([*bound], 'is', 'are').capitalize()} bound by the host"
    low, high = f"{min(bound.values()):.0f}", f"{max(bound.values()):.0f}"
    span = low if low == high else f"{low}-{high}"
    per_step = "" if is_whole([step for step, _ in explained.host_ms]) else " per step"
    work = f"{span} ms of launching{per_step} for {ready:.1f} ms of GPU work"
    return f"{subject}: {work}. {LIGHTER if is_every else DIFFERS}"


def is_whole(steps: Sequence[int]) -> bool:
    """Whether these stand for the one window of a recording without marks."""
    return UNKNOWN in steps


def steps_text(steps: Sequence[int]) -> str:
    """`step 5`, `steps 5 and 6`; `the recording` where it is one window."""
    if is_whole(steps):
        return "the recording"
    return f"step{'' if len(steps) == 1 else 's'} {joined(steps)}"


def ranks_in_words(ranks: Sequence[int], singular: str, several: str) -> str:
    """`rank 3 is`, `ranks 3 and 5 are`."""
    return f"rank {joined(ranks)} {singular}" if len(ranks) == 1 else f"ranks {joined(ranks)} {several}"


def joined(numbers: Sequence[int]) -> str:
    texts = [str(number) for number in numbers]
    if len(texts) > 6:
        return f"{', '.join(texts[:4])} and {len(texts) - 4} more"
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]])) if texts else ""
