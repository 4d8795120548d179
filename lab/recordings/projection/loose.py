"""Operations inside ranges that do not nest: start/end ranges, and ranges that cross others."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.projection.nest import by_thread
from lab.stats.intervals import meetings


def loose_pairs(
    capture: Capture, loose: np.ndarray, call: np.ndarray, attribution: str
) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of an operation and a loose range around its call: rows of `ops` and of `ranges`.

    A range that ends on another thread covers its process's calls; nsys' rule leaves such ranges out.
    """
    ranges, api = capture.ranges, capture.api
    wandering = (ranges.end_tid[loose] >= 0) & (ranges.end_tid[loose] != ranges.tid[loose])
    on_thread = loose[ranges.end_tid[loose] < 0] if attribution == "nsys" else loose[~wandering]
    asked = np.flatnonzero(call >= 0)
    calls = api.take(call[asked])
    of_thread = {thread: asked[which] for thread, which in by_thread(calls, np.arange(len(asked)))}
    pairs = [(of_thread.get(thread), rows) for thread, rows in by_thread(ranges, on_thread)]
    if attribution == "full":
        away = loose[wandering]
        pairs += [
            (asked[calls.process == process], away[ranges.process[away] == process])
            for process in np.unique(ranges.process[away])
        ]
    meetings_of_pairs = [_around(capture, call, ops, rows) for ops, rows in pairs if ops is not None]
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *(op for op, _ in meetings_of_pairs)]), np.concatenate(
        [none, *(row for _, row in meetings_of_pairs)]
    )


def _around(
    capture: Capture, call: np.ndarray, ops: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of one of `ops` and one of the ranges `rows` that lies around its call."""
    start, end = capture.api.start_ns[call[ops]], capture.api.end_ns[call[ops]]
    range_start, range_end = capture.ranges.start_ns[rows], capture.ranges.end_ns[rows]
    # Half-open spans that are never empty, so that an instant meets the ranges around it.
    op, row = meetings(np.stack([start, end + 1], axis=1), np.stack([range_start, range_end + 1], axis=1))
    inside = (range_start[row] <= start[op]) & (range_end[row] >= end[op])
    return ops[op[inside]], rows[row[inside]]
