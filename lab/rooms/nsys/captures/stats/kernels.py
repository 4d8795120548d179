"""Kernels by range and by launching thread, and every operation of the GPU."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.recordings.capture import KERNEL, MEMORY_KINDS, Capture
from lab.recordings.projection import Projection
from lab.recordings.tables import Table
from lab.rooms.nsys.captures.stats.ranges import range_labels, range_styles
from lab.rooms.nsys.captures.stats.sums import api_names, operation_names
from lab.rooms.nsys.captures.stats.table import (
    SPREAD,
    Report,
    labelled,
    megabytes,
    numbers,
    recorded_numbers,
    rounded,
    rows_of,
    spread,
    summed,
    table_of,
    unattributed_note,
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


def range_kernel_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    op, row = _kernel_range_pairs(projection)
    launch_tid = np.append(capture.api.tid, -1)[projection.ops.api]
    columns = {
        "range": np.append(range_labels(capture), "")[row],
        "style": np.append(range_styles(capture), "")[row],
        "pid": capture.ops.pid[op],
        "tid": np.where(row >= 0, np.append(capture.ranges.tid, -1)[row], launch_tid[op]),
        "kernel": capture.text(capture.ops.name_id[op]),
        "ns": capture.ops.end_ns[op] - capture.ops.start_ns[op],
    }
    by = ["range", "style", "pid", "tid", "kernel"]
    frame = pd.DataFrame(columns)
    table = summed(frame, by)
    instances = pd.Series(np.where(row >= 0, row, np.nan)).groupby([frame[name] for name in by]).nunique()
    table["instances"] = instances.to_numpy()
    table = table.sort_values([*by[:4], "total", "kernel"], ascending=[True, True, True, True, False, True])
    lines = [
        [
            *(line.range, line.style, str(line.pid), str(line.tid) if line.tid >= 0 else ""),
            *map(str, (line.instances, line.size, line.total)),
            *(*spread(line), line.kernel),
        ]
        for line in rows_of(table)
    ]
    header = ["NVTX Range", "Style", "PID", "TID", "NVTX Inst", "Kern Inst", "Total Time (ns)"]
    return Report(name, [*header, *SPREAD, "Kernel Name"], lines, unattributed_note(projection))


def _kernel_range_pairs(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of a kernel (row of `ops`) and a range that it counts in; -1 once where there is none."""
    kernels = np.flatnonzero(projection.capture.kernels)
    ops, rows = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for start in (projection.ops.range, projection.ops.inherited):
        op, row = kernels, start[kernels]
        while len(op := op[row >= 0]):
            row = row[row >= 0]
            ops.append(op)
            rows.append(row)
            row = projection.instances.parent[row]
    in_loose = projection.capture.kernels[projection.loose.op]
    ops.append(projection.loose.op[in_loose])
    rows.append(projection.loose.range[in_loose])
    op, row = np.concatenate(ops), np.concatenate(rows)
    alone = np.setdiff1d(kernels, op)
    return np.concatenate([op, alone]), np.concatenate([row, np.full(len(alone), -1)])


def execution_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    rows = np.flatnonzero(capture.kernels & (projection.ops.api >= 0))
    ops, api = capture.ops.take(rows), capture.api.take(projection.ops.api[rows])
    by = ["pid", "tid", "device", "call", "kernel"]
    keys = (ops.pid, api.tid, ops.device, api_names(capture, api.name_id), capture.text(ops.name_id))
    frame = pd.DataFrame(dict(zip(by, keys, strict=True)))
    times = {
        "T": np.maximum(ops.end_ns, api.end_ns) - api.start_ns,
        "A": api.end_ns - api.start_ns,
        "Q": ops.start_ns - api.end_ns,
        "K": ops.end_ns - ops.start_ns,
    }
    frames = {letter: frame.assign(ns=values) for letter, values in times.items()}
    frames["Q"] = frames["Q"][frames["Q"]["ns"] > 0]
    sums = {letter: summed(part, by).set_index(by) for letter, part in frames.items()}
    spreads = {
        letter: {row.Index: (row.size, spread(row)) for row in rows_of(table)}
        for letter, table in sums.items()
    }
    order = sums["T"].assign(first_row=frame.assign(row=range(len(frame))).groupby(by)["row"].min())
    lines = []
    for key in order.sort_values(["avg", "first_row"], ascending=[False, True]).index:
        queued, wait = spreads["Q"].get(key, (0, ["", "", "", "", "0.0"]))
        count, total = spreads["T"][key]
        figures = [*total, *spreads["A"][key][1], *wait, *spreads["K"][key][1]]
        *thread, call, kernel = key
        lines.append([*map(str, (*thread, count, queued)), *figures, call, kernel])
    header = ["PID", "TID", "DevId", "Count", "QCount", *(letter + key for letter in times for key in SPREAD)]
    return Report(name, [*header, "API Name", "Kernel Name"], lines, unattributed_note(projection))


def gpu_trace(name: str, projection: Projection) -> Report:
    """Every operation of the GPU, by its start."""
    capture = projection.capture
    order = np.lexsort((capture.ops.end_ns, capture.ops.start_ns))
    ops = capture.ops.take(order)
    is_kernel = ops.kind == KERNEL
    of_kernels = {
        title: np.where(is_kernel, getattr(ops, column), -1)
        for title, column in (_GEOMETRY | _MEMORY).items()
    }
    columns = {
        "Start (ns)": numbers(ops.start_ns),
        "Duration (ns)": numbers(ops.end_ns - ops.start_ns),
        "CorrId": recorded_numbers(ops.corr),
        **{title: recorded_numbers(of_kernels[title]) for title in _GEOMETRY},
        **{title: megabytes(of_kernels[title]) for title in _MEMORY},
        **_copies(ops, ~is_kernel),
        "Device": _devices(capture, ops),
        "Ctx": recorded_numbers(ops.context),
        "GreenCtx": recorded_numbers(np.where(ops.green_context > 0, ops.green_context, -1)),
        "Strm": recorded_numbers(ops.stream),
        "Name": list(operation_names(capture)[order]),
    }
    return table_of(name, columns)


def _copies(ops: Table, is_copy: np.ndarray) -> dict[str, list[str]]:
    """Size, rate and memories of copies and fills; "" for kernels."""

    def rate(size: int, dur_ns: int) -> str:
        return rounded(size * (10**9 // dur_ns) / 1e6, 3) if dur_ns > 0 and size >= 0 else ""

    def memory(kind: np.ndarray) -> list[str]:
        return list(labelled(lambda code: MEMORY_KINDS.get(code, ""), np.where(is_copy, kind, -1)))

    size = np.where(is_copy, ops.bytes, -1)
    return {
        "Bytes (MB)": megabytes(size),
        "Throughput (MB/s)": list(labelled(rate, size, np.where(is_copy, ops.end_ns - ops.start_ns, -1))),
        "SrcMemKd": memory(ops.src_kind),
        "DstMemKd": memory(ops.dst_kind),
    }


def _devices(capture: Capture, ops: Table) -> list[str]:
    names = {(device.pid, device.device): f"{device.name} ({device.device})" for device in capture.devices}

    def text(pid: int, device: int) -> str:
        return names.get((pid, device)) or names.get((-1, device)) or str(device)

    return list(labelled(text, ops.pid, ops.device))
