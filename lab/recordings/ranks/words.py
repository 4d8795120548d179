"""Words for ranks and for hosts that set the pace."""

from __future__ import annotations

from collections.abc import Sequence

from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.explained import READY, Explained, bound_ranks

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
