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
from lab.recordings.lacks import Axis, Lack
from lab.recordings.tables import Table, Trace
from lab.stats.columns import distinct, distinct_rows

MOST_PROCESSES = 1024  # of one file; more are not told apart
# Stands for a number that several processes have and nothing tells apart: it joins nothing, proves no loss.
AMBIGUOUS = -2
# As merges name the rows of a rank: "[R3] rank 3 GPU 0", "[TP01] 4000", "[TP00-DP01] 0", "rank 3".
_PART = r"[A-Za-z]+[- _]?\d{1,6}"
_LABEL = re.compile(rf"\[({_PART}(?:[-_ ,]+{_PART})*)\]|(r(?:ank)? ?\d{{1,6}})\b", re.IGNORECASE)
_WITH_PID = ("kernels", "ops", "runtime", "ranges", "threads", "processes", "flows", "modules")
_NUMBER = re.compile(r"[A-Za-z]+[- _]?(\d{1,6})")


def label_of(text: str) -> str:
    """The label that a merge put before the name or id of a rank's rows; "" without one."""
    match = _LABEL.match(text)
    return (match[1] or match[2]) if match else ""


def rank_of_label(label: str) -> int | None:
    """The rank that a label names; None for "" and for a label of several dimensions (TP00-DP01)."""
    match = _NUMBER.fullmatch(label)
    return int(match[1]) if match else None


def labels_of_pids(trace: Trace) -> dict[int, str]:
    """pid, as in the tables -> the label of its rank: from a text pid, its process' name or its labels."""
    labels: dict[int, str] = {}
    for row, pid in enumerate(trace.processes.pid.tolist()):
        for text_id in (trace.processes.name_id[row], trace.processes.label_id[row]):
            if text_id >= 0 and (label := label_of(trace.strings[text_id])):
                labels.setdefault(pid, label)
    for pid in _pids(trace):
        # A text pid stands as -2 minus its index in `strings`.
        if pid <= -2 and (label := label_of(trace.strings[-2 - pid])):
            labels[pid] = label
    return labels


def _pids(trace: Trace) -> list[int]:
    tables = (trace.kernels, trace.runtime, trace.ops, trace.ranges)
    pids: list[int] = distinct(np.concatenate([distinct(table.pid) for table in tables])).tolist()
    return pids


def settled(trace: Trace) -> Trace:
    """The trace with ids that belong to one process each: equal ids of several processes are renumbered.

    The one entry point of every reader of Kineto files. Where times and rows cannot tell whose an operation
    is, its ids and those of the calls in question become AMBIGUOUS and the trace's `lacks` say so.
    """
    pids = distinct(trace.runtime.pid)
    if len(pids) < 2 or len(pids) > MOST_PROCESSES:
        return trace
    pids = distinct(np.concatenate([pids, distinct(trace.ops.pid)]))
    caller = np.searchsorted(pids, trace.runtime.pid)
    author = np.searchsorted(pids, trace.ops.pid)
    if not (_repeat(trace.runtime.correlation, caller) or _repeat(trace.ops.external_id, author)):
        return trace
    api = Table(
        {
            "process": caller,
            "start_ns": trace.runtime.ts_ns,
            "corr": trace.runtime.correlation,
        }
    )
    launcher, _ = processes_of_kernels(trace, api, pids)
    unclear = (launcher < 0) & np.isin(trace.kernels.correlation, trace.runtime.correlation)
    unclear &= trace.kernels.correlation >= 0
    in_question = np.isin(trace.runtime.correlation, trace.kernels.correlation[unclear])
    # A row whose call is not in the file has a number of its own: a loss, not a doubt.
    owner = np.where((launcher < 0) & ~unclear, len(pids), launcher)
    calls_corr, kernels_corr = _renumbered(
        (trace.runtime.correlation, np.where(in_question, -1, caller)),
        (trace.kernels.correlation, owner),
    )
    ops_id, calls_id, kernels_id = _renumbered(
        (trace.ops.external_id, author),
        (trace.runtime.external_id, caller),
        (trace.kernels.external_id, owner),
    )
    known_waits = ~np.isin(trace.waits.correlation, trace.runtime.correlation)
    return replace(
        trace,
        runtime=_with(trace.runtime, correlation=calls_corr, external_id=calls_id),
        ops=_with(trace.ops, external_id=ops_id),
        kernels=_with(trace.kernels, correlation=kernels_corr, external_id=kernels_id),
        waits=trace.waits.where(known_waits),
        lacks=(*trace.lacks, *_unclear(int(unclear.sum()), len(trace.kernels), len(pids))),
    )


def traces_of_ranks(trace: Trace) -> list[Trace]:
    """One trace per rank of a merged file, by the labels that the merge put on its rows; else the trace.

    Where every label has one number (TP01, R1) that is the rank; otherwise ranks count in their order.
    `lacks` are those of the whole file.
    """
    labels = labels_of_pids(trace)
    names = sorted({labels.get(pid, "") for pid in _pids(trace)}, key=_natural)
    if len(names) < 2 or "" in names:
        return [trace]
    numbers = [rank_of_label(name) for name in names]
    distinct_numbers = None not in numbers and len(set(numbers)) == len(numbers)
    ranks = numbers if distinct_numbers else range(len(names))
    return [
        _of_pids(trace, {pid for pid, label in labels.items() if label == name}, rank, len(names))
        for name, rank in zip(names, ranks, strict=True)
    ]


def _natural(label: str) -> list[tuple[bool, int, str]]:
    """A key that sorts TP2 before TP10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", label)]


def _of_pids(trace: Trace, pids: set[int], rank: int | None, num_ranks: int) -> Trace:
    wanted = np.array(sorted(pids), dtype=np.int64)
    kept = {name: np.isin(getattr(trace, name).pid, wanted) for name in _WITH_PID}
    tables = {name: getattr(trace, name).where(mask) for name, mask in kept.items()}
    for name, owner, column in (("collectives", "kernels", "kernel"), ("comm_ops", "ops", "op")):
        table = getattr(trace, name)
        table = table.where(kept[owner][getattr(table, column)])
        row = np.cumsum(kept[owner]) - 1
        tables[name] = _with(table, **{column: row[getattr(table, column)]})
    calls = tables["runtime"].correlation
    return replace(
        trace,
        **tables,
        waits=trace.waits.where(np.isin(trace.waits.correlation, calls)),
        meta=replace(trace.meta, rank=rank, world_size=trace.meta.world_size or num_ranks),
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


def _with(table: Table, **columns: np.ndarray) -> Table:
    return Table(table.as_dict() | columns)


def _unclear(count: int, kernels: int, processes: int) -> tuple[Lack, ...]:
    if not count:
        return ()
    text = (
        f"{count:,} of {plural(kernels, 'GPU row')} could belong to several of "
        f"{plural(processes, 'process')} in this file, which use the same ids at the same times: they are "
        "attributed to none; read the files before they were merged"
    )
    axes: tuple[Axis, ...] = ("host", "gpu")
    return tuple(Lack(axis, "all", "H", -1, count, kernels, None, text, unknown=True) for axis in axes)


def processes_of_kernels(trace: Trace, api: Table, pids: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The index in `pids` of the process that launched each row of `trace.kernels` (n,), and what was odd.

    Where a merge labelled the rows of each rank, the label decides; otherwise the calls do.
    """
    labels = labels_of_pids(trace)
    by_label: dict[str, int | None] = {}
    for index in distinct(api.process).tolist():
        label = labels.get(int(pids[index]), "")
        by_label[label] = None if label in by_label else index
    rows = distinct(trace.kernels.pid).tolist()
    wanted = {pid: by_label.get(labels.get(pid, "")) for pid in rows}
    if "" not in by_label and all(index is not None for index in wanted.values()):
        indices = np.array([wanted[pid] for pid in rows], dtype=np.int64)
        return indices[np.searchsorted(np.array(rows), trace.kernels.pid)], []
    return owners(trace, api, len(pids))


def operators_of_launches(
    ops: Table, external_id: np.ndarray, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Row of `ops` around each launch (n,), -1 for none, and whether the recorder's own id named it (n,).

    ops: pid, tid, ts_ns, dur_ns, external_id. pid, tid, ts_ns: of the launching call. The recorder's id
    counts only where its operator encloses the launch on the launch's thread: old versions of Kineto write a
    kernel's own correlation id where no operator launched it (pytorch/kineto#1001). Otherwise the innermost
    operator around the call owns it.
    """
    named = first_index(external_id, ops.external_id)
    if len(ops):
        begin_ns = ops.ts_ns[named]
        encloses = (begin_ns <= ts_ns) & (ts_ns <= begin_ns + ops.dur_ns[named])
        named = np.where(encloses & (ops.tid[named] == tid) & (ops.pid[named] == pid), named, -1)
    owner = named.copy()
    todo = np.flatnonzero(named < 0)
    if len(todo):
        owner[todo] = innermost(ops, pid[todo], tid[todo], ts_ns[todo])
    return owner, named >= 0


def innermost(ops: Table, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """Row of the innermost op that runs at each (pid, tid, time) (n,), or -1."""
    result = np.full(len(ts_ns), -1, dtype=np.int64)
    for thread in sorted(set(zip(pid.tolist(), tid.tolist(), strict=True))):
        rows, parents = thread_nesting(ops, *thread)
        if len(rows) == 0:
            continue
        asked = np.flatnonzero((pid == thread[0]) & (tid == thread[1]))
        when_ns = ts_ns[asked]
        ends = ops.ts_ns[rows] + ops.dur_ns[rows]
        index = np.searchsorted(ops.ts_ns[rows], when_ns, side="right") - 1
        while (over := (index >= 0) & (ends[index] < when_ns)).any():
            index[over] = parents[index[over]]
        result[asked] = np.where(index >= 0, rows[index], -1)
    return result


def first_index(wanted: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Index in `among` (m,) of each `wanted` (n,): the first of equals; -1 for none and for negative ids."""
    if len(among) == 0:
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(among, kind="stable")
    index = np.minimum(np.searchsorted(among[order], wanted), len(among) - 1)
    nearest = order[index]
    return np.where((among[nearest] == wanted) & (wanted >= 0), nearest, -1)


def thread_nesting(ops: Table, pid: int, tid: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (m,) of one thread by start, longest first, and the index of each one's parent in them, or -1."""
    rows = np.flatnonzero((ops.pid == pid) & (ops.tid == tid))
    rows = rows[np.lexsort((-ops.dur_ns[rows], ops.ts_ns[rows]))]
    ends = (ops.ts_ns[rows] + ops.dur_ns[rows]).tolist()
    parents = np.full(len(rows), -1, dtype=np.int64)
    open_indices: list[int] = []
    for index, end in enumerate(ends):
        while open_indices and ends[open_indices[-1]] < end:
            open_indices.pop()
        parents[index] = open_indices[-1] if open_indices else -1
        open_indices.append(index)
    return rows, parents


def owners(trace: Trace, api: Table, num_processes: int) -> tuple[np.ndarray, list[str]]:
    """The process (n,) of each row of `trace.kernels`, -1 where it is not known; and what was odd.

    One process owns everything. Among several, an operation belongs to the process that made a call of its
    correlation id before it ran. Numbers repeat between merged files; where several processes called, an
    operation belongs to the one that is left when the others have theirs, or else to the only process that
    owns anything in its row of the file, unless that row has the number twice.
    """
    kernels = trace.kernels
    if num_processes == 1 or not len(kernels):
        return np.zeros(len(kernels), dtype=np.int64), []
    callers = distinct(api.process[api.corr >= 0])
    if len(callers) > MOST_PROCESSES:
        return np.full(len(kernels), -1), [_unknown(len(callers), len(kernels))]
    rows, row_of, size = np.unique(kernels.pid, return_inverse=True, return_counts=True)
    one, all_of_row = _Only(len(kernels)), _Only(len(rows))
    for process in callers.tolist():
        called = _called(kernels, api, process)
        one.add(called, process)
        all_of_row.add(np.bincount(row_of[called], minlength=len(rows)) == size, process)
    found, owner = _the_one_left(one.found(), kernels.correlation, api), all_of_row.found()
    for row, certain in _certain(found, row_of):
        owner[row] = certain
    alone = _alone(np.stack([row_of, kernels.correlation], axis=1))
    found = np.where((found < 0) & alone, owner[row_of], found)
    lost = int((found < 0).sum())
    return found, [_unknown(len(callers), lost)] if lost else []


def _alone(keys: np.ndarray) -> np.ndarray:
    """Which rows (n,) of keys (n, k) occur once."""
    _, which, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    alone: np.ndarray = count[which.ravel()] == 1
    return alone


def _the_one_left(found: np.ndarray, corr: np.ndarray, api: Table) -> np.ndarray:
    """`found` (n,), filled in where as many operations as processes have a number, and all but one are known
    to be of different ones."""
    numbers, which = np.unique(corr, return_inverse=True)
    calls = distinct_rows(np.stack([api.corr, api.process], axis=1)[api.corr >= 0])[0]
    at = np.minimum(np.searchsorted(numbers, calls[:, 0]), len(numbers) - 1)
    calls, at = calls[numbers[at] == calls[:, 0]], at[numbers[at] == calls[:, 0]]
    known = found >= 0
    pairs = distinct_rows(np.stack([which[known], found[known]], axis=1))[0]
    of_calls, of_rows, of_known = (
        np.bincount(one, minlength=len(numbers)) for one in (at, which, which[known])
    )
    distinct = np.bincount(pairs[:, 0], minlength=len(numbers))
    clear = (of_calls == of_rows) & (of_known == of_rows - 1) & (distinct == of_known)
    left = np.zeros(len(numbers), dtype=np.int64)
    np.add.at(left, at, calls[:, 1])
    np.subtract.at(left, which[known], found[known])
    filled: np.ndarray = np.where(~known & clear[which], left[which], found)
    return filled


def _unknown(processes: int, operations: int) -> str:
    return (
        f"calls of {plural(processes, 'process')} in one file: {plural(operations, 'operation')} of the GPU "
        "could be of several or of none, and are attributed to none; read the files before they were merged"
    )


class _Only:
    """Of each of n things the only process that was added for it; -1 for none and for several."""

    def __init__(self, size: int) -> None:
        self._count, self._last = np.zeros(size, dtype=np.int32), np.full(size, -1, dtype=np.int64)

    def add(self, mask: np.ndarray, process: int) -> None:
        self._count += mask
        self._last[mask] = process

    def found(self) -> np.ndarray:
        only: np.ndarray = np.where(self._count == 1, self._last, -1)
        return only


def _certain(found: np.ndarray, row_of: np.ndarray) -> list[tuple[int, int]]:
    """(row of the file, the process of all its operations that have one; -1 if there are several)."""
    known = np.flatnonzero(found >= 0)
    pairs = distinct_rows(np.stack([row_of[known], found[known]], axis=1))[0]
    rows, first, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    processes = np.where(count == 1, pairs[first, 1], -1)
    return list(zip(rows.tolist(), processes.tolist(), strict=True))


def _called(kernels: Table, api: Table, process: int) -> np.ndarray:
    """Whether the process made a call with each operation's correlation id (n,) before it ran."""
    calls = np.flatnonzero((api.process == process) & (api.corr >= 0))
    if not len(calls):
        return np.zeros(len(kernels), dtype=bool)
    calls = calls[np.lexsort((api.start_ns[calls], api.corr[calls]))]
    corr = api.corr[calls]
    at = np.minimum(np.searchsorted(corr, kernels.correlation), len(corr) - 1)
    there: np.ndarray = corr[at] == kernels.correlation
    # A device's clock may drift: a call may seem to begin a little after what it launched.
    before: np.ndarray = api.start_ns[calls[at]] <= kernels.ts_ns + kernels.dur_ns
    there &= before
    return there
