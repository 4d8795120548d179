"""What an account means, as nouns: findings, what-if lengths, and both of one recording."""

from __future__ import annotations

from dataclasses import dataclass

from lab.recordings.ranks.account import Account
from lab.recordings.ranks.path import Piece
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
