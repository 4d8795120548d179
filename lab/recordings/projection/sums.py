"""Counts and times of the operations of each range."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.projection.nest import RangeForest, by_thread
from lab.recordings.tables import Table
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


def sums_by_group(capture: Capture, group: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """num_ops, num_kernels, op_ns, kernel_ns of each group; group (n,): that of each operation, or -1."""
    dur_ns = capture.ops.end_ns - capture.ops.start_ns
    names = {"num_ops": np.ones(len(group), dtype=np.int64), "num_kernels": capture.kernels.astype(np.int64)}
    names |= {"op_ns": dur_ns, "kernel_ns": np.where(capture.kernels, dur_ns, 0)}
    grouped = group >= 0
    sums = {}
    for name, values in names.items():
        sums[name] = np.zeros(size, dtype=np.int64)
        np.add.at(sums[name], group[grouped], values[grouped])
    return sums


def instance_sums(
    capture: Capture,
    tree: RangeForest | Table,
    inner: np.ndarray,
    inherited: np.ndarray,
    loose_op: np.ndarray,
    loose_range: np.ndarray,
) -> dict[str, np.ndarray]:
    """Sums and the projected span of each range (rows as `ranges`), children included.

    tree: anything with the `parent` and the `level` of each range.
    """
    size, ops = len(capture.ranges), capture.ops
    none = np.iinfo(np.int64).max
    sums = sums_by_group(capture, inner, size)
    for name, values in sums_by_group(capture, inherited, size).items():
        sums[name] += values
    start_ns, end_ns = np.full(size, none), np.full(size, -1, dtype=np.int64)
    for rows in (inner, inherited):
        owned = np.flatnonzero(rows >= 0)
        np.minimum.at(start_ns, rows[owned], ops.start_ns[owned])
        np.maximum.at(end_ns, rows[owned], ops.end_ns[owned])
    _to_parents(tree.parent, tree.level, sums, start_ns, end_ns)
    _add_loose(capture, sums, start_ns, end_ns, loose_op, loose_range)
    return {**sums, "first_ns": np.where(start_ns == none, -1, start_ns), "last_ns": end_ns}


def _to_parents(
    parent: np.ndarray,
    level: np.ndarray,
    sums: dict[str, np.ndarray],
    start_ns: np.ndarray,
    end_ns: np.ndarray,
) -> None:
    """Add each level to the one above it, deepest first."""
    by_level = np.argsort(level, kind="stable")
    bounds = np.searchsorted(level[by_level], np.arange(1, level.max(initial=0) + 2))
    for low, high in reversed(list(itertools.pairwise(bounds))):
        rows = by_level[low:high]
        up = parent[rows]
        np.minimum.at(start_ns, up, start_ns[rows])
        np.maximum.at(end_ns, up, end_ns[rows])
        for values in sums.values():
            np.add.at(values, up, values[rows])


def _add_loose(
    capture: Capture,
    sums: dict[str, np.ndarray],
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    op: np.ndarray,
    row: np.ndarray,
) -> None:
    if len(op) == 0:
        return
    picked = replace(capture, ops=capture.ops.take(op))
    for name, values in sums_by_group(picked, row, len(start_ns)).items():
        sums[name] += values
    np.minimum.at(start_ns, row, capture.ops.start_ns[op])
    np.maximum.at(end_ns, row, capture.ops.end_ns[op])
