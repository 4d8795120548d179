"""Every operation of the GPU, one by one."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import KERNEL, MEMORY_KINDS, Capture
from lab.recordings.projection import Projection
from lab.recordings.tables import Table
from lab.rooms.nsys.captures.stats.sums import operation_names
from lab.rooms.nsys.captures.stats.table import (
    Report,
    known_numbers,
    labelled,
    megabytes,
    numbers,
    rounded,
    table_of,
)

_GEOMETRY = {
    "GrdX": "grid_x",
    "GrdY": "grid_y",
    "GrdZ": "grid_z",
    "BlkX": "block_x",
    "BlkY": "block_y",
    "BlkZ": "block_z",
    "Reg/Trd": "regs",
}
_MEMORY = {"StcSMem (MB)": "static_smem_bytes", "DymSMem (MB)": "dynamic_smem_bytes"}


def gpu_trace(name: str, projection: Projection) -> Report:
    capture = projection.capture
    order = np.lexsort((capture.ops.end_ns, capture.ops.start_ns))
    ops = capture.ops.take(order)
    is_kernel = ops.kind == KERNEL
    columns = {
        "Start (ns)": numbers(ops.start_ns),
        "Duration (ns)": numbers(ops.end_ns - ops.start_ns),
        "CorrId": known_numbers(ops.corr),
        **{title: known_numbers(_of(is_kernel, getattr(ops, one))) for title, one in _GEOMETRY.items()},
        **{title: megabytes(_of(is_kernel, getattr(ops, one))) for title, one in _MEMORY.items()},
        **_copies(ops, ~is_kernel),
        "Device": _devices(capture, ops),
        "Ctx": known_numbers(ops.context),
        "GreenCtx": known_numbers(np.where(ops.green_context > 0, ops.green_context, -1)),
        "Strm": known_numbers(ops.stream),
        "Name": operation_names(capture).take(order).column().tolist(),
    }
    return table_of(name, columns)


def _of(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = np.where(rows, values, -1)
    return chosen


def _copies(ops: Table, is_copy: np.ndarray) -> dict[str, list[str]]:
    """Size, rate and memories of copies and fills; "" for kernels."""
    dur_ns = ops.end_ns - ops.start_ns

    def rate(size: int, dur: int) -> str:
        return rounded(size * (10**9 // dur) / 1e6, 3) if dur > 0 and size >= 0 else ""

    size = _of(is_copy, ops.bytes)
    kinds = {"SrcMemKd": ops.src_kind, "DstMemKd": ops.dst_kind}
    return {
        "Bytes (MB)": megabytes(size),
        "Throughput (MB/s)": labelled(rate, size, _of(is_copy, dur_ns)).column().tolist(),
        **{
            title: labelled(lambda one: MEMORY_KINDS.get(one, ""), _of(is_copy, kind)).column().tolist()
            for title, kind in kinds.items()
        },
    }


def _devices(capture: Capture, ops: Table) -> list[str]:
    devices = {(one.pid, one.device): f"{one.name} ({one.device})" for one in capture.devices}

    def text(pid: int, device: int) -> str:
        return devices.get((pid, device)) or devices.get((-1, device)) or str(device)

    found: list[str] = labelled(text, ops.pid, ops.device).column().tolist()
    return found
