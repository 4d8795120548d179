"""What hosts do in a step: when they wait for their GPUs, and how much later one launches than the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lab.recordings.ranks.common import Together, launched_in
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
    begins = np.where(work.call_begin >= 0, work.call_begin, work.start)[rows]
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

    Only ranks with a launch for every operation, and with others that launch as many, have one.
    """
    launched_ns: dict[int, np.ndarray] = {}
    for index, work in enumerate(together.works):
        window, rows = together.window(index, step), launched_in(together, index, step)
        if window is None or not len(rows) or (work.call_end[rows] < 0).any():
            continue
        until = np.stack([np.full(len(rows), window[0]), work.call_begin[rows]], axis=1)
        launched_ns[work.rank] = work.call_end[rows] - window[0] - overlap(until, work.blocking_calls)
    lateness_ns = {}
    for rank, of_rank in launched_ns.items():
        peers_ns = [ns for peer, ns in launched_ns.items() if peer != rank and len(ns) == len(of_rank)]
        if peers_ns:
            lateness_ns[rank] = max(0.0, float((of_rank - np.median(peers_ns, axis=0)).max()))
    return lateness_ns
