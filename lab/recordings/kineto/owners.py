"""Which process launched which GPU operation of a merged trace."""

from __future__ import annotations

import numpy as np

from lab.core.words import plural
from lab.recordings.tables import Table, Trace

MOST_PROCESSES = 1024  # of one file; more are not told apart


def owners(trace: Trace, api: Table, num_processes: int) -> tuple[np.ndarray, list[str]]:
    """The process (n,) of each row of `trace.kernels`, -1 where it is not known; and what was odd.

    One process owns everything. Among several, an operation belongs to the process that made a call of its
    correlation id; where several did (numbers repeat between merged files), to the one that owns its row in
    the file: the process of all operations of that row that only one process can have launched, or else
    the only process that launched every operation of the row before it ran.
    """
    kernels = trace.kernels
    if num_processes == 1 or not len(kernels):
        return np.zeros(len(kernels), dtype=np.int64), []
    callers = np.unique(api.process[api.corr >= 0])
    if len(callers) > MOST_PROCESSES:
        return np.full(len(kernels), -1), [_unknown(len(callers), len(kernels))]
    rows, row_of, size = np.unique(kernels.pid, return_inverse=True, return_counts=True)
    one, all_of_row = _Only(len(kernels)), _Only(len(rows))
    for process in callers.tolist():
        called = _called(kernels, api, process)
        one.add(called, process)
        all_of_row.add(np.bincount(row_of[called], minlength=len(rows)) == size, process)
    found, owner = one.found(), all_of_row.found()
    for row, certain in _certain(found, row_of):
        owner[row] = certain
    found = np.where(found >= 0, found, owner[row_of])
    lost = int((found < 0).sum())
    return found, [_unknown(len(callers), lost)] if lost else []


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
    pairs = np.unique(np.stack([row_of[known], found[known]], axis=1), axis=0)
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
