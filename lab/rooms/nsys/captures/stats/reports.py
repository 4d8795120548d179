"""Which reports there are, and one of them for a projected capture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from lab.core.files import write_atomic
from lab.errors import MissingError, UsageError
from lab.recordings.capture import MEMCPY, MEMSET, START_END, Capture
from lab.recordings.integrity.words import bound
from lab.recordings.lacks import AXES, Axis
from lab.recordings.projection import Projection
from lab.rooms.nsys.captures.stats.kernels import execution_sum, execution_trace, range_kernel_sum
from lab.rooms.nsys.captures.stats.operations import gpu_trace
from lab.rooms.nsys.captures.stats.ranges import projected_sum, projected_trace, range_sum
from lab.rooms.nsys.captures.stats.sums import (
    api_gpu_sum,
    api_sum,
    gpu_sum,
    kernel_sum,
    memory_size,
    memory_time,
    os_sum,
)
from lab.rooms.nsys.captures.stats.table import Report


def report(name: str, projection: Projection) -> Report:
    """One report of a projected capture (`attribution="nsys"` for nsys' own numbers).

    Where the recording is known to lack rows that it rests on, it has a last column `Bound`.
    Raises UsageError for a name that is not in REPORTS, MissingError where the capture lacks what the
    report is about.
    """
    check_name(name)
    make, why_not, axes = REPORTS[name]
    if reason := why_not(projection.capture):
        raise MissingError(f"{name}: {reason}", location=projection.capture.source)
    made = make(name, projection)
    lost = bool(axes) and bound(projection.capture.lacks, *axes)
    return made.with_column("Bound", str(lost)) if lost else made


def check_name(name: str) -> None:
    """Raises UsageError for a name that is not in REPORTS."""
    if name not in REPORTS:
        raise UsageError(f"unknown report {name!r}", fix=f"one of: {', '.join(REPORTS)}")


def available(capture: Capture) -> dict[str, str]:
    """For each report "", or why this capture has no data for it."""
    return {name: why_not(capture) for name, (_, why_not, _) in REPORTS.items()}


def write_reports(projection: Projection, folder: Path, stem: str) -> list[str]:
    """Write `{stem}_{report}.csv` for every report with data; returns why the others are missing."""
    missing = []
    for name, reason in available(projection.capture).items():
        if reason:
            missing.append(f"{name}: {reason}")
        else:
            write_atomic(folder / f"{stem}_{name}.csv", report(name, projection).csv())
    return missing


def _no_kernels(capture: Capture) -> str:
    return "" if capture.kernels.any() else "the capture has no kernels"


def _no_copies(capture: Capture) -> str:
    has_any = np.isin(capture.ops.kind, (MEMCPY, MEMSET)).any()
    return "" if has_any else "the capture has no copies and no fills"


def _no_calls(capture: Capture) -> str:
    return "" if len(capture.api) else "the capture has no CUDA API calls"


def _no_ranges(capture: Capture) -> str:
    return "" if len(capture.ranges) else "the capture has no ranges"


def _no_ranges_or_ops(capture: Capture) -> str:
    return _no_ranges(capture) or ("" if len(capture.ops) else "the capture has no GPU work")


def _no_ops(capture: Capture) -> str:
    return "" if len(capture.ops) else "the capture has no GPU work"


def _no_os_calls(capture: Capture) -> str:
    return "" if len(capture.osrt) else "the capture has no calls of the OS runtime (nsys: --trace=osrt)"


def _no_start_end(capture: Capture) -> str:
    return "" if (capture.ranges.kind == START_END).any() else "the capture has no start/end ranges"


def _no_calls_and_ops(capture: Capture) -> str:
    return "" if len(capture.api) or len(capture.ops) else "the capture has no CUDA API calls and no GPU work"


def _no_joined_kernels(capture: Capture) -> str:
    return _no_kernels(capture) or _no_calls(capture)


GPU: tuple[Axis, ...] = ("gpu",)
JOINED: tuple[Axis, ...] = ("gpu", "host")
# What makes it, why it cannot be made, and the axes that its figures rest on (none: of the OS alone).
REPORTS: dict[str, tuple[Callable[[str, Projection], Report], Callable[[Capture], str], tuple[Axis, ...]]] = {
    "cuda_gpu_kern_sum": (kernel_sum, _no_kernels, GPU),
    "cuda_gpu_sum": (gpu_sum, _no_ops, GPU),
    "cuda_api_sum": (api_sum, _no_calls, ("host",)),
    "cuda_api_gpu_sum": (api_gpu_sum, _no_calls_and_ops, JOINED),
    "osrt_sum": (os_sum, _no_os_calls, ()),
    "cuda_gpu_mem_time_sum": (memory_time, _no_copies, GPU),
    "cuda_gpu_mem_size_sum": (memory_size, _no_copies, GPU),
    "nvtx_sum": (range_sum, _no_ranges, ("ops",)),
    "nvtx_pushpop_sum": (range_sum, _no_ranges, ("ops",)),
    "nvtx_startend_sum": (range_sum, _no_start_end, ("ops",)),
    "nvtx_gpu_proj_sum": (projected_sum, _no_ranges_or_ops, AXES),
    "nvtx_gpu_proj_trace": (projected_trace, _no_ranges_or_ops, AXES),
    "nvtx_kern_sum": (range_kernel_sum, _no_kernels, AXES),
    "cuda_gpu_trace": (gpu_trace, _no_ops, GPU),
    "cuda_kern_exec_sum": (execution_sum, _no_joined_kernels, JOINED),
    "cuda_kern_exec_trace": (execution_trace, _no_joined_kernels, JOINED),
}
