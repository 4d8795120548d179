"""Find the batch and the step of each graph launch by the ranges around it."""

from __future__ import annotations

import re

import numpy as np

from lab.recordings.calls import GRAPH_LAUNCH, call_kinds
from lab.recordings.capture import PUSH_POP, Capture

_EXECUTED = re.compile(r"execute_(\d{1,9})_context")


def executed_batches(capture: Capture) -> list[int | None]:
    """The batch size of each graph launch (`execute_32_context_...`), each once; None if unknown."""
    call = np.flatnonzero(call_kinds(capture) == GRAPH_LAUNCH)
    return sorted(set(batches_of(capture, call)), key=lambda batch: -1 if batch is None else batch)


def batches_of(capture: Capture, call: np.ndarray) -> list[int | None]:
    """The batch of each graph launch (r,): of the `execute_<n>_context` range around it, None without one."""
    sizes = [_EXECUTED.match(text) for text in capture.strings]
    size = np.array([*(int(match[1]) if match else -1 for match in sizes), -1])[capture.ranges.name_id]
    rows = np.flatnonzero(size >= 0)
    range_rows = _around(capture, call, rows)
    return [int(size[row]) if row >= 0 else None for row in range_rows.tolist()]


def steps_of(capture: Capture, call: np.ndarray) -> list[object]:
    """The outermost range of the program around each graph launch (r,); None for none."""
    ranges = capture.ranges
    rows = np.flatnonzero(ranges.kind == PUSH_POP)
    order = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows]))]
    outer, latest = [], -(1 << 62)
    for row in order.tolist():
        if ranges.end_ns[row] > latest:
            outer.append(row)
            latest = int(ranges.end_ns[row])
    return [
        row if row >= 0 else None for row in _around(capture, call, np.array(outer, dtype=np.int64)).tolist()
    ]


def _around(capture: Capture, call: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which of `rows` (of `ranges`, not nested in each other) lies around each call (r,), or -1."""
    if not len(rows) or not len(call):
        return np.full(len(call), -1, dtype=np.int64)
    rows = rows[np.argsort(capture.ranges.start_ns[rows], kind="stable")]
    at_ns = np.where(call >= 0, np.append(capture.api.start_ns, -1)[call], -1)
    index = np.searchsorted(capture.ranges.start_ns[rows], at_ns, side="right") - 1
    inside = (index >= 0) & (at_ns <= capture.ranges.end_ns[rows[index]]) & (call >= 0)
    return np.where(inside, rows[index], -1)
