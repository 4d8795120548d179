"""Begins and ends of slices, matched."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lab.core.words import plural


class Pairs(NamedTuple):
    """Rows (n,) of the events that begin and end each slice, and how many events have no partner."""

    begin: np.ndarray
    end: np.ndarray
    open_begins: int
    lone_ends: int

    def problems(self) -> list[str]:
        problems = []
        if self.open_begins:
            problems.append(f"{plural(self.open_begins, 'slice')} without an end left out")
        if self.lone_ends:
            problems.append(f"{plural(self.lone_ends, 'end')} of slices without a beginning left out")
        return problems


def paired(track: np.ndarray, ts_ns: np.ndarray, begins: np.ndarray) -> Pairs:
    """The slices of events (n,), by track and start.

    In a file whose tracks are written in order of time an end closes the slice opened last. A writer that
    groups all begins before all ends gives times that go back: its events are sorted, and the k-th end
    belongs to the k-th begin where slices follow one another, as on a stream, else to the slice opened last.
    """
    order = np.argsort(track, kind="stable")
    same = np.diff(track[order]) == 0
    if not (same & (np.diff(ts_ns[order]) < 0)).any():
        return _nested(order, track, begins)
    flat, remaining = _in_order(order, track, ts_ns, begins)
    # Ends first, so that slices that touch do not nest.
    by_time = np.lexsort((begins[remaining], ts_ns[remaining], track[remaining]))
    nested = _nested(remaining[by_time], track, begins)
    begin, end = (np.concatenate([flat[index], nested[index]]) for index in (0, 1))
    by_start = np.lexsort((ts_ns[begin], track[begin]))
    return Pairs(begin[by_start], end[by_start], nested.open_begins, nested.lone_ends)


def _in_order(
    rows: np.ndarray, track: np.ndarray, ts_ns: np.ndarray, begins: np.ndarray
) -> tuple[Pairs, np.ndarray]:
    """The k-th begin with the k-th end on tracks where that makes slices that do not overlap; other rows."""
    by_time = rows[np.lexsort((ts_ns[rows], track[rows]))]
    opens, ends = by_time[begins[by_time]], by_time[~begins[by_time]]
    tracks = np.union1d(track[opens], track[ends])
    num_opens, num_ends = (
        np.bincount(np.searchsorted(tracks, track[part]), minlength=len(tracks)) for part in (opens, ends)
    )
    uneven = tracks[num_opens != num_ends]
    opens, ends = (part[~np.isin(track[part], uneven)] for part in (opens, ends))
    overlaps = (track[opens[1:]] == track[opens[:-1]]) & (ts_ns[opens[1:]] < ts_ns[ends[:-1]])
    backward = ts_ns[ends] < ts_ns[opens]
    odd = np.unique(np.concatenate([uneven, track[opens[1:]][overlaps], track[opens][backward]]))
    flat = ~np.isin(track[opens], odd)
    return Pairs(opens[flat], ends[flat], 0, 0), rows[np.isin(track[rows], odd)]


def _nested(rows: np.ndarray, track: np.ndarray, begins: np.ndarray) -> Pairs:
    """Slices of events in the order `rows`: an end closes the slice of its track that was opened last."""
    if not len(rows):
        return Pairs(rows, rows, 0, 0)
    opens = begins[rows]
    depth = np.cumsum(np.where(opens, 1, -1))
    level = np.where(opens, depth, depth + 1)  # of the slice that this event begins or ends
    start = np.append(0, np.flatnonzero(np.diff(track[rows])) + 1)
    left_open = np.append(0, depth)[start]  # by the tracks in front
    level -= np.repeat(left_open, np.diff(np.append(start, len(rows))))
    order = np.lexsort((np.arange(len(rows)), level, track[rows]))
    current, following = order[:-1], order[1:]
    match = (
        opens[current]
        & ~opens[following]
        & (level[current] == level[following])
        & (track[rows[current]] == track[rows[following]])
    )
    begin, end = rows[current[match]], rows[following[match]]
    by_row = np.argsort(current[match], kind="stable")
    lone = len(rows) - 2 * int(match.sum())
    open_begins = int(opens.sum()) - int(match.sum())
    return Pairs(begin[by_row], end[by_row], open_begins, lone - open_begins)
