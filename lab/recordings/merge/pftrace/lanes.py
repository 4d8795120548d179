"""Slices of one rank by the row that shows them, and the lanes of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lab.recordings.tables import Table


@dataclass(frozen=True)
class SliceGroup:
    """Slices of one table (n,): position, category and name, and a function for the encoded details."""

    on_gpu: bool
    pid: np.ndarray
    tid: np.ndarray
    table: Table
    categories: np.ndarray
    details: Callable[[int], bytes]


class RowSlices(NamedTuple):
    """The slices of one row of the viewer, by start, longest first: group, row in its table, times."""

    tid: int
    of_group: np.ndarray
    of_row: np.ndarray
    start: np.ndarray
    end: np.ndarray


def rows_by_process(groups: Sequence[SliceGroup]) -> Iterator[tuple[int, list[RowSlices]]]:
    """Each pid with its rows."""
    if not groups:
        return
    sizes = [len(group.table) for group in groups]
    pid = np.concatenate([group.pid for group in groups]).astype(np.int64)
    tid = np.concatenate([group.tid for group in groups])
    start = np.concatenate([group.table.start_ns for group in groups])
    end = start + np.concatenate([group.table.dur_ns for group in groups])
    of_group = np.repeat(np.arange(len(groups)), sizes)
    of_row = np.concatenate([np.arange(size) for size in sizes])
    order = np.lexsort((-end, start, tid, pid))
    for process in np.unique(pid).tolist():
        mine = order[pid[order] == process]
        rows = [mine[tid[mine] == thread] for thread in np.unique(tid[mine]).tolist()]
        yield (
            process,
            [RowSlices(int(tid[at[0]]), of_group[at], of_row[at], start[at], end[at]) for at in rows],
        )


def lanes(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """The lane (n,) of each slice, given by start and longest first, so that slices of one lane only nest.

    A slice goes to the first lane where the last open slice has ended or contains it.
    """
    result = np.zeros(len(start_ns), dtype=np.int64)
    open_ends: list[list[int]] = []
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        for lane, ends in enumerate(open_ends):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or ends[-1] >= end:
                ends.append(end)
                result[row] = lane
                break
        else:
            result[row] = len(open_ends)
            open_ends.append([end])
    return result
