"""A trace of torch.profiler in the schema of a capture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lab.perfmodel.products import product_flops
from lab.recordings.capture import (
    API_COLUMNS,
    COPY_KINDS,
    MEMORY_KINDS,
    OP,
    OPS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    SYNC_COLUMNS,
    Capture,
    Device,
    Process,
    Strings,
    by_process,
    filled,
)
from lab.recordings.owners import labels_of_pids, processes_of_kernels, rank_of_label
from lab.recordings.tables import Schema, Table, Trace, concat
from lab.recordings.views import gemm_instances

_COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
_LONG = {
    "HtoD": "Host-to-Device",
    "DtoH": "Device-to-Host",
    "DtoD": "Device-to-Device",
    "HtoH": "Host-to-Host",
    "PtoP": "Peer-to-Peer",
}


def from_kineto(trace: Trace) -> Capture:
    """The capture of a torch.profiler trace: annotations and CPU operators become ranges.

    Kernels of a Kineto trace carry no process id. In a file of one process they are its own; in a merged
    file their process follows from the calls (`owners`). GPU-side annotations are left out, because the
    projection computes them again.
    """
    words = Strings(trace.strings)
    (api, ranges), processes = by_process(
        [_renamed(trace.runtime, API_COLUMNS, corr=trace.runtime.correlation), _ranges_of(trace, words)]
    )
    pids = np.array([-1 if process.pid is None else process.pid for process in processes], dtype=np.int64)
    process, problems = processes_of_kernels(trace, api, pids)
    if (process < 0).any():
        processes = (*processes, Process(name="unknown"))
        process = np.where(process < 0, len(processes) - 1, process)
    return Capture(
        source=trace.source,
        collector="kineto",
        version=trace.meta.torch_version,
        schema=None,
        ops=_ops_of(trace, process, processes),
        api=api,
        ranges=ranges,
        sync=concat([], SYNC_COLUMNS),
        strings=words.texts,
        devices=tuple(Device(device=i, name=name) for i, name in enumerate(trace.meta.devices)),
        problems=[*trace.problems, *problems],
        info={"python frames": "recorded"} if trace.meta.stacks else {},
        processes=_described(trace, processes),
        lacks=trace.lacks,
    )


def _described(trace: Trace, processes: tuple[Process, ...]) -> tuple[Process, ...]:
    """The processes with the trace's rank and host, which are one process's; with their names, if several."""
    if len(processes) == 1:
        return (replace(processes[0], rank=trace.meta.rank, host=trace.meta.host),)
    names = dict(zip(trace.processes.pid.tolist(), trace.text(trace.processes.name_id), strict=True))
    names |= {pid: trace.strings[-2 - pid] for pid in trace.runtime.pid.tolist() if pid <= -2}
    labels = labels_of_pids(trace)
    pids = [-1 if process.pid is None else process.pid for process in processes]
    return tuple(
        replace(
            process,
            name=process.name or names.get(pid) or labels.get(pid) or None,
            rank=rank_of_label(labels.get(pid, "")),
        )
        for process, pid in zip(processes, pids, strict=True)
    )


def _ops_of(trace: Trace, process: np.ndarray, processes: tuple[Process, ...]) -> Table:
    kernels = trace.kernels
    pids = np.array([-1 if one.pid is None else one.pid for one in processes], dtype=np.int64)
    same = {name: getattr(kernels, name) for name in OPS_COLUMNS if name in set(kernels)}
    copies = {name: codes[kernels.name_id] for name, codes in copy_kinds(trace.strings).items()}
    return filled(
        OPS_COLUMNS,
        len(kernels),
        same
        | {
            "start_ns": kernels.ts_ns,
            "end_ns": kernels.ts_ns + kernels.dur_ns,
            "corr": kernels.correlation,
            "process": process,
            "pid": pids[process],
            "dynamic_smem_bytes": kernels.smem_bytes,
            **copies,
        },
    )


def copy_kinds(names: Sequence[str]) -> dict[str, np.ndarray]:
    """nsys' numbers for what Kineto writes into a name such as `Memcpy HtoD (Pageable -> Device)`.

    Columns (n + 1,) copy_kind, src_kind and dst_kind by name; -1 for other names, and at the end.
    """
    found = [_COPY.match(text) for text in names]
    columns = {}
    for name, group, known in (
        ("copy_kind", 1, COPY_KINDS),
        ("src_kind", 2, MEMORY_KINDS),
        ("dst_kind", 3, MEMORY_KINDS),
    ):
        numbers = {text: number for number, text in known.items()}
        codes = [numbers.get(_LONG.get(one[group], one[group]), -1) if one else -1 for one in found]
        columns[name] = np.array([*codes, -1], dtype=np.int16)
    return columns


def _ranges_of(trace: Trace, words: Strings) -> Table:
    user = trace.ranges.where(~trace.ranges.on_gpu)
    parts = []
    unknown = np.full(len(user), -1)
    for table, kind, more in (
        (user, PUSH_POP, {"seq": unknown, "flops": unknown}),
        (trace.ops, OP, {"seq": trace.ops.sequence, "flops": _flops(trace)}),
    ):
        names, _ = words.stripped(table.name_id)
        kinds = np.full(len(table), kind)
        parts.append(_renamed(table, RANGE_COLUMNS, name_id=names, text_id=table.name_id, kind=kinds, **more))
    return concat([{name: getattr(part, name) for name in RANGE_COLUMNS} for part in parts], RANGE_COLUMNS)


def _flops(trace: Trace) -> np.ndarray:
    """FLOPs (n,) of each row of `ops` that is a GEMM on the GPU; -1 for others and for unknown shapes."""
    gemms = gemm_instances(trace)
    b, m, n, k = (getattr(gemms, name).astype(np.float64) for name in "BMNK")
    known = (b >= 0) & (m >= 0) & (n >= 0) & (k >= 0)
    flop = product_flops(b, m, n, k, gemms.bias)
    flops = np.full(len(trace.ops), -1, dtype=np.int64)
    flops[gemms.op_row] = np.where(known & (flop < 2.0**62), flop, -1).astype(np.int64)
    return flops


def _renamed(table: Table, schema: Schema, **more: np.ndarray) -> Table:
    same = {name: getattr(table, name) for name in schema if name in set(table)}
    times = {"start_ns": table.ts_ns, "end_ns": table.ts_ns + table.dur_ns}
    return filled(schema, len(table), same | times | more)
