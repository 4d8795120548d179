"""The reports with a row per operation of the GPU, or per range."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import KERNEL, MEMORY_KINDS, Capture
from lab.recordings.projection import Projection
from lab.recordings.tables import Table
from lab.rooms.nsys.captures.stats.sums import (
    operation_names,
    projected_rows,
    range_labels,
    range_styles,
)
from lab.rooms.nsys.captures.stats.table import (
    Report,
    labelled,
    megabytes,
    numbers,
    recorded_numbers,
    rounded,
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


def gpu_trace(projection: Projection) -> Report:
    """Every operation of the GPU, by its start."""
    capture = projection.capture
    order = np.lexsort((capture.ops.end_ns, capture.ops.start_ns))
    ops = capture.ops.take(order)
    is_kernel = ops.kind == KERNEL

    def of_kernels(column: str) -> np.ndarray:
        return np.where(is_kernel, getattr(ops, column), -1)

    return Report(
        {
            "Start (ns)": numbers(ops.start_ns),
            "Duration (ns)": numbers(ops.dur_ns),
            "CorrId": recorded_numbers(ops.corr),
            **{title: recorded_numbers(of_kernels(column)) for title, column in _GEOMETRY.items()},
            **{title: megabytes(of_kernels(column)) for title, column in _MEMORY.items()},
            **_copies(ops, ~is_kernel),
            "Device": _devices(capture, ops),
            "Ctx": recorded_numbers(ops.context),
            "GreenCtx": recorded_numbers(np.where(ops.green_context > 0, ops.green_context, -1)),
            "Strm": recorded_numbers(ops.stream),
            "Name": operation_names(capture)[order].tolist(),
        }
    )


def _copies(ops: Table, is_copy: np.ndarray) -> dict[str, list[str]]:
    """Size, rate and memories of copies and fills; "" for kernels."""

    def rate(size: int, dur_ns: int) -> str:
        return rounded(size * (10**9 // dur_ns) / 1e6, 3) if dur_ns > 0 and size >= 0 else ""

    def memory(kind: np.ndarray) -> list[str]:
        return list(labelled(lambda code: MEMORY_KINDS.get(code, ""), np.where(is_copy, kind, -1)))

    size = np.where(is_copy, ops.bytes, -1)
    return {
        "Bytes (MB)": megabytes(size),
        "Throughput (MB/s)": labelled(rate, size, ops.dur_ns).tolist(),
        "SrcMemKd": memory(ops.src_kind),
        "DstMemKd": memory(ops.dst_kind),
    }


def _devices(capture: Capture, ops: Table) -> list[str]:
    names = {(device.pid, device.device): f"{device.name} ({device.device})" for device in capture.devices}

    def text(pid: int, device: int) -> str:
        return names.get((pid, device)) or names.get((-1, device)) or str(device)

    return list(labelled(text, ops.pid, ops.device))


def projected_trace(projection: Projection) -> Report:
    """Every range that launched anything, as the time of its operations on the GPU."""
    capture, instances = projection.capture, projection.instances
    ranges = capture.ranges
    rows, children = projected_rows(projection)
    # nsys' id of a range is its row in NVTX_EVENTS; without one, its position in the capture, from 1.
    ids = numbers(np.where(ranges.row >= 0, ranges.row, np.arange(len(ranges)) + 1))
    parents = instances.parent.tolist()

    def stack(row: int) -> str:
        path = ""
        while row >= 0:
            path, row = f":{ids[row]}{path}", parents[row]
        return path

    of_rows = rows.tolist()
    return Report(
        {
            "Name": range_labels(capture)[rows].tolist(),
            "Projected Start (ns)": numbers(instances.first_ns[rows]),
            "Projected Duration (ns)": numbers(instances.last_ns[rows] - instances.first_ns[rows]),
            "Orig Start (ns)": numbers(ranges.start_ns[rows]),
            "Orig Duration (ns)": numbers(ranges.dur_ns[rows]),
            "Style": range_styles(capture)[rows].tolist(),
            "PID": numbers(ranges.pid[rows]),
            "TID": numbers(ranges.tid[rows]),
            "NumGPUOps": numbers(instances.num_ops[rows]),
            "Lvl": numbers(np.maximum(instances.level[rows], 0)),
            "NumChild": numbers(children),
            "RangeId": [ids[row] for row in of_rows],
            "ParentId": [ids[parents[row]] if parents[row] >= 0 else "" for row in of_rows],
            "RangeStack": [stack(row) for row in of_rows],
        }
    )
