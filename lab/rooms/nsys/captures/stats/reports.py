"""The reports with a row per operation or range, which reports there are, and one of them for a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lab.core.files import write_atomic
from lab.errors import MissingError, UsageError
from lab.recordings.capture import KERNEL, MEMCPY, MEMORY_KINDS, MEMSET, Capture
from lab.recordings.integrity.words import bound
from lab.recordings.lacks import AXES, Axis
from lab.recordings.projection import Projection
from lab.recordings.tables import Table
from lab.rooms.nsys.captures.stats import sums
from lab.rooms.nsys.captures.stats.sums import (
    Report,
    labelled,
    megabytes,
    numbers,
    operation_names,
    projected_rows,
    range_labels,
    range_styles,
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

    of_kernels = {
        name: np.where(is_kernel, getattr(ops, name), -1) for name in (*_GEOMETRY.values(), *_MEMORY.values())
    }
    return Report(
        {
            "Start (ns)": numbers(ops.start_ns),
            "Duration (ns)": numbers(ops.dur_ns),
            "CorrId": recorded_numbers(ops.corr),
            **{title: recorded_numbers(of_kernels[column]) for title, column in _GEOMETRY.items()},
            **{title: megabytes(of_kernels[column]) for title, column in _MEMORY.items()},
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


class Kind(NamedTuple):
    """What makes a report, its NEEDS, the axes its figures rest on (none: of the OS alone)."""

    make: Callable[[Projection], Report]
    needs: tuple[str, ...]
    axes: tuple[Axis, ...]


NEEDS: dict[str, tuple[str, Callable[[Capture], Any]]] = {
    "kernels": ("kernels", lambda capture: capture.kernels.any()),
    "copies": ("copies and no fills", lambda capture: np.isin(capture.ops.kind, (MEMCPY, MEMSET)).any()),
    "calls": ("CUDA API calls", lambda capture: len(capture.api)),
    "ranges": ("ranges", lambda capture: len(capture.ranges)),
    "ops": ("GPU work", lambda capture: len(capture.ops)),
    "osrt": ("calls of the OS runtime (nsys: --trace=osrt)", lambda capture: len(capture.osrt)),
}
REPORTS = {
    "cuda_gpu_kern_sum": Kind(sums.kernel_sum, ("kernels",), ("gpu",)),
    "cuda_api_sum": Kind(sums.call_sum, ("calls",), ("host",)),
    "osrt_sum": Kind(partial(sums.call_sum, of_os=True), ("osrt",), ()),
    "cuda_gpu_mem_time_sum": Kind(sums.memory_time, ("copies",), ("gpu",)),
    "cuda_gpu_mem_size_sum": Kind(sums.memory_size, ("copies",), ("gpu",)),
    "nvtx_sum": Kind(sums.range_sum, ("ranges",), ("ops",)),
    "nvtx_pushpop_sum": Kind(partial(sums.range_sum, only_push_pop=True), ("ranges",), ("ops",)),
    "nvtx_gpu_proj_sum": Kind(sums.projected_sum, ("ranges", "ops"), AXES),
    "nvtx_gpu_proj_trace": Kind(projected_trace, ("ranges", "ops"), AXES),
    "nvtx_kern_sum": Kind(sums.range_kernel_sum, ("kernels",), AXES),
    "cuda_gpu_trace": Kind(gpu_trace, ("ops",), ("gpu",)),
    "cuda_kern_exec_sum": Kind(sums.execution_sum, ("kernels", "calls"), ("gpu", "host")),
}


def report(name: str, projection: Projection) -> Report:
    """One report of a projected capture (`attribution="nsys"` for nsys' own numbers).

    Where the recording is known to lack rows that it rests on, it has a last column `Bound`.
    Raises UsageError for a name that is not in REPORTS, MissingError where the capture has no data for it.
    """
    check_names([name])
    if reason := missing(name, projection.capture):
        raise MissingError(f"{name}: {reason}", location=projection.capture.source)
    kind = REPORTS[name]
    table = kind.make(projection)
    if kind.axes and (lost := bound(projection.capture.lacks, *kind.axes)):
        num_rows = len(next(iter(table.columns.values())))
        table = Report({**table.columns, "Bound": [lost] * num_rows}, table.problems)
    return table


def check_names(names: list[str]) -> list[str]:
    """The same names. Raises UsageError for one that is not in REPORTS."""
    for name in names:
        if name not in REPORTS:
            raise UsageError(f"unknown report {name!r}", fix=f"one of: {', '.join(REPORTS)}")
    return names


def missing(name: str, capture: Capture) -> str:
    """Why this capture has no data for a report, or ""."""
    absent = (
        text for text, is_there in (NEEDS[need] for need in REPORTS[name].needs) if not is_there(capture)
    )
    return next((f"the capture has no {text}" for text in absent), "")


def write_reports(
    projection: Projection, names: Iterable[str], folder: Path, stem: str
) -> tuple[list[Path], list[str]]:
    """Write `{stem}_{report}.csv` for every report with data; the files, and why the others are missing."""
    files, reasons = [], []
    for name in names:
        if reason := missing(name, projection.capture):
            reasons.append(f"{name}: {reason}")
        else:
            files.append(folder / f"{stem}_{name}.csv")
            write_atomic(files[-1], report(name, projection).csv())
    return files, reasons
