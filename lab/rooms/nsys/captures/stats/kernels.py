"""Kernels by range and by launching thread, and every operation of the GPU."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from lab.recordings.capture import KERNEL, MEMORY_KINDS, Capture
from lab.recordings.projection import Projection
from lab.recordings.tables import Table
from lab.rooms.nsys.captures.stats.ranges import api_names, operation_names, range_labels, range_styles
from lab.rooms.nsys.captures.stats.table import (
    SPREAD,
    Labels,
    Report,
    grouped,
    labelled,
    megabytes,
    numbers,
    recorded_numbers,
    rounded,
    table_of,
    unattributed_note,
)
from lab.stats.columns import grouped_rows

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
    labels, styles = _or_none(range_labels(capture), row), _or_none(range_styles(capture), row)
    launch_tid = np.append(capture.api.tid, -1)[projection.ops.api]
    tid = np.where(row >= 0, np.append(capture.ranges.tid, -1)[row], launch_tid[op])
    pid, kernel = capture.ops.pid[op], capture.ops.name_id[op]
    dur_ns = capture.ops.end_ns[op] - capture.ops.start_ns[op]
    groups = grouped(dur_ns, labels.codes, styles.codes, pid, tid, kernel)
    distinct = grouped_rows([groups.of_row, row])[0] if len(row) else np.empty(0, dtype=np.int64)
    instances = np.bincount(groups.of_row[distinct][row[distinct] >= 0], minlength=len(groups.total))

    def key(group: int) -> tuple[Any, ...]:
        i = groups.first_row[group]
        return (labels[i], styles[i], pid[i], tid[i], -groups.total[group], capture.name(kernel[i]))

    lines = []
    for group in sorted(range(len(groups.total)), key=key):
        i = groups.first_row[group]
        thread = [labels[i], styles[i], str(pid[i]), str(tid[i]) if tid[i] >= 0 else ""]
        figures = [instances[group], groups.count[group], groups.total[group]]
        lines.append([*thread, *map(str, figures), *groups.spread(group), capture.name(kernel[i])])
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


def _or_none(labels: Labels, rows: np.ndarray) -> Labels:
    """Those of `rows`, "" for row -1."""
    codes = np.append(labels.codes, len(labels.texts))
    return Labels(np.append(labels.texts, ""), codes[rows])


def execution_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    rows = np.flatnonzero(capture.kernels & (projection.ops.api >= 0))
    ops, api = capture.ops.take(rows), capture.api.take(projection.ops.api[rows])
    calls = api_names(capture, api.name_id)
    keys = (ops.pid, api.tid, ops.device, calls.codes, ops.name_id)
    queued_ns = ops.start_ns - api.end_ns
    times = {
        "T": np.maximum(ops.end_ns, api.end_ns) - api.start_ns,
        "A": api.end_ns - api.start_ns,
        "Q": queued_ns,
        "K": ops.end_ns - ops.start_ns,
    }
    groups = {letter: grouped(values, *keys) for letter, values in times.items()}
    total = groups["T"]
    waits = {group: queued_ns[(total.of_row == group) & (queued_ns > 0)] for group in range(len(total.total))}
    lines = []
    for group in sorted(waits, key=lambda group: (-total.avg[group], total.first_row[group])):
        i, wait = total.first_row[group], waits[group]
        spread = grouped(wait, np.zeros_like(wait)).spread(0) if len(wait) else ["", "", "", "", "0.0"]
        figures = [total.spread(group), groups["A"].spread(group), spread, groups["K"].spread(group)]
        thread = [ops.pid[i], api.tid[i], ops.device[i], total.count[group], len(wait)]
        kernel = capture.name(ops.name_id[i])
        lines.append([*map(str, thread), *chain.from_iterable(figures), calls[i], kernel])
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
        "Name": operation_names(capture).take(order).column(),
    }
    return table_of(name, columns)


def _copies(ops: Table, is_copy: np.ndarray) -> dict[str, list[str]]:
    """Size, rate and memories of copies and fills; "" for kernels."""

    def rate(size: int, dur_ns: int) -> str:
        return rounded(size * (10**9 // dur_ns) / 1e6, 3) if dur_ns > 0 and size >= 0 else ""

    def memory(kind: np.ndarray) -> list[str]:
        return labelled(lambda code: MEMORY_KINDS.get(code, ""), np.where(is_copy, kind, -1)).column()

    size = np.where(is_copy, ops.bytes, -1)
    return {
        "Bytes (MB)": megabytes(size),
        "Throughput (MB/s)": labelled(rate, size, np.where(is_copy, ops.end_ns - ops.start_ns, -1)).column(),
        "SrcMemKd": memory(ops.src_kind),
        "DstMemKd": memory(ops.dst_kind),
    }


def _devices(capture: Capture, ops: Table) -> list[str]:
    names = {(device.pid, device.device): f"{device.name} ({device.device})" for device in capture.devices}

    def text(pid: int, device: int) -> str:
        return names.get((pid, device)) or names.get((-1, device)) or str(device)

    return labelled(text, ops.pid, ops.device).column()
