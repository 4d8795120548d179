"""A played job as torch.profiler writes it: CUDA and ROCm, now and before October 2024."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.simulator.program import START_NS, Job, Process, Row, Span

CUDA_STREAMS = (7, 20, 24, 28)


def write_kineto(job: Job, path: Path, *, old: bool = False, head: dict[str, Any] | None = None) -> Path:
    """One file with all processes of `job`, of which most files have one."""
    events: list[dict[str, Any]] = []
    for process in job:
        events += (
            _names(process) + _host_events(process, old) + [_gpu(process, row, old) for row in process.rows]
        )
    document = _head(job) | (head or {}) | {"traceEvents": events, "traceName": str(path.name)}
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


def _head(job: Job) -> dict[str, Any]:
    amd, process = job[0].amd, job[0]
    name = "AMD Instinct MI300X" if amd else "NVIDIA H100 80GB HBM3"
    devices = [
        {"id": device, "name": name, "totalGlobalMem": 85520809984, "computeMajor": 9, "computeMinor": 0}
        | {"numSms": 304 if amd else 132}
        for device in range(max(one.device for one in job) + 1)
    ]
    document = {"schemaVersion": 1, "deviceProperties": devices, "record_shapes": 1, "displayTimeUnit": "ms"}
    document |= (
        {"roctracer_version": 4.1} if amd else {"cuda_runtime_version": 13000, "cupti_version": 130001}
    )
    if len(job) == 1 and process.world > 1:
        ranks = list(range(process.world))
        group = {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": process.world,
        }
        document["distributedInfo"] = {
            "backend": "nccl",
            "rank": process.rank,
            "world_size": process.world,
            "pg_count": 1,
            "pg_config": [group | {"ranks": ranks}],
        }
    return document | {"baseTimeNanoseconds": START_NS}


def _us(ns: int) -> float:
    return ns / 1000


def _times(start_ns: int, end_ns: int) -> dict[str, float]:
    """A row without a time has 0 in both fields."""
    return {"ts": _us(start_ns - START_NS) if start_ns else 0, "dur": _us(end_ns - start_ns)}


def _names(process: Process) -> list[dict[str, Any]]:
    head, device = {"ph": "M", "ts": 0, "tid": 0}, process.device
    return [
        head | {"name": "process_name", "pid": _pid(process, process.pid), "args": {"name": "python"}},
        head | {"name": "process_labels", "pid": _pid(process, process.pid), "args": {"labels": "CPU"}},
        head | {"name": "process_labels", "pid": _pid(process, device), "args": {"labels": f"GPU {device}"}},
    ]


def _pid(process: Process, number: int) -> int | str:
    return f"{process.label}{number}" if process.label else number


def _host_events(process: Process, old: bool) -> list[dict[str, Any]]:
    """Operators and ranges share one count, Ev Idx; ids of ranges come after those of operators."""
    spans = [("cpu_op", op) for op in process.ops] + [("user_annotation", span) for span in process.ranges]
    launched = _launched(process.rows) if process.amd else {}
    events = []
    for category, span in spans:
        number = span.external_id or span.event + 1
        arguments = {"External id": number, "Record function id": 0, **_shapes(span), "Ev Idx": span.event}
        events.append(_host_event(process, category, span, arguments))
    for call in process.calls:
        number = call.external_id or (call.corr if old else 0)
        arguments = {"External id": number} if number else {}
        arguments |= {("cid" if process.amd else "cbid"): 211, "correlation": call.corr}
        events.append(_host_event(process, "cuda_runtime", call, arguments | launched.get(call.corr, {})))
    return events


def _launched(rows: list[Row]) -> dict[int, dict[str, Any]]:
    """ROCm writes a kernel's name and geometry to the call that launches it."""
    geometry = {"grid": [64, 1, 1], "block": [256, 1, 1], "shared memory": 0}
    return {
        row.corr: {"kernel": row.name} | geometry for row in rows if row.kind == "kernel" and not row.node
    }


def _host_event(process: Process, category: str, span: Span, arguments: dict[str, Any]) -> dict[str, Any]:
    lane = {
        "ph": "X",
        "cat": category,
        "name": span.name,
        "pid": _pid(process, process.pid),
        "tid": process.pid + span.thread,
    }
    return lane | _times(span.start_ns, span.end_ns) | {"args": arguments}


def _shapes(span: Span) -> dict[str, Any]:
    if not span.sizes:
        return {}
    m, n, k = span.sizes
    return {
        "Concrete Inputs": ["", ""],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
        "Input Strides": [[k, 1], [n, 1]],
        "Input Dims": [[m, k], [k, n]],
    }


def _gpu(process: Process, row: Row, old: bool) -> dict[str, Any]:
    """Rows launched outside of operators have no External id; those of old CUDA have their own number."""
    stream = row.stream if process.amd else CUDA_STREAMS[row.stream]
    number = row.external_id or (row.corr if old else 0)
    arguments: dict[str, Any] = {"External id": number} if number else {}
    arguments |= {"device": process.device, "stream": stream, "correlation": row.corr}
    category, name = "kernel", row.name
    if row.kind != "kernel":
        category = "gpu_memcpy" if row.kind == "copy" else "gpu_memset"
        name = "Memcpy HtoD (Pinned -> Device)" if row.kind == "copy" else "Memset (Device)"
        arguments |= {"bytes": row.size}
    elif process.amd:
        arguments |= {"kind": "Dispatch Kernel"}
    else:
        arguments |= {"context": 1, "registers per thread": 64, "shared memory": 0}
        arguments |= {"grid": [64, 1, 1], "block": [256, 1, 1]}
    lane = {"ph": "X", "cat": category, "name": name, "pid": _pid(process, process.device), "tid": stream}
    return lane | _times(row.start_ns, row.end_ns) | {"args": arguments | row.message}
