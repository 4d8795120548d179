"""The sheets of a performance workbook, from one trace.

Names and order of sheets and columns are those of TraceLens (AMD-AGI/TraceLens, `generate_perf_report`), so
that its users find their way; our own columns follow after theirs. Times of an op are unions of its kernels.
"""

from __future__ import annotations

import numpy as np

from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.figures import sheet
from lab.rooms.sweep.gemm.sheets.kernels import kernel_summary, short_kernel_histogram, short_kernels_summary
from lab.rooms.sweep.gemm.sheets.launches import Launches
from lab.rooms.sweep.gemm.sheets.ops import ops_summary, ops_summary_by_category, ops_unique_args
from lab.rooms.sweep.gemm.sheets.perf_model import perf_model_sheets
from lab.rooms.sweep.tables import column_names

ROWS_OF_TIMELINE = column_names(
    "computation_time exposed_comm_time exposed_memcpy_time busy_time idle_time total_time "
    "total_comm_time total_memcpy_time"
)


def perf_sheets(launched: Launches, gemm: Table, collectives: Table) -> dict[str, Table]:
    """Every sheet of one rank's workbook; gemm and collectives are the finished sheets of these names."""
    timeline = gpu_timeline(launched.trace)
    total_us = 1000 * float(getattr(timeline, "time ms")[ROWS_OF_TIMELINE.index("total_time")])
    summary = ops_summary(launched)
    return {
        "gpu_timeline": timeline,
        "ops_summary_by_category": ops_summary_by_category(launched),
        "ops_summary": summary,
        "ops_unique_args": ops_unique_args(launched),
        "GEMM": Table({k: values for k, values in gemm.as_dict().items() if not k.startswith("_")}),
        "kernel_summary": kernel_summary(launched, total_us),
        "short_kernel_histogram": short_kernel_histogram(launched.trace),
        "short_kernels_summary": short_kernels_summary(launched, total_us),
        **perf_model_sheets(launched),
        "coll_analysis": collectives,
    }


def gpu_timeline(trace: Capture) -> Table:
    """Where the time went. As in TraceLens, `time ms` leaves out kernels whose launch was not recorded."""
    columns = {}
    for suffix, linked_only in (("", True), (" (all kernels)", False)):
        figures = views.gpu_timeline(trace, linked_only=linked_only)
        time_ms = [figures[f"{row}_ms"] for row in ROWS_OF_TIMELINE]
        total_ms = figures["total_time_ms"]
        columns[f"time ms{suffix}"] = time_ms
        columns[f"percent{suffix}"] = [100 * ms / total_ms if total_ms else np.nan for ms in time_ms]
    return sheet({"type": ROWS_OF_TIMELINE, **columns})
