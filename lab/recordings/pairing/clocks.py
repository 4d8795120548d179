"""How far the clock of each rank is off, from the ends of collectives that end together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.recordings.pairing.rows import NO_MATCH, CallRows, Match

# Ends on one host differ by some tens of us; a clock is corrected only for clearly more than that.
MIN_OFFSET_NS = 200_000
OFFSET_OVER_SPREAD = 5


def clock_offsets(rows: CallRows, matches: Sequence[Match]) -> tuple[dict[int, int], np.ndarray]:
    """Clock deviation of each rank in ns, and the part of it that is corrected (ranks,).

    A rank's deviation is the median, over blocking collectives, of its end minus the median end of all. It is
    corrected only if it is large and steady: ends that differ for other reasons scatter.
    """
    correct = np.zeros(len(rows.ranks), dtype=np.int64)
    deviation = _end_deviations(rows, matches)
    estimated = {}
    for index, rank in enumerate(rows.ranks):
        mine = deviation[rows.rank_index == index]
        mine = mine[~np.isnan(mine)]
        if len(mine) == 0:
            continue
        middle = float(np.median(mine))
        spread = float(np.median(np.abs(mine - middle)))
        estimated[rank] = round(middle)
        if abs(middle) > max(MIN_OFFSET_NS, OFFSET_OVER_SPREAD * spread) and len(mine) > 2:
            correct[index] = round(middle)
    return estimated, correct


def _end_deviations(rows: CallRows, matches: Sequence[Match]) -> np.ndarray:
    """Each row's end minus the median end of its call (n,), NaN for unmatched and non-blocking calls."""
    deviation = np.full(len(rows.rank), np.nan)
    base = rows.start.min() if len(rows.start) else 0
    end = (rows.start - base + rows.dur).astype(float)
    for group, match in enumerate(matches):
        call, members = match.call, rows.of_group(group)
        if match is NO_MATCH:
            continue
        wanted = (call >= 0) & rows.blocking[members]
        index, which = members[wanted], call[wanted]
        order = np.lexsort((end[index], which))
        index, which = index[order], which[order]
        first = np.searchsorted(which, which)
        size = np.searchsorted(which, which, side="right") - first
        middle = (end[index[first + (size - 1) // 2]] + end[index[first + size // 2]]) / 2
        deviation[index] = np.where(size > 1, end[index] - middle, np.nan)
    return deviation
