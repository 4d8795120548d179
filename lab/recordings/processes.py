"""The processes of a recording, one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lab.recordings.capture import Capture, Process, by_process
from lab.recordings.tables import Table
from lab.stats.columns import distinct

_TABLES = ("ops", "api", "ranges", "sync", "osrt", "nodes")
_OF_PROCESSES = (*_TABLES, "counters")  # the last has no pid


def with_processes(capture: Capture) -> Capture:
    """The capture itself; where no row says whose it is (`process` -1), processes are told apart by pid."""
    tables = [getattr(capture, name) for name in _TABLES]
    if any((table.process >= 0).any() for table in tables) or not any(map(len, tables)):
        return capture
    keyed, processes = by_process(tables)
    changed: dict[str, Any] = dict(zip(_TABLES, keyed, strict=True))
    return replace(capture, processes=processes, **changed)


def single_processes(capture: Capture) -> dict[int, Capture]:
    """For each process that has rows, by its index, a capture of its rows alone.

    Rows that no process claims (`process` -1) are the last, as -1. A recording of one process is returned
    as it is. `processes` of each has one entry and `process` of its rows is 0; `lacks`
    and `devices` are those of the process and of the whole recording.
    """
    capture = with_processes(capture)
    found = distinct(np.concatenate([distinct(getattr(capture, name).process) for name in _OF_PROCESSES]))
    if len(found) <= 1 and len(capture.processes) <= 1:
        return {0: capture}
    indices = [*found[found >= 0].tolist(), *found[found < 0].tolist()]
    return {index: only_process(capture, index) for index in indices}


def only_process(capture: Capture, index: int) -> Capture:
    """The rows of one process, as the process 0 of a capture of its own."""
    rows: dict[str, Any] = {name: _rows_of(getattr(capture, name), index) for name in _OF_PROCESSES}
    return replace(
        capture,
        **rows,
        processes=(capture.processes[index] if index >= 0 else Process(),),
        lacks=tuple(lack for lack in capture.lacks if lack.process in (index, -1)),
        devices=tuple(one for one in capture.devices if _is_of(one.process, one.pid, index, capture)),
    )


def _rows_of(table: Table, index: int) -> Table:
    rows = table.where(table.process == index)
    return Table({**rows.as_dict(), "process": np.zeros(len(rows), dtype=np.int32)})


def _is_of(process: int, pid: int, index: int, capture: Capture) -> bool:
    """Whether a device that names its process by index or pid (-1: all of them) is one of this process."""
    if process >= 0:
        return process == index
    return pid < 0 or index < 0 or capture.processes[index].pid in (None, pid)


def process_label(process: Process, index: int) -> str:
    """`process 1234 (rank 1)`, as far as the recording says."""
    name = f"process {process.pid}" if process.pid is not None else f"process number {index}"
    details = [f"rank {process.rank}"] if process.rank is not None else []
    details += [process.host] if process.host else []
    return f"{name} ({', '.join(details)})" if details else name
