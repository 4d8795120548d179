"""The forward range that a backward operation belongs to."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import PUSH_POP, Capture
from lab.recordings.projection.nest import RangeForest, nearest_ancestor
from lab.recordings.projection.paths import Paths
from lab.recordings.tables import Table


def forward_origins(capture: Capture, nest: RangeForest, paths: Paths, inner: np.ndarray) -> np.ndarray:
    """For each backward operation (n,) the path of the range around its forward operator, or -1.

    Sequence numbers link the two. They count per forward thread; several operators carry one number, and the
    last of them made the backward node.
    """
    ranges = capture.ranges
    operator_rows = forward_operators(ranges, nest.parent, inner)
    by_user = np.array([*("::" not in text for text in capture.strings), False])[ranges.name_id]
    by_user &= ranges.kind == PUSH_POP
    outer = nearest_ancestor(nest.parent, operator_rows, by_user)
    found_paths: np.ndarray = np.append(paths.of_range, -1)[outer]
    return found_paths


def forward_operators(ranges: Table, parent: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """For each backward operation (n,), by the innermost range around it, the row of its forward operator in
    `ranges`, or -1."""
    result = np.full(len(inner), -1, dtype=np.int64)
    numbered = ranges.seq >= 0
    if not numbered.any():
        return result
    back = nearest_ancestor(parent, inner, numbered)
    asked = np.flatnonzero(back >= 0)
    result[asked] = _last_before_elsewhere(ranges, np.flatnonzero(numbered), back[asked])
    return result


def _last_before_elsewhere(ranges: Table, rows: np.ndarray, back: np.ndarray) -> np.ndarray:
    """The last of `rows` before each backward operator (n,) with its number on another thread, or -1."""
    order = rows[np.lexsort((ranges.start_ns[rows], ranges.seq[rows], ranges.process[rows]))]
    rows_of: dict[tuple[int, int], list[int]] = {}
    keys = zip(ranges.process[order].tolist(), ranges.seq[order].tolist(), strict=True)
    for row, key in zip(order.tolist(), keys, strict=True):
        rows_of.setdefault(key, []).append(row)
    start, tid = ranges.start_ns, ranges.tid
    row_of_backward: dict[int, int] = {}
    for row in np.unique(back).tolist():
        same = rows_of[int(ranges.process[row]), int(ranges.seq[row])]
        earlier = [one for one in same if start[one] <= start[row] and tid[one] != tid[row]]
        one_thread = len({int(tid[one]) for one in earlier}) == 1
        row_of_backward[row] = earlier[-1] if one_thread else -1
    return np.array([row_of_backward[row] for row in back.tolist()], dtype=np.int64)
