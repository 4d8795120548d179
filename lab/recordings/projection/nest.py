"""Ranges of each thread as trees."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import START_END, Capture
from lab.recordings.owners import innermost_of
from lab.recordings.tables import Table
from lab.stats.intervals import enclosing


class RangeForest:
    """Ranges of each thread as trees.

    parent and level: rows as `ranges`, -1 for none and for loose ones.
    loose: the rows of start/end ranges, and of ranges that begin inside another one and end after it, as
    those of two domains may.
    """

    def __init__(self, capture: Capture) -> None:
        ranges = capture.ranges
        self.parent = np.full(len(ranges), -1, dtype=np.int64)
        self.crossing = 0
        self.thread_of: dict[tuple[int, int], np.ndarray] = {}
        loose = [np.flatnonzero(ranges.kind == START_END)]
        nested = np.flatnonzero(ranges.kind != START_END)
        for thread, rows in by_thread(ranges, nested):
            rows = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows]))]
            rows, crossing = self._build(ranges, rows)
            self.thread_of[thread] = rows
            loose.append(crossing)
            self.crossing += len(crossing)
        self.loose = np.concatenate(loose)
        self.level = self._levels()
        self.level[self.loose] = -1

    def _build(self, ranges: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Set the parents of one thread's sorted rows; returns the rows that nest and those that do not."""
        out: list[np.ndarray] = [rows[:0]]
        while True:
            start, end = ranges.start_ns[rows], ranges.end_ns[rows]
            parent = enclosing(np.stack([start, end], axis=1))
            crosses = _crosses(start, end, parent)
            if not crosses.any():
                break
            # Without these, ranges that crossed them may nest, so parents are looked for again.
            out.append(rows[crosses])
            rows = rows[~crosses]
        self.parent[rows] = np.where(parent >= 0, rows[parent], -1)
        return rows, np.concatenate(out)

    def _levels(self) -> np.ndarray:
        """How many ranges lie around each one; each round climbs twice as far as the one before."""
        above = self.parent.copy()
        level: np.ndarray = (above >= 0).astype(np.int32)
        rows = np.flatnonzero(above >= 0)
        while len(rows):
            level[rows] += level[above[rows]]
            above[rows] = above[above[rows]]
            rows = rows[above[rows] >= 0]
        return level

    def around(self, capture: Capture, call: np.ndarray) -> np.ndarray:
        """Row of the innermost nested range around each call (n,) of `api` on its own thread, or -1."""
        result = np.full(len(call), -1, dtype=np.int64)
        asked = np.flatnonzero(call >= 0)
        for thread, rows_of_thread in by_thread(capture.api.take(call[asked]), np.arange(len(asked))):
            if thread in self.thread_of:
                index = asked[rows_of_thread]
                result[index] = innermost_around(capture, self.thread_of[thread], self.parent, call[index])
        return result


def innermost_around(capture: Capture, rows: np.ndarray, parent: np.ndarray, call: np.ndarray) -> np.ndarray:
    """Innermost of one thread's nested `rows`, sorted, around each call (n,), or -1."""
    start_ns, end_ns = capture.api.start_ns[call], capture.api.end_ns[call]
    return innermost_of(capture.ranges, rows, parent, start_ns, end_ns)


def by_thread(table: Table, rows: np.ndarray) -> list[tuple[tuple[int, int], np.ndarray]]:
    """((process, tid), its rows in their order) for each thread in `rows` (n,) of a table."""
    order = rows[np.lexsort((table.tid[rows], table.process[rows]))]
    process, tid = table.process[order], table.tid[order]
    if not len(order):
        return []
    edges = np.flatnonzero(np.r_[True, (process[1:] != process[:-1]) | (tid[1:] != tid[:-1])])
    return [
        ((int(process[part[0]]), int(tid[part[0]])), order[part])
        for part in np.split(np.arange(len(order)), edges)[1:]
    ]


def _crosses(start: np.ndarray, end: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Which ranges (n,) begin before the previous sibling has ended."""
    order = np.argsort(parent, kind="stable")
    again = np.flatnonzero(parent[order[1:]] == parent[order[:-1]]) + 1
    crossing = np.zeros(len(start), dtype=bool)
    crossing[order[again]] = end[order[again - 1]] > start[order[again]]
    return crossing
