"""Why the last rank was late, and what a late host was doing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.recordings.ranks.common import UNKNOWN, Together
from lab.recordings.ranks.labels import LABELS, LAUNCH_LATE, Segments
from lab.stats.columns import distinct
from lab.stats.intervals import overlap, subtract, union

# What the awaited rank did while the others waited -> the cause.
CLOCK, BEFORE, UNEXPLAINED = "clock", "entered_late", "unexplained"
BECAUSE = {
    "compute": "work",
    "transfer": "link",
    "wait": "chain",
    "copy": "copy",
    "launch_late": "launch",
    "launch_gap": "launch",
    "tail": "launch",
}
BLOCKED, RUNTIME, OP, NO_OP = "blocking call", "runtime call", "op", "no op"


@dataclass(frozen=True)
class Wait:
    """How long a rank waits for another in one step, and what that one did meanwhile."""

    step: int
    rank: int
    awaited: int
    because: str
    ns: int


@dataclass(frozen=True)
class HostLate:
    """Late launches of one rank and step: by what the host did, and before which ops, largest first."""

    step: int
    rank: int
    by_activity: dict[str, int]
    by_op: tuple[tuple[str, int], ...]


def waits_of(together: Together, segments: Sequence[Segments]) -> list[Wait]:
    """Every wait by (step, rank, awaited rank, cause), sorted in this order; exact in ns."""
    waits: list[Wait] = []
    for index, of_rank in enumerate(segments):
        rows = np.flatnonzero(of_rank.awaited != UNKNOWN)
        numbers = together.windows[index][:, 0]
        for awaited in distinct(of_rank.awaited[rows]).tolist():
            rows_of_awaited = rows[of_rank.awaited[rows] == awaited]
            spans = [
                together.own(awaited, together.common(index, edge[rows_of_awaited]))
                for edge in (of_rank.begin, of_rank.end)
            ]
            parts = _label_times(segments[awaited], *spans)
            for window in distinct(of_rank.window[rows_of_awaited]).tolist():
                inside = of_rank.window[rows_of_awaited] == window
                total_ns = int(of_rank.length[rows_of_awaited[inside]].sum())
                causes = _causes(parts[inside], total_ns, plausible=together.clock(awaited).plausible)
                step, ranks = int(numbers[window]), together.ranks
                waits += [Wait(step, ranks[index], ranks[awaited], why, ns) for why, ns in causes.items()]
    return sorted(waits, key=lambda of_rank: (of_rank.step, of_rank.rank, of_rank.awaited, -of_rank.ns))


def late_hosts(together: Together, segments: Sequence[Segments]) -> list[HostLate]:
    """What each late host did, from the recorded calls and ops of the threads that launch."""
    hosts = []
    for index, of_rank in enumerate(segments):
        work = together.works[index]
        rows = np.flatnonzero(of_rank.label == LAUNCH_LATE)
        if not len(rows):
            continue
        spans = np.stack([of_rank.begin[rows], of_rank.end[rows]], axis=1)
        blocked = union(work.blocking_calls)
        calls = subtract(work.calls, blocked)
        ops = subtract(subtract(work.host_ops, blocked), calls)
        covered = {
            name: overlap(spans, cover) for name, cover in ((BLOCKED, blocked), (RUNTIME, calls), (OP, ops))
        }
        covered[NO_OP] = of_rank.length[rows] - sum(covered.values())
        names = [work.keys[key][0] for key in work.key[of_rank.next_row[rows]].tolist()]
        for window in distinct(of_rank.window[rows]).tolist():
            inside = np.flatnonzero(of_rank.window[rows] == window)
            by_op: Counter[str] = Counter()
            for index_of_span in inside.tolist():
                by_op[names[index_of_span]] += int(of_rank.length[rows[index_of_span]])
            hosts.append(
                HostLate(
                    step=int(together.windows[index][window, 0]),
                    rank=work.rank,
                    by_activity={name: int(ns[inside].sum()) for name, ns in covered.items()},
                    by_op=tuple(by_op.most_common(3)),
                )
            )
    return hosts


def _label_times(segments: Segments, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """What one rank does in each span of time (n,): ns of each label (n, labels)."""
    times = np.zeros((len(begin), len(LABELS)), dtype=np.int64)
    spans = np.stack([begin, end], axis=1)
    for label in distinct(segments.label).tolist():
        chosen = segments.label == label
        cover = np.stack([segments.begin[chosen], segments.end[chosen]], axis=1)
        times[:, label] = overlap(spans, cover)
    return times


def _causes(parts: np.ndarray, whole_ns: int, *, plausible: bool) -> dict[str, int]:
    if not plausible:
        return {CLOCK: whole_ns}
    sums: dict[str, int] = {}
    for label, ns in enumerate(parts.sum(axis=0).tolist()):
        if ns:
            cause = BECAUSE.get(LABELS[label], UNEXPLAINED)
            sums[cause] = sums.get(cause, 0) + ns
    outside_ns = whole_ns - sum(sums.values())
    if outside_ns:  # outside the awaited rank's windows: it had not entered its step
        sums[BEFORE] = sums.get(BEFORE, 0) + outside_ns
    return sums
