"""Who owns a launch: the process that made the call, and the operator around it. Nothing else decides it.

A recording of one process says it by ids. Files of several processes (merges of ranks, servers with
several workers) repeat the ids of every process, so `settled` gives each process numbers of its own once,
when the file is read; whoever joins by id afterwards is right.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import OP, UNCLAIMED, Capture, Process, by_process
from lab.recordings.lacks import Axis, Lack, doubt
from lab.recordings.tables import Table
from lab.stats.columns import distinct, distinct_rows
from lab.stats.intervals import enclosing

MOST_PROCESSES = 1024  # of one file; more are not told apart
# Stands for a number that several processes have and nothing tells apart: it joins nothing, proves no loss.
AMBIGUOUS = -2
# As merges name the rows of a rank: "[R3] rank 3 GPU 0", "[TP01] 4000", "[TP00-DP01] 0", "rank 3".
_PART = r"[A-Za-z]+[- _]?\d{1,6}"
_LABEL = re.compile(rf"\[({_PART}(?:[-_ ,]+{_PART})*)\]|(r(?:ank)? ?\d{{1,6}})\b", re.IGNORECASE)
_NUMBER = re.compile(r"[A-Za-z]+[- _]?(\d{1,6})")


def label_of(text: str) -> str:
    """The label that a merge put before the name or id of a rank's rows; "" without one."""
    match = _LABEL.match(text)
    return (match[1] or match[2]) if match else ""


def rank_of_label(label: str) -> int | None:
    """The rank that a label names; None for "" and for a label of several dimensions (TP00-DP01)."""
    match = _NUMBER.fullmatch(label)
    return int(match[1]) if match else None


def settled(capture: Capture) -> Capture:
    """Give the rows of a Kineto file their process, and equal ids of several processes numbers of their own.

    Kineto writes no process for a GPU row: `ops.pid` is that of its row in the file, and becomes the host's.
    Where times and rows cannot tell whose a GPU row is, its ids and those of the calls in question become
    AMBIGUOUS and `lacks` say so.
    """
    (api, ranges), processes = by_process([capture.api, capture.ranges])
    pids = np.array([-1 if process.pid is None else process.pid for process in processes], dtype=np.int64)
    labels = _labels_of_pids(capture)
    owner, problems = _processes_of_rows(capture.ops, api, pids, labels)
    processes = _described(capture, processes, labels)
    if (owner < 0).any():
        processes, pids = (*processes, UNCLAIMED), np.append(pids, -1)
    process = np.where(owner < 0, len(processes) - 1, owner)
    ops = capture.ops.with_columns(process=process.astype(np.int32), pid=pids[process])
    capture = replace(
        capture,
        ops=ops,
        api=api,
        ranges=ranges,
        processes=processes,
        problems=[*capture.problems, *problems],
    )
    operators = capture.operators
    callers = len(distinct(api.process))
    if not 2 <= callers <= MOST_PROCESSES:
        return capture
    # Ids that do not repeat join right as they are.
    if not (_repeat(api.corr, api.process) or _repeat(operators.external_id, operators.process)):
        return capture
    return _with_ids_apart(capture, owner)


def _labels_of_pids(capture: Capture) -> dict[int, str]:
    """pid, as in the tables -> the label of its rank: from a text pid, its process' name or its labels."""
    labels: dict[int, str] = {}
    names = capture.process_names
    for row, pid in enumerate(names.pid.tolist()):
        for text_id in (names.name_id[row], names.label_id[row]):
            if label := label_of(capture.name(int(text_id))):
                labels.setdefault(pid, label)
    pids = [distinct(table.pid) for table in (capture.ops, capture.api, capture.ranges)]
    for pid in distinct(np.concatenate(pids)).tolist():
        # A text pid stands as -2 minus its index in `strings`.
        if pid <= -2 and (label := label_of(capture.strings[-2 - pid])):
            labels[pid] = label
    return labels


def _described(
    capture: Capture, processes: tuple[Process, ...], labels: dict[int, str]
) -> tuple[Process, ...]:
    """The processes with the recording's rank and host, which are one process's; with names, if several."""
    if len(processes) == 1:
        return (replace(processes[0], rank=capture.meta.rank, host=capture.meta.host),)
    names = dict(
        zip(
            capture.process_names.pid.tolist(),
            capture.text(capture.process_names.name_id).tolist(),
            strict=True,
        )
    )
    described = []
    for process in processes:
        pid = -1 if process.pid is None else process.pid
        name = capture.strings[-2 - pid] if pid <= -2 else names.get(pid)
        label = labels.get(pid, "")
        described.append(
            Process(
                pid=pid if pid >= 0 else None,
                rank=rank_of_label(label),
                name=name or label or None,
                label=label,
            )
        )
    return tuple(described)


def _with_ids_apart(capture: Capture, owner: np.ndarray) -> Capture:
    """The capture with each number in one process; owner (n,): of the GPU rows, -1 where it is not known."""
    ops, api, ranges = capture.ops, capture.api, capture.ranges
    unclear = (owner < 0) & (ops.corr >= 0) & np.isin(ops.corr, api.corr)
    in_question = np.isin(api.corr, ops.corr[unclear])
    # A row whose call is not in the file has a number of its own: a loss, not a doubt.
    launcher = np.where((owner < 0) & ~unclear, len(capture.processes), owner)
    api_corr, ops_corr = _renumbered(
        (api.corr, np.where(in_question, -1, api.process)),
        (ops.corr, launcher),
    )
    is_operator = ranges.kind == OP
    ranges_id, api_id, ops_id = _renumbered(
        (np.where(is_operator, ranges.external_id, -1), ranges.process),
        (api.external_id, api.process),
        (ops.external_id, launcher),
    )
    return replace(
        capture,
        api=api.with_columns(corr=api_corr, external_id=api_id),
        ranges=ranges.with_columns(external_id=ranges_id),
        ops=ops.with_columns(corr=ops_corr, external_id=ops_id),
        waits=capture.waits.where(~np.isin(capture.waits.corr, api.corr)),
        lacks=(*capture.lacks, *_unclear(int(unclear.sum()), len(ops), len(distinct(api.process)))),
    )


def _repeat(numbers: np.ndarray, process: np.ndarray) -> bool:
    """Whether any number belongs to more than one process."""
    used = numbers >= 0
    pairs = distinct_rows(np.stack([numbers[used], process[used]], axis=1))[0]
    return len(pairs) > len(distinct(pairs[:, 0])) if len(pairs) else False


def _renumbered(*columns: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
    """(numbers (n,), process (n,)) of several tables -> numbers (n,), equal only where both were equal.

    In each process the order stays. Without a process (-1) a number becomes AMBIGUOUS; -1 stays.
    """
    numbers = np.concatenate([number for number, _ in columns])
    process = np.concatenate([owner for _, owner in columns])
    fresh = np.where(numbers >= 0, AMBIGUOUS, numbers)
    clear = (numbers >= 0) & (process >= 0)
    # 0 stays free: recorders write it for "none".
    fresh[clear] = distinct_rows(np.stack([process[clear], numbers[clear]], axis=1))[1] + 1
    return np.split(fresh, np.cumsum([len(number) for number, _ in columns])[:-1])


def _unclear(count: int, rows: int, processes: int) -> tuple[Lack, ...]:
    if not count:
        return ()
    text = (
        f"{count:,} of {plural(rows, 'GPU row')} could belong to several of "
        f"{plural(processes, 'process')} in this file, which use the same ids at the same times: they are "
        "attributed to none; read the files before they were merged"
    )
    axes: tuple[Axis, ...] = ("host", "gpu")
    return tuple(doubt(axis, "H", text, n=count, of=rows) for axis in axes)


def _processes_of_rows(
    ops: Table, api: Table, pids: np.ndarray, labels: dict[int, str]
) -> tuple[np.ndarray, list[str]]:
    """The index in `pids` of the process that launched each GPU row (n,), and what was odd.

    Where a merge labelled the rows of each rank, the label decides; otherwise the calls do.
    """
    by_label: dict[str, int | None] = {}
    for index in distinct(api.process).tolist():
        label = labels.get(int(pids[index]), "")
        # A label that two processes share decides nothing.
        by_label[label] = None if label in by_label else index
    rows = distinct(ops.pid).tolist()
    wanted = [by_label.get(labels.get(pid, "")) for pid in rows]
    # A file with labels on some rows only is judged by its calls.
    if "" not in by_label and None not in wanted:
        indices = np.array(wanted, dtype=np.int64)
        return indices[np.searchsorted(np.array(rows), ops.pid)], []
    return _by_calls(ops, api, len(pids))


def operators_of_launches(
    operators: Table, external_id: np.ndarray, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the row of `operators` around each launch (n,), -1 for none, and what the id itself named (n,).

    operators: pid, tid, start_ns, end_ns, external_id. pid, tid, ts_ns: of the launching call. The recorder's
    id counts only where its operator encloses the launch on the launch's thread: old versions of Kineto write
    a kernel's own correlation id where no operator launched it (pytorch/kineto#1001). Otherwise the innermost
    operator around the call owns it.
    """
    named = first_index(external_id, operators.external_id)
    if len(operators):
        encloses = (operators.start_ns[named] <= ts_ns) & (ts_ns <= operators.end_ns[named])
        same_thread = (operators.tid[named] == tid) & (operators.pid[named] == pid)
        named = np.where(encloses & same_thread, named, -1)
    owner = named.copy()
    unnamed = np.flatnonzero(named < 0)
    if len(unnamed):
        owner[unnamed] = innermost(operators, pid[unnamed], tid[unnamed], ts_ns[unnamed])
    return owner, named >= 0


def innermost(slices: Table, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """Row of the innermost slice that runs at each (pid, tid, time) (n,), or -1."""
    result, parent = np.full(len(ts_ns), -1, dtype=np.int64), parents(slices)
    for thread_pid, thread_tid in sorted(set(zip(pid.tolist(), tid.tolist(), strict=True))):
        rows = np.flatnonzero((slices.pid == thread_pid) & (slices.tid == thread_tid))
        # Of slices that begin together the longer one is the outer one.
        rows = rows[np.lexsort((-slices.end_ns[rows], slices.start_ns[rows]))]
        asked = np.flatnonzero((pid == thread_pid) & (tid == thread_tid))
        result[asked] = innermost_of(slices, rows, parent, ts_ns[asked], ts_ns[asked])
    return result


def innermost_of(
    slices: Table, rows: np.ndarray, parent: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
) -> np.ndarray:
    """The innermost of one thread's `rows` around each span (n,), or -1. rows nest, in order of their starts,
    the longest first; parent: as `slices`."""
    index = np.searchsorted(slices.start_ns[rows], start_ns, side="right") - 1
    # Start at the slice that began last and climb: a slice around the span lies around that one, too.
    row: np.ndarray = np.append(rows, -1)[index]
    over = np.flatnonzero(row >= 0)
    while len(over := over[slices.end_ns[row[over]] < end_ns[over]]):
        row[over] = parent[row[over]]
        over = over[row[over] >= 0]
    return row


def parents(slices: Table) -> np.ndarray:
    """Row of the innermost slice around each one on its own thread (n,), or -1."""
    order = np.lexsort((-slices.end_ns, slices.start_ns, slices.tid, slices.pid))
    pid, tid = slices.pid[order], slices.tid[order]
    edges = np.flatnonzero((np.diff(pid) != 0) | (np.diff(tid) != 0)) + 1
    parent = np.full(len(order), -1, dtype=np.int64)
    for rows in np.split(order, edges) if len(order) else ():
        above = enclosing(np.stack([slices.start_ns[rows], slices.end_ns[rows]], axis=1))
        parent[rows] = np.where(above >= 0, rows[above], -1)
    return parent


def nearest_ancestor(parent: np.ndarray, start: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The nearest wanted slice among each start row (n,) and its ancestors, or -1."""
    ancestor: np.ndarray = start.copy()
    todo = np.flatnonzero(ancestor >= 0)
    while len(todo := todo[~wanted[ancestor[todo]]]):
        ancestor[todo] = parent[ancestor[todo]]
        todo = todo[ancestor[todo] >= 0]
    return ancestor


def first_index(wanted: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Index in `among` (m,) of each `wanted` (n,): the first of equals; -1 for none and for negative ids."""
    if len(among) == 0:
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(among, kind="stable")
    index = np.minimum(np.searchsorted(among[order], wanted), len(among) - 1)
    nearest = order[index]
    return np.where((among[nearest] == wanted) & (wanted >= 0), nearest, -1)


def _by_calls(ops: Table, api: Table, num_processes: int) -> tuple[np.ndarray, list[str]]:
    """The process (n,) of each GPU row, -1 where it is not known; and what was odd.

    One process owns everything. Among several, an operation belongs to the process that made a call of its
    correlation id before it ran. Numbers repeat between merged files; where several processes called, an
    operation belongs to the one that is left when the others have theirs, or else to the only process that
    owns anything in its row of the file, unless that row has the number twice.
    """
    if num_processes == 1 or not len(ops):
        return np.zeros(len(ops), dtype=np.int64), []
    callers = distinct(api.process[api.corr >= 0])
    if len(callers) > MOST_PROCESSES:
        return np.full(len(ops), -1), [_unknown(len(callers), len(ops))]
    rows, row_of, size = np.unique(ops.pid, return_inverse=True, return_counts=True)
    only_caller, all_of_row = _Only(len(ops)), _Only(len(rows))
    for process in callers.tolist():
        called = _called(ops, api, process)
        only_caller.add(called, process)
        all_of_row.add(np.bincount(row_of[called], minlength=len(rows)) == size, process)
    launcher, owner = _the_one_left(only_caller.values(), ops.corr, api), all_of_row.values()
    for row, certain in _certain(launcher, row_of):
        owner[row] = certain
    # A number that stands twice in one row of the file may be of two processes.
    alone = _alone(np.stack([row_of, ops.corr], axis=1))
    launcher = np.where((launcher < 0) & alone, owner[row_of], launcher)
    lost = int((launcher < 0).sum())
    return launcher, [_unknown(len(callers), lost)] if lost else []


def _alone(keys: np.ndarray) -> np.ndarray:
    """Which rows (n,) of keys (n, k) occur once."""
    _, position, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    alone: np.ndarray = count[position.ravel()] == 1
    return alone


def _the_one_left(process: np.ndarray, corr: np.ndarray, api: Table) -> np.ndarray:
    """`process` (n,), filled in where as many operations as processes have a number and all but one are known
    to be of different ones."""
    numbers, number_of_row = np.unique(corr, return_inverse=True)
    calls = distinct_rows(np.stack([api.corr, api.process], axis=1)[api.corr >= 0])[0]
    position = np.minimum(np.searchsorted(numbers, calls[:, 0]), len(numbers) - 1)
    calls, position = calls[numbers[position] == calls[:, 0]], position[numbers[position] == calls[:, 0]]
    is_known = process >= 0
    pairs = distinct_rows(np.stack([number_of_row[is_known], process[is_known]], axis=1))[0]
    of_calls, of_rows, of_known = (
        np.bincount(indices, minlength=len(numbers))
        for indices in (position, number_of_row, number_of_row[is_known])
    )
    distinct = np.bincount(pairs[:, 0], minlength=len(numbers))
    clear = (of_calls == of_rows) & (of_known == of_rows - 1) & (distinct == of_known)
    left = np.zeros(len(numbers), dtype=np.int64)
    np.add.at(left, position, calls[:, 1])
    np.subtract.at(left, number_of_row[is_known], process[is_known])
    filled: np.ndarray = np.where(~is_known & clear[number_of_row], left[number_of_row], process)
    return filled


def _unknown(processes: int, operations: int) -> str:
    return (
        f"calls of {plural(processes, 'process')} in one file: {plural(operations, 'operation')} of the GPU "
        "could be of several or of none, and are attributed to none; read the files before they were merged"
    )


class _Only:
    """Collect for each of n things the one process that was added for it; -1 for none and for several."""

    def __init__(self, size: int) -> None:
        self._count, self._process = np.zeros(size, dtype=np.int32), np.full(size, -1, dtype=np.int64)

    def add(self, mask: np.ndarray, process: int) -> None:
        self._count += mask
        self._process[mask] = process

    def values(self) -> np.ndarray:
        only: np.ndarray = np.where(self._count == 1, self._process, -1)
        return only


def _certain(process: np.ndarray, row_of: np.ndarray) -> list[tuple[int, int]]:
    """(row of the file, the process of all its operations that have one; -1 if there are several)."""
    certain = np.flatnonzero(process >= 0)
    pairs = distinct_rows(np.stack([row_of[certain], process[certain]], axis=1))[0]
    rows, heads, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    processes = np.where(count == 1, pairs[heads, 1], -1)
    return list(zip(rows.tolist(), processes.tolist(), strict=True))


def _called(ops: Table, api: Table, process: int) -> np.ndarray:
    """Whether the process made a call with each operation's correlation id (n,) before it ran."""
    calls = np.flatnonzero((api.process == process) & (api.corr >= 0))
    calls = calls[np.argsort(api.start_ns[calls], kind="stable")]
    call = first_index(ops.corr, api.corr[calls])
    # A device's clock may drift: a call may seem to begin a little after what it launched.
    called: np.ndarray = (call >= 0) & (np.append(api.start_ns[calls], 0)[call] <= ops.end_ns)
    return called
