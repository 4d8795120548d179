"""What hosts do in a step: when they wait for their GPUs, and how much later one launches than the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lab.recordings.ranks.common import GPU_STEPS, Together, launched_in
from lab.recordings.ranks.work import RankWork
from lab.stats.intervals import overlap

# A blocking call that takes so long waits for the GPU, if an operation ended so shortly before it returned.
WAITS_NS, RETURNS_NS = 100_000, 200_000


class HostWait(NamedTuple):
    """A host that waits for an operation (`on`, a place) before it launches the one at `place`.

    begin and end of the call in ns, on the clock of what it was made from; lag_ns: from the operation's end
    to the call's.
    """

    place: int
    on: int
    begin: float
    end: float
    lag_ns: float


def host_waits(work: RankWork, rows: np.ndarray) -> list[HostWait]:
    """The waits of a rank's host between the launches of these operations, in order; on its own clock."""
    calls = work.blocking_calls[np.argsort(work.blocking_calls[:, 0], kind="stable")]
    calls = calls[calls[:, 1] - calls[:, 0] >= WAITS_NS]
    # In the order of `rows`, in which an operation without a recorded launch stands at its start.
    begins = work.launched[rows]
    ends = work.end[rows]
    waits: list[HostWait] = []
    for begin, end in calls.tolist():
        place = int(np.searchsorted(begins, end))
        if not 0 < place < len(rows) or begins[place - 1] > begin or (waits and begin < waits[-1].end):
            continue  # before or after the step's launches, or another thread launched meanwhile
        ended_ns = np.where(ends[:place] <= end, ends[:place], -1)
        on = int(ended_ns.argmax())
        if ended_ns[on] > begin and end - ended_ns[on] <= RETURNS_NS:
            waits.append(HostWait(place, on, begin, end, float(end - ended_ns[on])))
    return waits


def host_lateness_ns(together: Together, step: int) -> dict[int, float]:
    """Rank -> ns by which its host falls behind the median of the others' in a step, its waits left out.

    Behind those that launch as many operations; where none does, behind the others' pace. In steps that
    reach into each other hosts are compared since the recording's first step. Only ranks with a launch for
    every operation have one.
    """
    launched_ns: dict[int, np.ndarray] = {}
    for index, work in enumerate(together.works):
        window, rows = together.window(index, step), launched_in(together, index, step)
        if window is None or not len(rows) or (work.call_end[rows] < 0).any():
            continue
        spills = together.window_kind == GPU_STEPS
        begin = int(work.steps[0, 1]) if spills else window[0]
        # A host that waits for its GPU is not late, it has nothing to do: such waits do not count.
        until = np.stack([np.full(len(rows), begin), work.call_begin[rows]], axis=1)
        launched_ns[work.rank] = work.call_end[rows] - begin - overlap(until, work.blocking_calls)
        if spills:
            launched_ns[work.rank] += int(together.common(index, np.array([begin]))[0]) - together.origin_ns
    return {
        rank: max(0.0, float((of_rank - usual_ns).max()))
        for rank, of_rank in launched_ns.items()
        if (usual_ns := usual_pace(of_rank, [ns for peer, ns in launched_ns.items() if peer != rank]))
        is not None
    }


def usual_pace(own_ns: np.ndarray, peers_ns: Sequence[np.ndarray]) -> np.ndarray | None:
    """When a host would have launched each operation (n,) at the pace of the others; None without any.

    Of others that launch a different number each is taken to need as much for one launch as it does there.
    """
    alike = [ns for ns in peers_ns if len(ns) == len(own_ns)]
    if alike:
        usual: np.ndarray = np.median(alike, axis=0)
        return usual
    share = np.arange(1, len(own_ns) + 1) / len(own_ns)
    scaled = []
    for ns in peers_ns:
        of_peer = np.interp(share, np.arange(1, len(ns) + 1) / len(ns), ns - ns[0])
        scaled.append(ns[0] + of_peer * max(1.0, len(own_ns) / len(ns)))
    return np.median(scaled, axis=0) if scaled else None
