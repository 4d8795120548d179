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
        found = []
        if self.open_begins:
            found.append(f"{plural(self.open_begins, 'slice')} without an end left out")
        if self.lone_ends:
            found.append(f"{plural(self.lone_ends, 'end')} of slices without a beginning left out")
        return found


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
    flat, rest = _in_order(order, track, ts_ns, begins)
    # Ends first, so that slices that touch do not nest.
    nested = _nested(rest[np.lexsort((begins[rest], ts_ns[rest], track[rest]))], track, begins)
    begin, end = (np.concatenate([flat[index], nested[index]]) for index in (0, 1))
    by_time = np.lexsort((ts_ns[begin], track[begin]))
    return Pairs(begin[by_time], end[by_time], nested.open_begins, nested.lone_ends)


def _in_order(
    rows: np.ndarray, track: np.ndarray, ts_ns: np.ndarray, begins: np.ndarray
) -> tuple[Pairs, np.ndarray]:
    """The k-th begin with the k-th end on tracks where that makes slices that do not overlap; other rows."""
    first = rows[begins[rows]]
    last = rows[~begins[rows]]
    first = first[np.lexsort((ts_ns[first], track[first]))]
    last = last[np.lexsort((ts_ns[last], track[last]))]
    uneven = np.setdiff1d(*_uneven(track[first], track[last]))
    flat_first, flat_last = first[~np.isin(track[first], uneven)], last[~np.isin(track[last], uneven)]
    same = track[flat_first[1:]] == track[flat_first[:-1]]
    overlaps = same & (ts_ns[flat_first[1:]] < ts_ns[flat_last[:-1]])
    odd = np.unique(
        np.concatenate(
            [
                uneven,
                track[flat_first[1:]][overlaps],
                track[flat_first][ts_ns[flat_last] < ts_ns[flat_first]],
            ]
        )
    )
    keep = ~np.isin(track[flat_first], odd)
    return Pairs(flat_first[keep], flat_last[keep], 0, 0), rows[np.isin(track[rows], odd)]


def _uneven(first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All tracks, and those with as many begins as ends."""
    every = np.union1d(first, last)
    opened = np.bincount(np.searchsorted(every, first), minlength=len(every))
    closed = np.bincount(np.searchsorted(every, last), minlength=len(every))
    return every, every[opened == closed]


def _nested(rows: np.ndarray, track: np.ndarray, begins: np.ndarray) -> Pairs:
    """Slices of events in the order `rows`: an end closes the slice of its track that was opened last."""
    if not len(rows):
        return Pairs(rows, rows, 0, 0)
    opens = begins[rows]
    depth = np.cumsum(np.where(opens, 1, -1))
    level = np.where(opens, depth, depth + 1)  # of the slice that this event begins or ends
    start = np.append(0, np.flatnonzero(np.diff(track[rows])) + 1)
    before = np.append(0, depth)[start]  # what the tracks before left open
    level -= np.repeat(before, np.diff(np.append(start, len(rows))))
    order = np.lexsort((np.arange(len(rows)), level, track[rows]))
    here, after = order[:-1], order[1:]
    match = (
        opens[here]
        & ~opens[after]
        & (level[here] == level[after])
        & (track[rows[here]] == track[rows[after]])
    )
    begin, end = rows[here[match]], rows[after[match]]
    by_place = np.argsort(here[match], kind="stable")
    lone = len(rows) - 2 * int(match.sum())
    open_begins = int(opens.sum()) - int(match.sum())
    return Pairs(begin[by_place], end[by_place], open_begins, lone - open_begins)
