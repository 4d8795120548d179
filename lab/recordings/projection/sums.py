"""Ranges of each thread as trees, their paths as one, and counts and times of the operations of each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lab.recordings.capture import PUSH_POP, START_END, Capture
from lab.recordings.owners import innermost_of, nearest_ancestor
from lab.recordings.tables import Table
from lab.stats.columns import per_distinct
from lab.stats.intervals import enclosing, meetings


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
    pairs = [(of_thread.get(thread, asked[:0]), rows) for thread, rows in by_thread(ranges, on_thread)]
    if attribution == "full":
        away = loose[wandering]
        pairs += [
            (asked[calls.process == process], away[ranges.process[away] == process])
            for process in np.unique(ranges.process[away])
        ]
    met = [(asked[:0], loose[:0]), *(_around(capture, call, ops, rows) for ops, rows in pairs)]
    ops_met, ranges_met = (np.concatenate(rows) for rows in zip(*met, strict=True))
    return ops_met, ranges_met


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


# How the figures of two groups become one; a figure that is not here is a sum.
_SPAN = {"first_ns": np.minimum, "last_ns": np.maximum}
_NEVER = np.iinfo(np.int64).max  # first_ns of a group without operations, until its sums are complete
Sums = dict[str, np.ndarray]


def sums_by_group(capture: Capture, group: np.ndarray, size: int, *, with_span: bool = False) -> Sums:
    """num_ops, num_kernels, op_ns, kernel_ns of each group; group (n,): that of each operation, or -1.

    with_span: also first_ns and last_ns, the earliest start (_NEVER for none) and the latest end (-1).
    """
    ops = capture.ops
    values: Sums = {"num_ops": np.ones(len(group), dtype=np.int64)}
    values |= {"num_kernels": capture.kernels.astype(np.int64), "op_ns": ops.dur_ns}
    values["kernel_ns"] = np.where(capture.kernels, ops.dur_ns, 0)
    if with_span:
        values |= {"first_ns": ops.start_ns, "last_ns": ops.end_ns}
    empty = {"first_ns": _NEVER, "last_ns": -1}
    grouped = group >= 0
    sums = {name: np.full(size, empty.get(name, 0), dtype=np.int64) for name in values}
    for name, column in values.items():
        _SPAN.get(name, np.add).at(sums[name], group[grouped], column[grouped])
    return sums


def instance_sums(
    capture: Capture,
    nest: RangeForest,
    inner: np.ndarray,
    inherited: np.ndarray,
    loose_op: np.ndarray,
    loose_range: np.ndarray,
) -> Sums:
    """Sums and the projected span of each range (rows as `ranges`), children included."""
    size = len(capture.ranges)
    sums = _together(
        sums_by_group(capture, inner, size, with_span=True),
        sums_by_group(capture, inherited, size, with_span=True),
    )
    _to_parents(nest.parent, nest.level, sums)
    picked = replace(capture, ops=capture.ops.take(loose_op))
    sums = _together(sums, sums_by_group(picked, loose_range, size, with_span=True))
    return sums | {"first_ns": np.where(sums["first_ns"] == _NEVER, -1, sums["first_ns"])}


def _together(sums: Sums, more: Sums) -> Sums:
    return {name: _SPAN.get(name, np.add)(values, more[name]) for name, values in sums.items()}


def _to_parents(parent: np.ndarray, level: np.ndarray, sums: Sums) -> None:
    """Add each level to the one above it, deepest first."""
    by_level = np.argsort(level, kind="stable")
    bounds = np.searchsorted(level[by_level], np.arange(1, level.max(initial=0) + 2))
    for low, high in reversed(list(itertools.pairwise(bounds))):
        rows = by_level[low:high]
        for name, values in sums.items():
            _SPAN.get(name, np.add).at(values, parent[rows], values[rows])


def forward_origins(capture: Capture, nest: RangeForest, paths: Paths, inner: np.ndarray) -> np.ndarray:
    """Find for each backward operation (n,) the path of the range around its forward operator, or -1.

    Sequence numbers link the two. They count per forward thread; several operators carry one number, and the
    last of them made the backward node.
    """
    ranges = capture.ranges
    operator_rows = forward_operators(ranges, nest.parent, inner)
    # aten::, autograd:: and the like are the framework's own names; a range of the program has no `::`.
    by_user = capture.by_text(lambda text: "::" not in text, ranges.name_id)
    by_user &= ranges.kind == PUSH_POP
    outer = nearest_ancestor(nest.parent, operator_rows, by_user)
    found_paths: np.ndarray = np.append(paths.of_range, -1)[outer]
    return found_paths


def forward_operators(ranges: Table, parent: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """For each backward operation (n,), by the innermost range around it, the row of its forward operator in
    `ranges`, or -1."""
    numbered = ranges.seq >= 0
    if not numbered.any():
        return np.full(len(inner), -1, dtype=np.int64)
    back = nearest_ancestor(parent, inner, numbered)
    rows = np.flatnonzero(numbered)
    order = rows[np.lexsort((ranges.start_ns[rows], ranges.seq[rows], ranges.process[rows]))]
    rows_of: dict[tuple[int, int], list[int]] = {}
    keys = zip(ranges.process[order].tolist(), ranges.seq[order].tolist(), strict=True)
    for row, key in zip(order.tolist(), keys, strict=True):
        rows_of.setdefault(key, []).append(row)
    start, tid = ranges.start_ns, ranges.tid

    def forward_of(row: int) -> int:
        """The last row with this one's number before it on another thread, if that is one thread."""
        if row < 0:
            return -1
        same = rows_of[int(ranges.process[row]), int(ranges.seq[row])]
        earlier = [one for one in same if start[one] <= start[row] and tid[one] != tid[row]]
        return earlier[-1] if len({int(tid[one]) for one in earlier}) == 1 else -1

    return per_distinct(back, forward_of)


class Paths:
    """Distinct paths of names: `parent` and `name` of each, 0 is the root.

    of_range: the path of each range, -1 without operations.
    """

    def __init__(self, capture: Capture, nest: RangeForest, active: np.ndarray) -> None:
        self.parent, self.name = [-1], [-1]
        self._numbers: dict[tuple[int, int], int] = {}
        self.of_range = np.full(len(capture.ranges), -1, dtype=np.int64)
        rows = np.flatnonzero(active & (nest.level >= 0))
        rows = rows[np.argsort(nest.level[rows], kind="stable")]
        bounds = np.flatnonzero(np.diff(nest.level[rows])) + 1
        for level in np.split(rows, bounds):
            has_parent = len(level) and nest.level[level[0]]
            above = self.of_range[nest.parent[level]] if has_parent else np.zeros_like(level)
            pairs = np.stack([above, capture.ranges.name_id[level]], axis=1)
            self.of_range[level] = per_distinct(pairs, lambda pair: self._child(*pair))

    def _child(self, parent: int, name: int) -> int:
        if (node := self._numbers.get((parent, name))) is None:
            node = self._numbers[parent, name] = len(self.parent)
            self.parent.append(parent)
            self.name.append(name)
        return node

    def below(self, path: int, names: tuple[int, ...]) -> int:
        """The path with these names at its end."""
        for name in names:
            path = self._child(path, name)
        return path

    def of(self, inherited: np.ndarray, inner: np.ndarray) -> np.ndarray:
        """Path (n,) of operations: the inherited range's, then their own; 0 if neither."""
        of_range = np.append(self.of_range, 0)
        return per_distinct(np.stack([of_range[inherited], of_range[inner]], axis=1), self._join)

    def _join(self, pair: tuple[int, int]) -> int:
        front, back = pair
        names = []
        while back > 0:
            names.append(self.name[back])
            back = self.parent[back]
        return self.below(front, tuple(reversed(names)))


def path_tree(capture: Capture, parents: Sequence[int], names: Sequence[int], path: np.ndarray) -> Table:
    """Sums of each path, then of all below it; children have larger numbers than their parents."""
    size = len(parents)
    self_sums = sums_by_group(capture, path, size)
    parent = np.array(parents, dtype=np.int64)
    depth = np.zeros(size, dtype=np.int64)
    for node in range(1, size):
        depth[node] = depth[parent[node]] + 1
    total = {name: values.copy() for name, values in self_sums.items()}
    _to_parents(parent, depth, total)
    self_columns = {f"self_{name.removeprefix('num_')}": values for name, values in self_sums.items()}
    columns: Sums = {"parent": parent, "name_id": np.array(names, dtype=np.int32), "depth": depth}
    return Table({**columns, **self_columns, **total})
