"""The processes and ranks of a recording, one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.recordings.capture import (
    PROCESS_TABLES,
    UNCLAIMED,
    Capture,
    Device,
    Meta,
    Process,
    Strings,
    by_process,
)
from lab.recordings.lacks import Lack, missing
from lab.recordings.tables import Table, filled
from lab.stats.columns import distinct

_TEXTS = {"name_id", "text_id", "domain", "dims_id", "types_id", "strides_id", "concrete_id"}


def combined(source: Path, captures: Sequence[Capture]) -> Capture:
    """One capture of all of `captures` (one or more, of one collector); problems name the file they are of.

    A process that two files hold (info["ids"]) counts once, and a problem says so.
    """
    strings, ids_so_far, problems = Strings(), set[str](), list[str]()
    members: list[tuple[Capture, int]] = []
    start = 0
    for capture in captures:
        ids = set(capture.info.get("ids", "").split())
        problems += [f"{capture.source.name}: {text}" for text in capture.problems]
        if ids & ids_so_far:
            problems.append(f"{capture.source.name}: left out, because another file holds the same process")
            continue
        ids_so_far |= ids
        members.append((capture, start))
        start += len(capture.processes)
    parts: dict[str, list[Table]] = {name: [] for name in PROCESS_TABLES}
    devices: list[Device] = []
    lacks: list[Lack] = []
    processes: list[Process] = []
    for capture, start in members:
        ids_of_texts = np.array([*map(strings.id, capture.strings), -1], dtype=np.int32)
        for name, tables in parts.items():
            table: Table = getattr(capture, name)
            texts = {column: ids_of_texts[getattr(table, column)] for column in table if column in _TEXTS}
            tables.append(table.with_columns(**texts, process=table.process + start))
        devices += [replace(device, process=_shifted(device.process, start)) for device in capture.devices]
        lacks += [
            msgspec.structs.replace(lack, process=_shifted(lack.process, start)) for lack in capture.lacks
        ]
        processes += capture.processes
    leader = members[0][0]
    together: dict[str, Any] = {name: filled(PROCESS_TABLES[name], *tables) for name, tables in parts.items()}
    return replace(
        leader,
        source=source,
        **together,
        strings=strings.texts,
        devices=tuple(devices),
        problems=problems,
        info=leader.info | {"ids": " ".join(sorted(ids_so_far))},
        processes=tuple(processes),
        lacks=tuple(lacks),
    )


def _shifted(process: int, start: int) -> int:
    return process + start if process >= 0 else process


_OF_PIDS = ("thread_names", "process_names", "flows", "modules", "gpu_ranges")
# Numbers of devices come from the file: a list is made up to here.
_MOST_DEVICES = 1024


def with_processes(capture: Capture) -> Capture:
    """The capture itself; where no row says whose it is (`process` -1), processes are told apart by pid."""
    tables = [getattr(capture, name) for name in PROCESS_TABLES]
    if any((table.process >= 0).any() for table in tables) or not any(map(len, tables)):
        return capture
    keyed, processes = by_process(tables)
    changed: dict[str, Any] = dict(zip(PROCESS_TABLES, keyed, strict=True))
    return replace(capture, processes=processes, **changed)


def single_processes(capture: Capture) -> dict[int, Capture]:
    """Split into one capture per process that has rows, by the index of the process.

    Rows that no process claims (`process` -1) are the last, as -1. A recording of one process is returned
    as it is. `processes` of each has one entry and `process` of its rows is 0; `lacks`
    and `devices` are those of the process and of the whole recording.
    """
    capture = with_processes(capture)
    used = _used(capture, PROCESS_TABLES)
    if len(used) <= 1 and len(capture.processes) <= 1:
        return {0: capture}
    singles = {}
    for index in [*used[used >= 0].tolist(), *used[used < 0].tolist()]:
        lacks = tuple(lack for lack in capture.lacks if lack.process in (index, -1))
        singles[index] = replace(_only(capture, [index]), lacks=lacks)
    return singles


def process_captures(capture: Capture) -> list[Capture]:
    """The capture process by process, each with its `meta`; torch.profiler's is one, whatever its processes.

    Findings of the recording as a whole count once, for the first.
    """
    if capture.collector == "kineto":
        return [capture]
    captures = []
    # A process made calls, named ranges or has GPU rows; there is one at least.
    for position, index in enumerate(_used(capture, ("ops", "api", "ranges")).tolist() or [0]):
        lacks = _lacks_of(capture, index, with_general=position == 0)
        captures.append(replace(_only(capture, [index]), meta=_meta_of(capture, index), lacks=lacks))
    return captures


def rank_captures(capture: Capture) -> list[Capture]:
    """One capture per rank of a merged file, by the labels that the merge put on its rows, or by the
    processes whose GPU rows it holds; of any other file one per process, as `process_captures`.

    Where every label has one number (TP01, R1) that is the rank; otherwise ranks count in their order.
    `lacks` are those of the whole file.
    """
    members = _members_of_ranks(capture)
    if len(members) < 2:
        return process_captures(capture)
    numbers = [capture.processes[indices[0]].rank for indices in members]
    ranks = numbers if None not in numbers and len(set(numbers)) == len(numbers) else range(len(members))
    captures = []
    for indices, rank in zip(members, ranks, strict=True):
        process = replace(capture.processes[indices[0]], rank=rank, host=capture.meta.host)
        meta = replace(capture.meta, rank=rank, world_size=capture.meta.world_size or len(members))
        captures.append(replace(_only(capture, indices), meta=meta, processes=(process,)))
    return captures


def _members_of_ranks(capture: Capture) -> list[list[int]]:
    """The processes of each rank of a merged file; [] where rows are of one, or nothing tells of which."""
    labels = sorted({process.label for process in capture.processes}, key=_natural)
    if "" not in labels:
        return [
            [index for index, process in enumerate(capture.processes) if process.label == label]
            for label in labels
        ]
    if capture.collector != "kineto" or UNCLAIMED in capture.processes:
        return []
    return [[index] for index in distinct(capture.ops.process).tolist()]


def without_untimed(capture: Capture) -> Capture:
    """The capture without GPU rows whose start and end are 0: their times were never written.

    rocprofv3 writes such for dispatches whose end it has missed (ROCm/rocm-systems#5811), and one of them
    would stretch the recording to decades.
    """
    untimed = (capture.ops.start_ns == capture.meta.base_ns) & (capture.ops.end_ns == capture.meta.base_ns)
    if not untimed.any():
        return capture
    row = np.cumsum(~untimed) - 1
    words = "have no time (start and end are 0) and were left out"
    lack = missing("gpu", "hole", "Z", int(untimed.sum()), len(untimed), "GPU row", words)
    collectives = capture.collectives.where(~untimed[capture.collectives.kernel])
    return replace(
        capture,
        ops=capture.ops.where(~untimed),
        collectives=collectives.with_columns(kernel=row[collectives.kernel]),
        lacks=(*capture.lacks, lack),
    )


def process_label(process: Process, index: int) -> str:
    """`process 1234 (rank 1)`, as far as the recording says; a merged rank's as the merge named it."""
    if process.pid is None or process.label:
        name = process.name or process.label or f"process number {index}"
    else:
        name = f"process {process.pid}"
    details = [f"rank {process.rank}"] if process.rank is not None else []
    details += [process.host] if process.host else []
    return f"{name} ({', '.join(details)})" if details else name


def _used(capture: Capture, names: Iterable[str]) -> np.ndarray:
    return distinct(np.concatenate([distinct(getattr(capture, name).process) for name in names]))


def _only(capture: Capture, indices: Sequence[int]) -> Capture:
    """The rows of these processes (-1: of none) as those of the first, with all lacks of the recording."""
    rows = {name: np.isin(getattr(capture, name).process, indices) for name in PROCESS_TABLES}
    tables: dict[str, Any] = {}
    for name, mask in rows.items():
        table = getattr(capture, name).where(mask)
        tables[name] = table.with_columns(process=np.zeros(len(table), dtype=np.int32))
    devices = tuple(
        device
        for device in capture.devices
        if any(_is_of(device.process, device.pid, index, capture) for index in indices)
    )
    if any(len(getattr(capture, name)) for name in (*_OF_PIDS, "collectives", "comm_ops", "waits")):
        tables |= _torch_tables(capture, rows["ops"], rows["ranges"][capture.operator_rows], tables)
    process = capture.processes[indices[0]] if indices[0] >= 0 else Process()
    return replace(capture, **tables, processes=(process,), devices=devices)


def _torch_tables(
    capture: Capture, ops: np.ndarray, operators: np.ndarray, tables: dict[str, Table]
) -> dict[str, Table]:
    """Select from the tables that torch.profiler alone has, by masks of `ops` and `operators`."""
    pids = np.concatenate([tables["api"].pid, tables["ranges"].pid])
    rows_of_pids = {name: getattr(capture, name) for name in _OF_PIDS}
    rows_of_pids = {name: table.where(np.isin(table.pid, pids)) for name, table in rows_of_pids.items()}
    for name, mask, column in (("collectives", ops, "kernel"), ("comm_ops", operators, "op")):
        table = getattr(capture, name)
        table = table.where(mask[getattr(table, column)])
        row = np.cumsum(mask) - 1
        rows_of_pids[name] = table.with_columns(**{column: row[getattr(table, column)]})
    return rows_of_pids | {"waits": capture.waits.where(np.isin(capture.waits.corr, tables["api"].corr))}


def _is_of(process: int, pid: int, index: int, capture: Capture) -> bool:
    """Whether a device that names its process by index or pid (-1: all of them) is one of this process."""
    if process >= 0:
        return process == index
    return pid < 0 or index < 0 or capture.processes[index].pid in (None, pid)


def _lacks_of(capture: Capture, process: int, *, with_general: bool) -> tuple[Lack, ...]:
    """The process' findings, and those of the recording as a whole where wanted."""
    return tuple(
        msgspec.structs.replace(lack, process=0 if lack.process >= 0 else -1)
        for lack in capture.lacks
        if lack.process == process or (lack.process < 0 and with_general)
    )


def _meta_of(capture: Capture, index: int) -> Meta:
    by_number = {
        device.device: device
        for device in capture.devices
        if device.process in (-1, index) and 0 <= device.device < _MOST_DEVICES
    }
    devices = [by_number.get(number) for number in range(max(by_number, default=-1) + 1)]
    process = capture.processes[index] if index < len(capture.processes) else Process()
    return Meta(
        rank=process.rank,
        host=process.host,
        vendor=capture.info.get("vendor", "nvidia" if capture.collector == "nsys" else "none"),
        devices=tuple(device.name if device else "" for device in devices),
        num_sms=tuple((device.num_sms or 0) if device else 0 for device in devices),
    )


def _natural(label: str) -> list[tuple[bool, int, str]]:
    """A key that sorts TP2 before TP10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", label)]
