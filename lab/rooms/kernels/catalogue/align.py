"""Aligns recorded calls with the ops of a trace: one generation seen by the profiler, one by the dispatcher.

The dispatcher sees fewer calls: composites reach it decomposed, and calls inside a kernel's implementation
never reach it. So an op inside another op of a recorded name was not recorded itself (except an overload that
calls another of the same name). What remains is nearly the recorded sequence, and the longest common
subsequence joins the two. Each forward and each gap between forwards is aligned on its own, so one difference
does not affect the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from lab.perfmodel.classes import moves_no_data, works_itself
from lab.recordings.tables import Table
from lab.rooms.kernels.schema import RecordedOp
from lab.stats.intervals import enclosing, spans

# The profiler's name of what the dispatcher records as a view.
ALIASES = {"aten::_reshape_alias": "aten::view"}
# An op on a DTensor is not recorded; its local ops, which run inside this range, are.
SUBCLASS = "PythonSubclass"


def in_order(ops: Table) -> tuple[np.ndarray, np.ndarray]:
    """(rows (n,) thread by thread by start, outer ops first; row of the op around each op (n,), -1 none).

    Equal starts, as torch 1.12 has of neighbours too with its whole us: the lower External id first, which
    grows with time; without ids the longer op.
    """
    parent = np.full(len(ops), -1, dtype=np.int64)
    began = ops.external_id if (ops.external_id >= 0).all() else np.zeros(len(ops), dtype=np.int64)
    order = np.lexsort((-ops.dur_ns, began, ops.start_ns, ops.tid, ops.pid))
    threads = np.stack([ops.pid[order], ops.tid[order]])
    cuts = np.flatnonzero((threads[:, 1:] != threads[:, :-1]).any(axis=0)) + 1
    for rows in np.split(order, cuts):
        inside = enclosing(spans(ops.start_ns[rows], ops.dur_ns[rows]))
        parent[rows] = np.where(inside >= 0, rows[inside], -1)
    return order, parent


def segments_of_ops(ts_ns: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """For times (n,): 2 f + 1 inside forward f, 2 f in the gap before it; marks (m, 2) by start, disjoint."""
    if not len(marks):
        return np.zeros(len(ts_ns), dtype=np.int64)
    forward = np.searchsorted(marks[:, 0], ts_ns, side="right") - 1
    inside = (forward >= 0) & (ts_ns < marks[forward, 1])
    segment: np.ndarray = 2 * (forward + 1) - inside
    return segment


def segments_of_records(recorded: Sequence[RecordedOp]) -> list[int]:
    """The same numbers for recorded calls, in their order."""
    segments, forward = [], -1
    for op in recorded:
        forward = max(forward, op.forward)
        segments.append(2 * op.forward + 1 if op.forward >= 0 else 2 * (forward + 1))
    return segments


def align(ops: Table, names: np.ndarray, marks: np.ndarray, recorded: Sequence[RecordedOp]) -> np.ndarray:
    """Index into `recorded` (n,) for each row of `ops` (n,), -1 for ops without a recorded call.

    names: the ops' names (n,). Only the thread that runs the forwards (or has most ops) is aligned.
    """
    call_of_op = np.full(len(ops), -1, dtype=np.int64)
    if not len(ops) or not recorded:
        return call_of_op
    order, parent = in_order(ops)
    words = np.array([ALIASES.get(name, name) for name in names], dtype=object)
    called = [ALIASES.get(op.name, op.name) for op in recorded]
    order = order[visible(order, parent, words, (ops.start_ns, ops.dur_ns), set(called))]
    order = order[ops.tid[order] == _main_thread(ops, marks)]
    segment = segments_of_ops(ops.start_ns[order], marks)
    calls: dict[int, list[int]] = defaultdict(list)
    for index, number in enumerate(segments_of_records(recorded)):
        calls[number].append(index)
    for number, indices in calls.items():
        rows = order[segment == number]
        op_index, call_index = common(words[rows].tolist(), [called[index] for index in indices])
        call_of_op[rows[op_index]] = np.array(indices, dtype=np.int64)[call_index]
    return call_of_op


def visible(
    order: np.ndarray,
    parent: np.ndarray,
    words: np.ndarray,
    times_ns: tuple[np.ndarray, np.ndarray],
    called: set[str],
) -> np.ndarray:
    """Which of the rows `order` (n,), outer ops first, can have been recorded (n,).

    times_ns: starts and durations. An op that begins where the one around it ends, or that is as long, may
    be its neighbour, because torch 1.12 has whole microseconds: the recorded calls decide.
    """
    ts_ns, dur_ns = times_ns
    end_ns = ts_ns + dur_ns
    wrapper = np.zeros(len(parent), dtype=bool)
    wrapper[parent[(words == SUBCLASS) & (parent >= 0)]] = True
    recordable = np.array([word in called for word in words], dtype=bool) & ~wrapper
    # One overload may be a composite of another of its name (where): such an op hides nothing.
    inside = np.flatnonzero(parent >= 0)
    nested = inside[words[inside] == words[parent[inside]]]
    opaque = recordable.copy()
    opaque[parent[nested]] = False
    hidden = np.zeros(len(parent), dtype=bool)
    for row in order.tolist():
        above = parent[row]
        while above >= 0 and ts_ns[row] >= end_ns[above]:
            above = parent[above]
        hidden[row] = above >= 0 and (hidden[above] or (opaque[above] and dur_ns[above] > dur_ns[row]))
    visible_rows: np.ndarray = (recordable & ~hidden)[order]
    return visible_rows


def common(left: Sequence[str], right: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Indices (k,) into both sequences of one longest common subsequence.

    Cost: the product of the lengths.
    """
    numbers: dict[str, int] = {}
    a = np.array([numbers.setdefault(word, len(numbers)) for word in left], dtype=np.int64)
    b = np.array([numbers.setdefault(word, len(numbers)) for word in right], dtype=np.int64)
    best = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int32)
    for row, word in enumerate(a):
        step = np.maximum(best[row, 1:], best[row, :-1] + (b == word))
        np.maximum.accumulate(step, out=best[row + 1, 1:])
    return _back(best, a, b)


def _back(best: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walk back through the table of lengths; of several matches the last one is taken."""
    row, column, pairs = len(a), len(b), []
    while row and column:
        if a[row - 1] == b[column - 1] and best[row, column] == best[row - 1, column - 1] + 1:
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif best[row - 1, column] == best[row, column]:
            row -= 1
        else:
            column -= 1
    matches = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return matches[:, 0], matches[:, 1]


def _main_thread(ops: Table, marks: np.ndarray) -> int:
    inside = segments_of_ops(ops.start_ns, marks) % 2 == 1
    tids, counts = np.unique(ops.tid[inside] if inside.any() else ops.tid, return_counts=True)
    return int(tids[counts.argmax()])


def working_ops(names: np.ndarray, parent: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """Rows (n,) of the ops that own work, by start: known workers, and ops without a worker inside."""
    works = ~np.array([moves_no_data(name) for name in names], dtype=bool)
    works_alone = np.array([works_itself(name) for name in names], dtype=bool)
    inside_own, has_worker = _surroundings(works, works_alone, parent)
    rows = np.flatnonzero(works & ~inside_own & (works_alone | ~has_worker))
    by_start: np.ndarray = rows[np.argsort(ts_ns[rows], kind="stable")]
    return by_start


def _surroundings(
    works: np.ndarray, works_alone: np.ndarray, parent: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(lies inside an op that works itself (n,), has a working op inside (n,)).

    Climbs from every op to the op around it, all ops at once, until no op is left below another.
    """
    inside_own, has_worker = np.zeros(len(works), dtype=bool), np.zeros(len(works), dtype=bool)
    above = parent.copy()
    climbing = np.flatnonzero(above >= 0)
    while len(climbing):
        up = above[climbing]
        inside_own[climbing] |= works_alone[up]
        has_worker[up[works[climbing]]] = True
        above[climbing] = parent[up]
        climbing = climbing[above[climbing] >= 0]
    return inside_own, has_worker
