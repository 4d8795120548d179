"""Every operation of the GPU, one by one."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import KERNEL, MEMORY_KINDS, Capture
from lab.recordings.projection import Projection
from lab.rooms.nsys.captures.stats.sums import operation_names
from lab.rooms.nsys.captures.stats.table import Report, rounded


def gpu_trace(name: str, projection: Projection) -> Report:
    capture = projection.capture
    ops, names = capture.ops, operation_names(capture)
    devices = {(one.pid, one.device): f"{one.name} ({one.device})" for one in capture.devices}
    shown = []
    for row in np.lexsort((ops.end_ns, ops.start_ns)).tolist():
        device = int(ops.device[row])
        known = devices.get((int(ops.pid[row]), device)) or devices.get((-1, device)) or str(device)
        green = ops.green_context[row]
        figures = _geometry(capture, row) if ops.kind[row] == KERNEL else _copied(capture, row)
        where = [
            known,
            _known(ops.context[row]),
            str(green) if green > 0 else "",
            _known(ops.stream[row]),
            names[row],
        ]
        times = [str(ops.start_ns[row]), str(ops.end_ns[row] - ops.start_ns[row]), _known(ops.corr[row])]
        shown.append([*times, *figures, *where])
    header = [
        "Start (ns)",
        "Duration (ns)",
        "CorrId",
        "GrdX",
        "GrdY",
        "GrdZ",
        "BlkX",
        "BlkY",
        "BlkZ",
        "Reg/Trd",
        "StcSMem (MB)",
        "DymSMem (MB)",
        "Bytes (MB)",
        "Throughput (MB/s)",
        "SrcMemKd",
        "DstMemKd",
        "Device",
        "Ctx",
        "GreenCtx",
        "Strm",
        "Name",
    ]
    return Report(name, header, shown)


def _known(number: np.integer) -> str:
    """The number, "" where it was not recorded."""
    return str(number) if number >= 0 else ""


def _geometry(capture: Capture, row: int) -> list[str]:
    ops = capture.ops
    names = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "regs")
    memory = (ops.static_smem_bytes[row], ops.dynamic_smem_bytes[row])
    megabytes = [rounded(size / 1e6, 3) if size >= 0 else "" for size in memory]
    return [*(_known(getattr(ops, name)[row]) for name in names), *megabytes, "", "", "", ""]


def _copied(capture: Capture, row: int) -> list[str]:
    ops = capture.ops
    size, dur_ns = int(ops.bytes[row]), int(ops.end_ns[row] - ops.start_ns[row])
    rate = rounded(size * (10**9 // dur_ns) / 1e6, 3) if dur_ns > 0 and size >= 0 else ""
    kinds = [MEMORY_KINDS.get(int(kind), "") for kind in (ops.src_kind[row], ops.dst_kind[row])]
    return [""] * 9 + [rounded(size / 1e6, 3) if size >= 0 else "", rate, *kinds]
