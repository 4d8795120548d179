"""Which process launched which GPU operation of a merged trace."""

from __future__ import annotations

import numpy as np

from lab.core.words import plural
from lab.recordings.tables import Table, Trace
from lab.stats.columns import distinct, distinct_rows

MOST_PROCESSES = 1024  # of one file; more are not told apart


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
