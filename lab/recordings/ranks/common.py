"""All ranks together: one origin, matched collectives, clocks and windows; and what their hosts do in a step:
when they wait for their GPUs, and how much later one launches than the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lab.recordings.pairing import Clock, Pairs, pair_collectives
from lab.recordings.ranks.work import RankWork
from lab.stats.intervals import holding, overlap
from lab.stats.robust import column_medians

HOST_STEPS, GPU_STEPS, WHOLE = "host", "gpu", "whole recording"
# GPU work of a step that ends so much of it later spills into the next step.
SPILLS = 0.05
# A first step with so much work from before it is not a whole step.
CUT_SHARE = 0.05
UNKNOWN = -1
# A blocking call that takes so long waits for the GPU, if an operation ended so shortly before it returned.
WAITS_NS, RETURNS_NS = 100_000, 200_000


@dataclass(frozen=True)
class Call:
    """The communication of one rank: row of its operations, number of the call, and when all were in.

    all_in is on the rank's own clock; last_index: which rank came last, UNKNOWN where this cannot be told (a
    kind that does not block, or no partner). late_ns: how much later than the median rank this one left (NaN
    where ranks need not leave together). loose: sends and receives without their partner, so that neither
    their waiting nor their transfer is known. legs: by row, the calls that it takes part in, and of these
    the ones that it waits for.
    """

    row: np.ndarray
    call: np.ndarray
    all_in: np.ndarray
    last_index: np.ndarray
    late_ns: np.ndarray
    loose: np.ndarray
    legs: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class Together:
    """The ranks of one recording. windows[i] are rows (number, begin, end) on rank i's own clock.

    cut_step: the first step, where it holds work that was launched before the recording began.
    """

    works: tuple[RankWork, ...]
    pairs: Pairs
    calls: tuple[Call, ...]
    windows: tuple[np.ndarray, ...]
    window_kind: str
    origin_ns: int
    cut_step: int | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(work.rank for work in self.works)

    @property
    def steps(self) -> list[int]:
        return sorted({int(number) for rows in self.windows for number in rows[:, 0]})

    def clock(self, index: int) -> Clock:
        return self.pairs.clocks[index]

    def common(self, index: int, ts_ns: np.ndarray) -> np.ndarray:
        """Times of rank `index` (n,) on the common clock."""
        common: np.ndarray = ts_ns - self.clock(index).error_ns(ts_ns)
        return common

    def own(self, index: int, common_ns: np.ndarray) -> np.ndarray:
        """Times of the common clock (n,) on the clock of rank `index`."""
        clock = self.clock(index)
        # The error depends on the rank's own time; one more step is exact enough for drifts of some ppm.
        near = common_ns + clock.error_ns(common_ns)
        own_ns: np.ndarray = common_ns + clock.error_ns(near)
        return own_ns

    def window(self, index: int, step: int) -> tuple[int, int] | None:
        rows = self.windows[index]
        indices = np.flatnonzero(rows[:, 0] == step)
        return (int(rows[indices[0], 1]), int(rows[indices[0], 2])) if len(indices) else None


def together(works: Mapping[int, RankWork]) -> Together:
    """The ranks' work, paired. Raises nothing for odd input: what does not fit is in `pairs.problems`."""
    ordered = tuple(works[rank] for rank in sorted(works))
    # Clocks of ranks on one host are one clock; where any host is unknown, nothing may be assumed of them.
    hosts = {work.rank: work.host for work in ordered}
    host_of_rank = hosts if all(hosts.values()) else None
    pairs = pair_collectives({work.rank: work.collectives for work in ordered}, hosts=host_of_rank)
    windows, kind = _windows(ordered)
    origin = min((int(work.start.min()) for work in ordered if len(work)), default=0)
    cut = next((number for work in ordered for number in _cut_step(work)), None)
    return Together(ordered, pairs, _calls(ordered, pairs), windows, kind, origin, cut)


def _calls(works: tuple[RankWork, ...], pairs: Pairs) -> tuple[Call, ...]:
    rows, collectives = pairs.instances, pairs.collectives
    ranks = np.array([work.rank for work in works])
    index, number = np.searchsorted(ranks, rows.rank), rows.collective_id
    paired = np.flatnonzero(number >= 0)
    end = rows.ts_ns + rows.dur_ns
    origin = int(end.min()) if len(end) else 0
    ends = np.full((len(works), len(collectives)), np.nan)
    ends[index[paired], number[paired]] = end[paired] - origin
    # Against the median rank, not the first: one early end would make all the others late.
    late = end - origin - np.append(column_medians(ends), np.nan)[number]
    alone = np.append(collectives.num_ranks < 2, True)[number]
    is_told = (rows.awaited >= 0) & ~alone
    waits_ns = np.where(is_told, rows.all_in_ns - rows.ts_ns, 0)
    legs = _legs(pairs)
    calls = []
    for i, work in enumerate(works):
        of_rank = np.flatnonzero(index == i)
        row, is_paired = rows.row[of_rank], is_told[of_rank]
        columns = (values[is_paired].tolist() for values in (row, of_rank, number[of_rank]))
        calls.append(
            Call(
                row=row,
                call=number[of_rank],
                # A rank waits no longer than it is in the call. The correction of a clock is an integer per
                # row, so a rank's own time of the last arrival is exact.
                all_in=np.minimum(work.start[row] + waits_ns[of_rank], work.end[row]),
                last_index=np.where(is_paired, np.searchsorted(ranks, rows.awaited[of_rank]), UNKNOWN),
                late_ns=np.where(is_paired & ~rows.p2p[of_rank], late[of_rank], np.nan),
                loose=rows.p2p[of_rank] & alone[of_rank],
                legs={
                    work_row: legs.get(instance, ((call,), (call,)))
                    for work_row, instance, call in zip(*columns, strict=True)
                },
            )
        )
    return tuple(calls)


def _legs(pairs: Pairs) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Find for each row of `instances` the calls of its sends and receives, and those that it waits for."""
    legs: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    columns = (getattr(pairs.legs, name).tolist() for name in ("instance", "collective_id", "waits"))
    for instance, call, waits in zip(*columns, strict=True):
        entered, awaited = legs.get(instance, ((), ()))
        legs[instance] = (*entered, call), (*awaited, call) if waits else awaited
    return legs


def _windows(works: tuple[RankWork, ...]) -> tuple[tuple[np.ndarray, ...], str]:
    """Each rank's windows: the host's steps; the GPU's where work spills over; else the whole recording."""
    # One rank without marks has no step to compare, so all are compared over the whole recording.
    if any(not len(work.steps) for work in works):
        return tuple(_whole(work) for work in works), WHOLE
    if any(_spills(work) for work in works):
        return tuple(_gpu_windows(work) for work in works), GPU_STEPS
    return tuple(work.steps for work in works), HOST_STEPS


def _whole(work: RankWork) -> np.ndarray:
    if not len(work):
        return np.empty((0, 3), dtype=np.int64)
    begin = min(
        int(work.start.min()), int(work.call_begin[work.call_begin >= 0].min(initial=work.start.min()))
    )
    return np.array([[-1, begin, int(work.end.max())]], dtype=np.int64)


def _step_of_launch(work: RankWork) -> np.ndarray:
    """Row of `steps` in which each operation was launched (n,), UNKNOWN outside."""
    return holding(work.steps[:, 1], work.steps[:, 2], work.launched)


def _last_ends(work: RankWork) -> np.ndarray:
    """The end of the last operation that each step launched (steps,), its begin where there is none."""
    ends: np.ndarray = work.steps[:, 1].copy()
    step = _step_of_launch(work)
    np.maximum.at(ends, step[step >= 0], work.end[step >= 0])
    return ends


def _cut_step(work: RankWork) -> Iterator[int]:
    """The number of the first of several steps, where work from before it takes some of its time."""
    if len(work.steps) < 2:
        return
    number, begin, end = work.steps[0].tolist()
    launched = (work.call_begin >= begin) & (work.call_begin < end)
    first_start = work.start[launched].min(initial=end)
    earlier = ~launched & (work.start >= begin) & (work.start < first_start)
    if (work.end - work.start)[earlier].sum() > CUT_SHARE * (end - begin):
        yield int(number)


def _spills(work: RankWork) -> bool:
    length = work.steps[:, 2] - work.steps[:, 1]
    return bool((_last_ends(work) - work.steps[:, 2] > SPILLS * length).any())


def _gpu_windows(work: RankWork) -> np.ndarray:
    ends = np.maximum.accumulate(_last_ends(work))
    begins = np.append(work.steps[0, 1], ends[:-1])
    return np.stack([work.steps[:, 0], begins, ends], axis=1)


def launched_in(together: Together, index: int, step: int) -> np.ndarray:
    """Rows of the operations that rank `index` launched in a step, in the order of their launch."""
    work = together.works[index]
    rows = np.arange(len(work))
    if together.window_kind != WHOLE:
        numbers = np.append(work.steps[:, 0], np.iinfo(np.int64).min)
        rows = np.flatnonzero(numbers[_step_of_launch(work)] == step)
    ordered: np.ndarray = rows[np.lexsort((work.start[rows], work.launched[rows]))]
    return ordered


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
