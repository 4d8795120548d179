"""How far the clock of each rank is off: no rank leaves a collective before all have entered it.

Against a reference rank, every blocking call bounds a rank's clock on both sides; the median difference of
the ends is the estimate (Duda 1987; Moon, Skelly and Towsley, INFOCOM 1999, for the bounds). A rank is
corrected only where the recorded times are impossible, or where the ranks are on different hosts: a rank that
merely leaves late (a slow link) keeps its times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.recordings.pairing.rows import CallRows
from lab.stats import robust
from lab.stats.columns import distinct

# Clocks of GPUs on one host, and the ends of one collective, differ by some tens of us.
SAME_HOST_NS = 50_000
# Below this length drift hides in the noise of the ends (200 ppm over 70 ms are 14 us).
DRIFT_WINDOW_NS = 5_000_000_000
FEWEST_CALLS = 3
_MOST_SLOPES = 300  # calls whose pairs give the slope: 45,000 pairs


@dataclass(frozen=True)
class Clock:
    """One rank's clock against the reference rank's.

    offset_ns is the median difference of the ends of collectives, at `at_ns`; low_ns and high_ns are the
    bounds that the calls leave (NaN without a common call), drift_ppm is 0 where none is shown. corrected:
    offset and drift were taken out of the rank's times. plausible is False where the bounds contradict each
    other, so that either the pairing or the clock is wrong.
    """

    rank: int
    offset_ns: float
    low_ns: float
    high_ns: float
    drift_ppm: float
    at_ns: int
    num_calls: int
    corrected: bool
    plausible: bool

    def error_ns(self, ts_ns: np.ndarray) -> np.ndarray:
        """Error of this rank's own times (n,): subtract it to put them on the common clock."""
        if not self.corrected:
            return np.zeros(len(ts_ns), dtype=np.int64)
        drifted = (np.asarray(ts_ns, dtype=np.int64) - self.at_ns) * (self.drift_ppm * 1e-6)
        error: np.ndarray = np.rint(self.offset_ns + drifted).astype(np.int64)
        return error


def clocks_of(
    rows: CallRows, call: np.ndarray, *, hosts: Mapping[int, str] | None = None
) -> tuple[Clock, ...]:
    """The clock of every rank against the median rank's; call (n,): the number of each row's call, or -1.

    hosts: where the ranks run, if that is known.
    """
    grids = [*filter(None, (_grid(rows, group, call) for group in range(len(rows.groups))))]
    several = hosts is not None and len({hosts.get(rank, "") for rank in rows.ranks}) > 1
    deviation = _median_deviation(len(rows.ranks), grids)
    # A middle rank as reference: against a late rank 0 all others would seem early.
    reference = _middle_rank(deviation)
    estimates = {reference: _Estimate(np.zeros(1), np.zeros(1, dtype=np.int64), 0.0, 0.0, 0.0)}
    todo = [reference]
    while todo:  # a rank that shares no group with the reference is reached over one that does
        base = todo.pop(0)
        for grid in grids:
            for index, estimate in _against(grid, base, estimates[base]):
                if index not in estimates:
                    estimates[index] = estimate
                    todo.append(index)
    offsets = np.array([estimates[i].offset_ns if i in estimates else 0.0 for i in range(len(rows.ranks))])
    apart = _never_met(grids, offsets)
    # A rank whose times are impossible only against a third one is found by the calls that never met.
    clocks = [
        _clock(rank, estimates.get(i), i == reference, several or i in apart)
        for i, rank in enumerate(rows.ranks)
    ]
    return _of_hosts(clocks, hosts) if several and hosts else tuple(clocks)


@dataclass(frozen=True)
class _Grid:
    """Blocking calls of one group: start and end (calls, ranks) in ns, NaN where a rank has none."""

    ranks: np.ndarray
    start: np.ndarray
    end: np.ndarray
    origin: int


@dataclass(frozen=True)
class _Estimate:
    """A rank's clock by the ends of its calls: their differences to the base rank's, which is itself off."""

    differences: np.ndarray
    when: np.ndarray
    base_ns: float
    low_ns: float
    high_ns: float

    @property
    def offset_ns(self) -> float:
        return robust.median(self.differences) + self.base_ns


def _grid(rows: CallRows, group: int, call: np.ndarray) -> _Grid | None:
    members = rows.of_group(group)
    index = members[(call[members] >= 0) & rows.blocking[members] & (rows.dur[members] > 0)]
    ranks = distinct(rows.rank_index[index])
    if len(ranks) < 2:
        return None
    calls = distinct(call[index])
    shape = (len(calls), len(ranks))
    start, end = np.full(shape, np.nan), np.full(shape, np.nan)
    cells = np.searchsorted(calls, call[index]), np.searchsorted(ranks, rows.rank_index[index])
    # float64 keeps 256 ns of a unix time in ns; counted from the first start it is exact.
    origin = int(rows.start[index].min())
    start[cells] = rows.start[index] - origin
    end[cells] = rows.start[index] - origin + rows.dur[index]
    return _Grid(ranks, start, end, origin)


def _median_deviation(num_ranks: int, grids: Sequence[_Grid]) -> np.ndarray:
    """Each rank's median end relative to the median end of the call (ranks,), NaN for none."""
    deviation = np.full(num_ranks, np.nan)
    for grid in grids:
        of_grid = robust.column_medians(grid.end - _row_medians(grid.end)[:, None])
        deviation[grid.ranks] = np.where(np.isnan(deviation[grid.ranks]), of_grid, deviation[grid.ranks])
    return deviation


def _row_medians(values: np.ndarray) -> np.ndarray:
    """The middle of each row (calls,), the lower one of two; NaN sorts last and does not count."""
    ordered = np.sort(values, axis=1)
    count = (~np.isnan(values)).sum(axis=1)
    middle: np.ndarray = ordered[np.arange(len(values)), np.maximum(count - 1, 0) // 2]
    return middle


def _middle_rank(deviation: np.ndarray) -> int:
    measured = np.flatnonzero(~np.isnan(deviation))
    if not len(measured):
        return 0
    order = measured[np.lexsort((measured, deviation[measured]))]
    return int(order[(len(order) - 1) // 2])


def _against(grid: _Grid, base: int, of_base: _Estimate) -> list[tuple[int, _Estimate]]:
    """Estimates of every other rank of a group that the rank `base` is in."""
    base_column = np.flatnonzero(grid.ranks == base)
    if not len(base_column):
        return []
    estimates = []
    for column, index in enumerate(grid.ranks.tolist()):
        shared = ~np.isnan(grid.end[:, column] - grid.end[:, base_column[0]])
        if index == base or not shared.any():
            continue
        start, end = grid.start[shared, column], grid.end[shared, column]
        start0, end0 = grid.start[shared, base_column[0]], grid.end[shared, base_column[0]]
        # It had entered before the other left, and left after the other had entered: both bound its clock.
        low, high = (
            float((start - end0).max()) + of_base.low_ns,
            float((end - start0).min()) + of_base.high_ns,
        )
        when = end.astype(np.int64) + grid.origin
        estimates.append((index, _Estimate(end - end0, when, of_base.offset_ns, low, high)))
    return estimates


def _never_met(grids: Sequence[_Grid], offsets: np.ndarray) -> set[int]:
    """Ranks that left a call before another had entered it; of such two, the one that is further off."""
    suspects = set()
    for grid in grids:
        latest = np.where(np.isnan(grid.start), -np.inf, grid.start).max(axis=1)
        soonest = np.where(np.isnan(grid.end), np.inf, grid.end).min(axis=1)
        calls = np.flatnonzero(latest - soonest > SAME_HOST_NS)
        if not len(calls):
            continue
        last_rank = grid.ranks[np.nanargmax(grid.start[calls], axis=1)]
        first_rank = grid.ranks[np.nanargmin(grid.end[calls], axis=1)]
        worst = np.where(np.abs(offsets[last_rank]) >= np.abs(offsets[first_rank]), last_rank, first_rank)
        suspects |= {index for index in distinct(worst).tolist() if abs(offsets[index]) > SAME_HOST_NS}
    return suspects


def _clock(rank: int, estimate: _Estimate | None, is_reference: bool, suspect: bool) -> Clock:
    if estimate is None or is_reference:
        bound_ns = 0.0 if is_reference else math.nan
        return Clock(rank, 0.0, bound_ns, bound_ns, 0.0, 0, 0, corrected=False, plausible=True)
    offset, slope, middle = clock_line(estimate.when, estimate.differences)
    offset += estimate.base_ns
    low, high = estimate.low_ns, estimate.high_ns
    # The bounds are of one offset: under drift they may cross and prove nothing.
    contradicts = low > high + SAME_HOST_NS and not slope
    impossible = low > SAME_HOST_NS or high < -SAME_HOST_NS
    enough = len(estimate.differences) >= FEWEST_CALLS
    # The bounds are hard, for no rank leaves before all have entered; the median is an estimate.
    if low <= high and not slope:
        offset = min(max(offset, low), high)
    return Clock(
        rank,
        offset,
        low,
        high,
        1e6 * slope,
        middle,
        len(estimate.differences),
        corrected=bool(enough and not contradicts and (impossible or slope or suspect)),
        plausible=not contradicts,
    )


def clock_line(when: np.ndarray, differences: np.ndarray) -> tuple[float, float, int]:
    """Offset in the middle, slope (ns per ns), and the middle, of a clock by its `differences` (n,)."""
    slope, middle = _slope(when, differences), int(robust.median(when))
    return robust.median(differences - slope * (when - middle)), slope, middle


def _slope(when: np.ndarray, differences: np.ndarray) -> float:
    """Drift (ns per ns) by Theil and Sen, 0 unless it stands clear of the noise over a long window."""
    length = int(when.max() - when.min()) if len(when) else 0
    if length < DRIFT_WINDOW_NS or len(when) < FEWEST_CALLS:
        return 0.0
    chosen = distinct(np.linspace(0, len(when) - 1, _MOST_SLOPES).astype(np.int64))
    t, x = when[chosen], differences[chosen]
    i, j = np.triu_indices(len(t), 1)
    apart = t[j] != t[i]
    # Theil and Sen's median of slopes: one late leave bends a least-squares line.
    slope = robust.median((x[j] - x[i])[apart] / (t[j] - t[i])[apart])
    residual = x - slope * (t - t[0])
    noise = 1.4826 * robust.median(np.abs(residual - robust.median(residual)))
    return slope if abs(slope) * length > max(2 * SAME_HOST_NS, 3 * noise) else 0.0


def _of_hosts(clocks: Sequence[Clock], hosts: Mapping[int, str]) -> tuple[Clock, ...]:
    """Ranks of one host share its clock: the median of their offsets; the reference's host is not moved."""
    moved = []
    for clock in clocks:
        mates = [mate for mate in clocks if hosts.get(mate.rank, "") == hosts.get(clock.rank, "")]
        offsets_ns = [mate.offset_ns for mate in mates if mate.num_calls]
        has_reference = any(mate.num_calls == 0 and mate.low_ns == 0 for mate in mates)
        if not has_reference and offsets_ns:
            moved.append(replace(clock, offset_ns=robust.median(offsets_ns)))
        else:
            outside = clock.low_ns > SAME_HOST_NS or clock.high_ns < -SAME_HOST_NS
            corrected = clock.corrected and (outside or clock.drift_ppm != 0)
            moved.append(replace(clock, corrected=corrected))
    return tuple(moved)
