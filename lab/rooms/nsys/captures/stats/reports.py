"""Which reports there are, and one of them for a projected capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.core.files import write_atomic
from lab.errors import MissingError, UsageError
from lab.recordings.capture import MEMCPY, MEMSET, Capture
from lab.recordings.integrity.words import bound
from lab.recordings.lacks import AXES, Axis
from lab.recordings.projection import Projection
from lab.rooms.nsys.captures.stats import sums, traces
from lab.rooms.nsys.captures.stats.table import Report


class Kind(NamedTuple):
    """What makes a report, what it needs (a key of REASONS each), the axes its figures rest on (none: of the
    OS alone)."""

    make: Callable[[Projection], Report]
    needs: tuple[str, ...]
    axes: tuple[Axis, ...]


REASONS: dict[str, str] = {
    "kernels": "the capture has no kernels",
    "copies": "the capture has no copies and no fills",
    "calls": "the capture has no CUDA API calls",
    "ranges": "the capture has no ranges",
    "ops": "the capture has no GPU work",
    "osrt": "the capture has no calls of the OS runtime (nsys: --trace=osrt)",
}
REPORTS = {
    "cuda_gpu_kern_sum": Kind(sums.kernel_sum, ("kernels",), ("gpu",)),
    "cuda_api_sum": Kind(sums.api_sum, ("calls",), ("host",)),
    "osrt_sum": Kind(sums.os_sum, ("osrt",), ()),
    "cuda_gpu_mem_time_sum": Kind(sums.memory_time, ("copies",), ("gpu",)),
    "cuda_gpu_mem_size_sum": Kind(sums.memory_size, ("copies",), ("gpu",)),
    "nvtx_sum": Kind(sums.range_sum, ("ranges",), ("ops",)),
    "nvtx_pushpop_sum": Kind(partial(sums.range_sum, only_push_pop=True), ("ranges",), ("ops",)),
    "nvtx_gpu_proj_sum": Kind(sums.projected_sum, ("ranges", "ops"), AXES),
    "nvtx_gpu_proj_trace": Kind(traces.projected_trace, ("ranges", "ops"), AXES),
    "nvtx_kern_sum": Kind(sums.range_kernel_sum, ("kernels",), AXES),
    "cuda_gpu_trace": Kind(traces.gpu_trace, ("ops",), ("gpu",)),
    "cuda_kern_exec_sum": Kind(sums.execution_sum, ("kernels", "calls"), ("gpu", "host")),
}


def report(name: str, projection: Projection) -> Report:
    """One report of a projected capture (`attribution="nsys"` for nsys' own numbers).

    Where the recording is known to lack rows that it rests on, it has a last column `Bound`.
    Raises UsageError for a name that is not in REPORTS, MissingError where the capture lacks what the
    report is about.
    """
    check_name(name)
    if reason := available(projection.capture)[name]:
        raise MissingError(f"{name}: {reason}", location=projection.capture.source)
    kind = REPORTS[name]
    table = kind.make(projection)
    if kind.axes and (lost := bound(projection.capture.lacks, *kind.axes)):
        num_rows = len(next(iter(table.columns.values())))
        table = Report({**table.columns, "Bound": [lost] * num_rows}, table.problems)
    return table


def check_name(name: str) -> None:
    """Raises UsageError for a name that is not in REPORTS."""
    if name not in REPORTS:
        raise UsageError(f"unknown report {name!r}", fix=f"one of: {', '.join(REPORTS)}")


def available(capture: Capture) -> dict[str, str]:
    """For each report "", or why this capture has no data for it."""
    is_there = {
        "kernels": capture.kernels.any(),
        "copies": np.isin(capture.ops.kind, (MEMCPY, MEMSET)).any(),
        "calls": len(capture.api),
        "ranges": len(capture.ranges),
        "ops": len(capture.ops),
        "osrt": len(capture.osrt),
    }
    return {
        name: next((REASONS[need] for need in kind.needs if not is_there[need]), "")
        for name, kind in REPORTS.items()
    }


def write_reports(
    projection: Projection, names: Iterable[str], folder: Path, stem: str
) -> tuple[list[Path], list[str]]:
    """Write `{stem}_{report}.csv` for every report with data; the files, and why the others are missing."""
    files, reasons = [], []
    absent = available(projection.capture)
    for name in names:
        if absent[name]:
            reasons.append(f"{name}: {absent[name]}")
        else:
            files.append(folder / f"{stem}_{name}.csv")
            write_atomic(files[-1], report(name, projection).csv())
    return files, reasons
