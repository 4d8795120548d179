"""Ranges of the program projected onto the GPU's operations: who asked for which kernel.

Method: an operation belongs to the API call with its (process, correlation id), and the call to the ranges around it on
its own thread (`same`). PyTorch launches the backward pass from a thread of its own, which no range of the program
reaches: where no phase (`forward`, `backward`, ...) or step lies around a call on its own thread, the phase that another
thread of the process had open then lends its path (`cross`), since the caller waits for it. Are there several such
threads, nobody knows: the operation is counted as `ambiguous` and lent to none. `attribution="nsys"` is the rule of
Nsight Systems' own reports: the same thread alone.

What it cannot tell: work that the call's recording missed (`unattributed`), and which range *needed* a kernel. An
operation counts where it was launched, however late it ran.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lab.errors import BadDataError
from lab.recordings.capture import GRAPH, PUSH_POP, START_END, Capture
from lab.recordings.tables import Table
from lab.stats.intervals import enclosing, meetings

SAME, CROSS, GRAPH_LAUNCH, AMBIGUOUS, OUTSIDE, UNATTRIBUTED = 0, 1, 2, 3, 4, 5
RULES = ("same", "cross", "graph", "ambiguous", "outside", "unattributed")

PHASES = re.compile(
    r"(forward|backward|optimizer)([_ ](pass|step))?([_ ]\d+)?|loss|zero_grad|Optimizer\.(step|zero_grad)#.*",
    re.IGNORECASE,
)
STEPS = re.compile(
    r"((training|train|forward|measure)?[_ ]?step[_ #]?\d+|ProfilerStep#\d+|iter(ation)?[_ ]?\d+)",
    re.IGNORECASE,
)
WARMUPS = re.compile(r"warm[-_ ]?up.*", re.IGNORECASE)


@dataclass(frozen=True)
class Projection:
    """Every operation of `capture.ops` with its call, its range and its path; every range with its operations.

    ops (rows as `capture.ops`): api, the row of `capture.api`, or -1; range, the innermost row of `capture.ranges` around
      the call on its own thread, or -1; lent, the innermost phase of another thread, or -1; path, a row of `tree`; rule,
      one of RULES; origin, a row of `tree`: the path of the forward operator that this backward operation belongs to by
      its sequence number, or -1.
    tree: one row a distinct path of names: parent (-1 for row 0, the root: all operations), name_id, depth; self_ops,
      self_kernels, self_op_ns, self_kernel_ns count what has exactly this path, num_ops, num_kernels, op_ns, kernel_ns
      all below it too. Each operation counts once.
    instances (rows as `capture.ranges`): parent, the row of the range around it on its thread, or -1; level; path;
      num_ops, num_kernels, op_ns, kernel_ns of what was launched in it, lent ones too; first_ns and last_ns, from the
      earliest start to the latest end of its operations (-1 without any): the projected span.
    loose: pairs of an op and a range (rows) of ranges that stand in no path: start/end ranges, which overlap freely, and
      ranges that cross others; their level is -1.
    """

    capture: Capture
    attribution: str
    ops: Table
    tree: Table
    instances: Table
    loose: Table
    problems: list[str]

    def path(self, index: int) -> tuple[str, ...]:
        """The names along a path of the tree, outermost first; () for the root."""
        names = []
        while index > 0:
            names.append(self.capture.name(int(self.tree.name_id[index])))
            index = int(self.tree.parent[index])
        return tuple(reversed(names))

    def rows_named(self, name: str) -> np.ndarray:
        """Rows (m,) of `capture.ranges` with this name, by start."""
        ranges = self.capture.ranges
        found = np.flatnonzero(self.capture.text(ranges.name_id) == name)
        return found[np.argsort(ranges.start_ns[found], kind="stable")]

    def owners(self, rows: np.ndarray) -> np.ndarray:
        """For each operation (n,) the index in `rows` (m,) of the innermost of these ranges around it, or -1.

        A range on the operation's own thread counts before one that was lent.
        """
        place = np.full(len(self.capture.ranges) + 1, -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        own = self._first(self.ops.range, place)
        return np.where(own >= 0, own, self._first(self.ops.lent, place))

    def nearest(self, wanted: np.ndarray) -> np.ndarray:
        """For each operation (n,) the innermost range on its own thread that is wanted (rows as ranges), or -1."""
        return _nearest(self.instances.parent, self.ops.range, wanted)

    def _first(self, start: np.ndarray, place: np.ndarray) -> np.ndarray:
        at = _nearest(self.instances.parent, start, place[:-1] >= 0)
        return np.where(at >= 0, place[at], -1)

    @cached_property
    def steps(self) -> np.ndarray:
        """Rows of `capture.ranges` that are measured steps (`step_0`, `ProfilerStep#3`), by start; no warm-up."""
        return _steps(self.capture, self.instances.parent)

    @cached_property
    def coverage(self) -> Table:
        """One row a rule: num_ops, num_kernels, op_ns, kernel_ns."""
        return Table(_sums(self.capture, self.ops.rule.astype(np.int64), len(RULES)))


def project(capture: Capture, attribution: str = "full", phases: re.Pattern[str] = PHASES) -> Projection:
    """Project. attribution is `full` or `nsys`; phases: names (matched in full) that other threads may borrow.

    Cost is that of sorting: n log n in ranges, calls and operations.
    """
    if attribution not in ("full", "nsys"):
        raise ValueError(f"attribution is full or nsys, not {attribution!r}")
    problems: list[str] = []
    call = _calls(capture, problems)
    nest = _Nest(capture)
    inner = nest.around(capture, call)
    lent, ambiguous = np.full(len(call), -1, dtype=np.int64), np.zeros(len(call), dtype=bool)
    if attribution == "full":
        lent, ambiguous = _borrow(capture, nest, call, inner, phases)
    loose_op, loose_range = _loose_pairs(capture, nest.loose, call, attribution)
    sums = _instance_sums(capture, nest, inner, lent, loose_op, loose_range)
    paths = _Paths(capture, nest, sums["num_ops"] > 0)
    path = paths.of(lent, inner)
    _complain(capture, nest, ambiguous, problems)
    columns = {"api": call, "range": inner, "lent": lent, "path": path}
    columns["rule"] = _rules(capture, call, inner, lent, ambiguous)
    columns["origin"] = _origins(capture, nest, paths, call, inner)
    return Projection(
        capture=capture,
        attribution=attribution,
        ops=Table(columns),
        tree=_tree(capture, paths, path),
        instances=Table({"parent": nest.parent, "level": nest.level, "path": paths.of_range, **sums}),
        loose=Table({"op": loose_op, "range": loose_range}),
        problems=problems,
    )


def _calls(capture: Capture, problems: list[str]) -> np.ndarray:
    """Row of `api` (n,) with the operation's process and correlation id, the first of several, or -1."""
    ops, api = capture.ops, capture.api
    if len(api) == 0:
        return np.full(len(ops), -1, dtype=np.int64)
    pids, codes = np.unique(np.concatenate([ops.pid, api.pid]), return_inverse=True)
    largest = int(max(api.corr.max(), ops.corr.max(initial=0))) + 1
    if largest > (1 << 62) // len(pids):
        raise BadDataError("correlation ids are out of all bounds", where=capture.source)
    keys = codes.astype(np.int64) * largest + np.concatenate([ops.corr, api.corr])
    keys[np.concatenate([ops.corr, api.corr]) < 0] = -1
    wanted, among = keys[: len(ops)], keys[len(ops) :]
    order = np.argsort(among, kind="stable")
    place = np.minimum(np.searchsorted(among[order], wanted), len(among) - 1)
    found = order[place]
    call = np.where((among[found] == wanted) & (wanted >= 0), found, -1)
    again = np.searchsorted(among[order], wanted, side="right") - np.searchsorted(among[order], wanted)
    if several := int(((again > 1) & (wanted >= 0)).sum()):
        problems.append(f"{several} operations have several API calls of their id; the first was taken")
    return call


class _Nest:
    """Ranges of each thread as trees. Ranges that only overlap others lie outside, in `loose`.

    parent and level (rows as `ranges`, -1: none or loose); loose, the rows of start/end ranges and of ranges that
    begin inside another one and end after it, as those of two domains may.
    """

    def __init__(self, capture: Capture) -> None:
        ranges = capture.ranges
        self.parent = np.full(len(ranges), -1, dtype=np.int64)
        self.crossing = 0
        self.thread_of: dict[tuple[int, int], np.ndarray] = {}
        loose = [np.flatnonzero(ranges.kind == START_END)]
        nested = np.flatnonzero(ranges.kind != START_END)
        for thread, rows in _by_thread(ranges, nested):
            rows = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows]))]
            rows, crossing = self._build(ranges, rows)
            self.thread_of[thread] = rows
            loose.append(crossing)
            self.crossing += len(crossing)
        self.loose = np.concatenate(loose)
        self.level = self._levels()
        self.level[self.loose] = -1

    def _build(self, ranges: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parents of one thread's rows, sorted; those that cross an earlier one are taken out and returned."""
        out: list[np.ndarray] = [rows[:0]]
        while True:
            start, end = ranges.start_ns[rows], ranges.end_ns[rows]
            parent = enclosing(np.stack([start, end], axis=1))
            crosses = _crosses(start, end, parent)
            if not crosses.any():
                break
            out.append(rows[crosses])
            rows = rows[~crosses]
        self.parent[rows] = np.where(parent >= 0, rows[parent], -1)
        return rows, np.concatenate(out)

    def _levels(self) -> np.ndarray:
        """How many ranges lie around each. Ancestors at twice the distance each round, so that depth costs little."""
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
        for thread, which in _by_thread(capture.api.take(call[asked]), np.arange(len(asked))):
            if thread in self.thread_of:
                index = asked[which]
                result[index] = _climbed(capture, self.thread_of[thread], self.parent, call[index])
        return result


def _climbed(capture: Capture, rows: np.ndarray, parent: np.ndarray, call: np.ndarray) -> np.ndarray:
    """Innermost of one thread's nested `rows`, sorted, around each call (n,), or -1.

    The range that began last is asked first, then those around it: a range around the call lies around that one, too.
    """
    start, ends = capture.ranges.start_ns[rows], capture.ranges.end_ns
    until = capture.api.end_ns[call]
    place = np.searchsorted(start, capture.api.start_ns[call], side="right") - 1
    at = np.where(place >= 0, rows[place], -1)
    todo = np.flatnonzero(at >= 0)
    while len(todo := todo[ends[at[todo]] < until[todo]]):
        at[todo] = parent[at[todo]]
        todo = todo[at[todo] >= 0]
    return at


def _by_thread(table: Table, rows: np.ndarray) -> list[tuple[tuple[int, int], np.ndarray]]:
    """((pid, tid), its rows in their order) for each thread in `rows` (n,) of a table."""
    order = rows[np.lexsort((table.tid[rows], table.pid[rows]))]
    pid, tid = table.pid[order], table.tid[order]
    first = (
        np.flatnonzero(np.r_[True, (pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])]) if len(order) else order
    )
    return [
        ((int(pid[part[0]]), int(tid[part[0]])), order[part])
        for part in np.split(np.arange(len(order)), first)[1:]
    ]


def _crosses(start: np.ndarray, end: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Which ranges (n,) begin before the sibling before them has ended; with none such, siblings are disjoint."""
    order = np.argsort(parent, kind="stable")
    again = np.flatnonzero(parent[order[1:]] == parent[order[:-1]]) + 1
    crossing = np.zeros(len(start), dtype=bool)
    crossing[order[again]] = end[order[again - 1]] > start[order[again]]
    return crossing


def _loose_pairs(
    capture: Capture, loose: np.ndarray, call: np.ndarray, attribution: str
) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of an operation and a loose range around its call: rows of `ops` and of `ranges`.

    A range that ends on another thread covers its process's calls; nsys' rule leaves such ranges out.
    """
    ranges, api = capture.ranges, capture.api
    wandering = (ranges.end_tid[loose] >= 0) & (ranges.end_tid[loose] != ranges.tid[loose])
    here = loose[ranges.end_tid[loose] < 0] if attribution == "nsys" else loose[~wandering]
    asked = np.flatnonzero(call >= 0)
    calls = api.take(call[asked])
    of_thread = {thread: asked[which] for thread, which in _by_thread(calls, np.arange(len(asked)))}
    pairs = [(of_thread.get(thread), rows) for thread, rows in _by_thread(ranges, here)]
    if attribution == "full":
        away = loose[wandering]
        pairs += [
            (asked[calls.pid == pid], away[ranges.pid[away] == pid]) for pid in np.unique(ranges.pid[away])
        ]
    found = [_around(capture, call, ops, rows) for ops, rows in pairs if ops is not None]
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *(op for op, _ in found)]), np.concatenate(
        [none, *(row for _, row in found)]
    )


def _around(
    capture: Capture, call: np.ndarray, ops: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of one of `ops` and one of the ranges `rows` that lies around its call."""
    start, end = capture.api.start_ns[call[ops]], capture.api.end_ns[call[ops]]
    first, last = capture.ranges.start_ns[rows], capture.ranges.end_ns[rows]
    # Half-open spans that are never empty, so that an instant meets what is around it.
    op, row = meetings(np.stack([start, end + 1], axis=1), np.stack([first, last + 1], axis=1))
    inside = (first[row] <= start[op]) & (last[row] >= end[op])
    return ops[op[inside]], rows[row[inside]]


def _borrow(
    capture: Capture, nest: _Nest, call: np.ndarray, inner: np.ndarray, phases: re.Pattern[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Row of the phase (n,) that another thread lends, or -1; and which operations (n,) several could lend one.

    Asked only for calls without a phase or a step around them on their own thread. Steps lend where no phase does.
    """
    texts = capture.strings
    is_phase = np.array([*(bool(phases.fullmatch(text)) for text in texts), False])[capture.ranges.name_id]
    is_step = np.array([*(_is_step(text) or bool(WARMUPS.fullmatch(text)) for text in texts), False])
    is_step = is_step[capture.ranges.name_id] & ~is_phase
    is_phase[nest.loose] = is_step[nest.loose] = False
    orphans = np.flatnonzero((call >= 0) & ~_has_above(nest, inner, is_phase | is_step))
    lent, ambiguous = np.full(len(call), -1, dtype=np.int64), np.zeros(len(call), dtype=bool)
    for lenders in (is_phase, is_step):
        found, count = _lender(capture, nest, call[orphans], np.flatnonzero(lenders))
        lent[orphans] = np.where(count == 1, found, -1)
        ambiguous[orphans] = count > 1
        orphans = orphans[count == 0]
    return lent, ambiguous


def _lender(
    capture: Capture, nest: _Nest, call: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The innermost of `rows` around each call (n,) on another thread of its process, and on how many there is one."""
    ranges, api = capture.ranges, capture.api
    found, count = np.full(len(call), -1, dtype=np.int64), np.zeros(len(call), dtype=np.int64)
    parent = _parents_among(nest, rows, len(ranges))
    for (pid, tid), mine in _by_thread(ranges, rows):
        mine = mine[np.lexsort((-ranges.end_ns[mine], ranges.start_ns[mine]))]
        asked = np.flatnonzero((api.pid[call] == pid) & (api.tid[call] != tid))
        at = _climbed(capture, mine, parent, call[asked])
        found[asked] = np.where(at >= 0, at, found[asked])
        count[asked] += at >= 0
    return found, count


def _parents_among(nest: _Nest, rows: np.ndarray, num_ranges: int) -> np.ndarray:
    """For each of `rows` its nearest ancestor that is one of them, or -1 (rows as `ranges`)."""
    chosen = np.zeros(num_ranges, dtype=bool)
    chosen[rows] = True
    parent = np.full(num_ranges, -1, dtype=np.int64)
    parent[rows] = _nearest(nest.parent, nest.parent[rows], chosen)
    return parent


def _has_above(nest: _Nest, start: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Is one of the wanted ranges among each start row (n,) and its ancestors?"""
    found: np.ndarray = _nearest(nest.parent, start, wanted) >= 0
    return found


def _nearest(parent: np.ndarray, start: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The nearest wanted range among each start row (n,) and its ancestors, or -1."""
    at: np.ndarray = start.copy()
    todo = np.flatnonzero(at >= 0)
    while len(todo := todo[~wanted[at[todo]]]):
        at[todo] = parent[at[todo]]
        todo = todo[at[todo] >= 0]
    return at


def _is_step(text: str) -> bool:
    return bool(STEPS.fullmatch(text))


def _steps(capture: Capture, parent: np.ndarray) -> np.ndarray:
    """Rows of step ranges, outermost ones, by start; those inside a warm-up range are no measured steps."""
    is_step = np.array([*map(_is_step, capture.strings), False])[capture.ranges.name_id]
    is_warmup = np.array([*(bool(WARMUPS.fullmatch(text)) for text in capture.strings), False])
    rows = np.flatnonzero(is_step)
    above = _nearest(parent, parent[rows], is_step | is_warmup[capture.ranges.name_id])
    rows = rows[above < 0]
    return rows[np.argsort(capture.ranges.start_ns[rows], kind="stable")]


def _rules(
    capture: Capture, call: np.ndarray, inner: np.ndarray, lent: np.ndarray, ambiguous: np.ndarray
) -> np.ndarray:
    replayed = (capture.ops.graph_node > 0) | (capture.ops.kind == GRAPH)
    found = (inner >= 0) | (lent >= 0)
    cases = [call < 0, ambiguous, replayed & found, lent >= 0, inner >= 0]
    rules: np.ndarray = np.select(cases, [UNATTRIBUTED, AMBIGUOUS, GRAPH_LAUNCH, CROSS, SAME], OUTSIDE)
    return rules.astype(np.int8)


def _sums(capture: Capture, group: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """num_ops, num_kernels, op_ns, kernel_ns of each group (n,) of operations; -1 belongs to none."""
    dur_ns = capture.ops.end_ns - capture.ops.start_ns
    names = {"num_ops": np.ones(len(group), dtype=np.int64), "num_kernels": capture.kernels.astype(np.int64)}
    names |= {"op_ns": dur_ns, "kernel_ns": np.where(capture.kernels, dur_ns, 0)}
    there = group >= 0
    sums = {}
    for name, values in names.items():
        sums[name] = np.zeros(size, dtype=np.int64)
        np.add.at(sums[name], group[there], values[there])
    return sums


def _instance_sums(
    capture: Capture,
    nest: _Nest,
    inner: np.ndarray,
    lent: np.ndarray,
    loose_op: np.ndarray,
    loose_range: np.ndarray,
) -> dict[str, np.ndarray]:
    """Sums and the projected span of each range (rows as `ranges`): its own operations, then its children's."""
    size, ops = len(capture.ranges), capture.ops
    none = np.iinfo(np.int64).max
    sums = _sums(capture, inner, size)
    for name, more in _sums(capture, lent, size).items():
        sums[name] += more
    first, last = np.full(size, none), np.full(size, -1, dtype=np.int64)
    for rows in (inner, lent):
        there = np.flatnonzero(rows >= 0)
        np.minimum.at(first, rows[there], ops.start_ns[there])
        np.maximum.at(last, rows[there], ops.end_ns[there])
    _to_parents(nest, sums, first, last)
    _add_loose(capture, sums, first, last, loose_op, loose_range)
    return {**sums, "first_ns": np.where(first == none, -1, first), "last_ns": last}


def _to_parents(nest: _Nest, sums: dict[str, np.ndarray], first: np.ndarray, last: np.ndarray) -> None:
    """Add each level to the one above it, deepest first."""
    by_level = np.argsort(nest.level, kind="stable")
    bounds = np.searchsorted(nest.level[by_level], np.arange(1, nest.level.max(initial=0) + 2))
    for low, high in reversed(list(itertools.pairwise(bounds))):
        rows = by_level[low:high]
        up = nest.parent[rows]
        np.minimum.at(first, up, first[rows])
        np.maximum.at(last, up, last[rows])
        for values in sums.values():
            np.add.at(values, up, values[rows])


def _add_loose(
    capture: Capture,
    sums: dict[str, np.ndarray],
    first: np.ndarray,
    last: np.ndarray,
    op: np.ndarray,
    row: np.ndarray,
) -> None:
    if len(op) == 0:
        return
    picked = replace(capture, ops=capture.ops.take(op))
    for name, more in _sums(picked, row, len(first)).items():
        sums[name] += more
    np.minimum.at(first, row, capture.ops.start_ns[op])
    np.maximum.at(last, row, capture.ops.end_ns[op])


class _Paths:
    """Distinct paths of names: `parent` and `name` of each, 0 being the root; of_range, each range's (-1: no ops)."""

    def __init__(self, capture: Capture, nest: _Nest, active: np.ndarray) -> None:
        self.parent, self.name = [-1], [-1]
        self._known: dict[tuple[int, int], int] = {}
        self._joined: dict[tuple[int, int], int] = {}
        self.of_range = np.full(len(capture.ranges), -1, dtype=np.int64)
        rows = np.flatnonzero(active & (nest.level >= 0))
        rows = rows[np.argsort(nest.level[rows], kind="stable")]
        bounds = np.flatnonzero(np.diff(nest.level[rows])) + 1
        num_names = len(capture.strings) + 1
        for level in np.split(rows, bounds):
            above = (
                self.of_range[nest.parent[level]]
                if len(level) and nest.level[level[0]]
                else np.zeros_like(level)
            )
            keys, which = np.unique(
                above * num_names + capture.ranges.name_id[level] + 1, return_inverse=True
            )
            nodes = [self.child(key // num_names, key % num_names - 1) for key in keys.tolist()]
            self.of_range[level] = np.array(nodes, dtype=np.int64)[which]

    def child(self, parent: int, name: int) -> int:
        if (node := self._known.get((parent, name))) is None:
            node = self._known[parent, name] = len(self.parent)
            self.parent.append(parent)
            self.name.append(name)
        return node

    def of(self, lent: np.ndarray, inner: np.ndarray) -> np.ndarray:
        """Path (n,) of operations: the lent range's, then their own; 0 for none of both."""
        of_range = np.append(self.of_range, 0)
        pairs = np.stack([of_range[lent], of_range[inner]], axis=1)
        used, which = np.unique(pairs, axis=0, return_inverse=True)
        joined = np.array([self._join(front, back) for front, back in used.tolist()], dtype=np.int64)
        return joined[which.ravel()] if len(used) else np.empty(0, dtype=np.int64)

    def _join(self, front: int, back: int) -> int:
        names = []
        while back > 0:
            names.append(self.name[back])
            back = self.parent[back]
        for name in reversed(names):
            front = self.child(front, name)
        return front


def _tree(capture: Capture, paths: _Paths, path: np.ndarray) -> Table:
    """Sums of each path, then of all below it; children have larger numbers than their parents."""
    size = len(paths.parent)
    own = _sums(capture, path, size)
    parent = np.array(paths.parent, dtype=np.int64)
    depth = np.zeros(size, dtype=np.int64)
    total = {name: values.copy() for name, values in own.items()}
    for node in range(1, size):
        depth[node] = depth[parent[node]] + 1
    for node in range(size - 1, 0, -1):
        for values in total.values():
            values[parent[node]] += values[node]
    mine = {f"self_{name.removeprefix('num_')}": values for name, values in own.items()}
    return Table(
        {"parent": parent, "name_id": np.array(paths.name, dtype=np.int32), "depth": depth, **mine, **total}
    )


def _origins(capture: Capture, nest: _Nest, paths: _Paths, call: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Path (n,) of the program's range around the forward operator with the sequence number of a backward one, or -1.

    The number counts per forward thread; several operators carry it, and the last of them made the backward node.
    """
    ranges = capture.ranges
    result = np.full(len(call), -1, dtype=np.int64)
    numbered = ranges.seq >= 0
    if not numbered.any():
        return result
    back = _nearest(nest.parent, inner, numbered)
    asked = np.flatnonzero(back >= 0)
    found = _last_before_elsewhere(ranges, np.flatnonzero(numbered), back[asked])
    by_user = np.array([*("::" not in text for text in capture.strings), False])[ranges.name_id]
    by_user &= (ranges.kind == PUSH_POP) & (ranges.name_id == ranges.text_id)
    outer = _nearest(nest.parent, found, by_user)
    result[asked] = np.where(outer >= 0, paths.of_range[outer], -1)
    return result


def _last_before_elsewhere(ranges: Table, rows: np.ndarray, back: np.ndarray) -> np.ndarray:
    """For each backward operator (n,) the last of `rows` before it with its number, on another thread; -1 for none."""
    order = rows[np.lexsort((ranges.start_ns[rows], ranges.seq[rows], ranges.pid[rows]))]
    place: dict[tuple[int, int], list[int]] = {}
    for row, key in zip(
        order.tolist(), zip(ranges.pid[order].tolist(), ranges.seq[order].tolist(), strict=True), strict=True
    ):
        place.setdefault(key, []).append(row)
    start, tid = ranges.start_ns, ranges.tid
    found: dict[int, int] = {}
    for row in np.unique(back).tolist():
        same = place[int(ranges.pid[row]), int(ranges.seq[row])]
        before = [one for one in same if start[one] <= start[row] and tid[one] != tid[row]]
        one_thread = len({int(tid[one]) for one in before}) == 1
        found[row] = before[-1] if one_thread else -1
    return np.array([found[row] for row in back.tolist()], dtype=np.int64)


def _complain(capture: Capture, nest: _Nest, ambiguous: np.ndarray, problems: list[str]) -> None:
    if nest.crossing:
        problems.append(
            f"{nest.crossing} ranges begin inside another one and end after it; they count, but stand in no path"
        )
    if ambiguous.any():
        problems.append(
            f"{ambiguous.sum()} operations were launched while several threads were in a phase; given to none of them"
        )
