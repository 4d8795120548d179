"""The sheets of a performance workbook, from one trace.

Names and order of sheets and columns are those of TraceLens (AMD-AGI/TraceLens, `generate_perf_report`), so
that its users find their way; our own columns follow after theirs. Times of an op are unions of its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.perfmodel.calls import OpCall
from lab.perfmodel.dtypes import rate_name
from lab.perfmodel.products import factor_indices, product_work
from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.launches import Launches, dtype_bytes, most_first, sheet
from lab.rooms.sweep.gemm.sheets.ops import (
    kernel_summary,
    ops_summary,
    ops_summary_by_category,
    ops_unique_args,
    short_kernel_histogram,
    short_kernels_summary,
)
from lab.rooms.sweep.gemm.sheets.perf_model import TIMES, op_columns, perf_model_sheets
from lab.rooms.sweep.tables import GROUP, TIMELINE_MS, column_names
from lab.stats.columns import grouped_rows, in_order_of_appearance, objects
from lab.stats.robust import grouped

ROWS_OF_TIMELINE = [name.removesuffix("_ms") for name in TIMELINE_MS]
SHEET_GROUP = [*GROUP, "transpose"]
# Our own columns of the GEMM sheet, after those of TraceLens.
EXTRAS = column_names(
    "mad_us cv p5_us p95_us family num_kernel_names free_n free_median_us overlapped_n overlapped_median_us"
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


def coll_analysis(collectives: Table, rank: int) -> Table:
    """One row per kind, size and stream of a rank's collectives; sizes in MiB as in TraceLens."""
    key = {
        "Process Group Name": collectives.pg_name,
        "Process Group Ranks": collectives.pg_ranks,
        "Collective name": collectives.collective,
        "Group size": collectives.group_size,
        "dtype": collectives.dtype,
        "In msg nelems": collectives.in_nelems,
        "Out msg nelems": collectives.out_nelems,
        "In split size": splits(collectives.in_split),
        "Out split size": splits(collectives.out_split),
        "stream": collectives.stream,
    }
    first_rows, group = grouped_rows(list(key.values()))
    size = dtype_bytes(collectives.dtype[first_rows])
    stats = grouped(collectives.dur_ns / 1000, group, len(first_rows))
    return sheet(
        {
            "rank": np.full(len(first_rows), rank),
            **{name: values[first_rows] for name, values in key.items()},
            **{
                f"{side} msg size (MB)_first": key[f"{side} msg nelems"][first_rows] * size / 2**20
                for side in ("In", "Out")
            },
            **{f"dur_{statistic}": stats[statistic] for statistic in ("sum", "mean", "std", "min", "max")},
            "operation_count": stats["count"],
        }
    )


def splits(texts: Sequence[str] | np.ndarray) -> np.ndarray:
    """The split sizes of one side as text (n,), without the quotes of some profilers."""
    return objects([text.strip('"') for text in texts])


def gemm_sheet(launched: Launches, gemm: Table) -> Table:
    """One row per GEMM shape that an op launched, most time first; `gemm` as `gemm_table` makes it.

    The last columns, whose names start with _, are the group's key and not for a workbook.
    """
    gemm = gemm.where(gemm.op_row >= 0)
    first_rows, group = in_order_of_appearance(*grouped_rows([getattr(gemm, name) for name in SHEET_GROUP]))
    shape = Table({name: getattr(gemm, name)[first_rows] for name in SHEET_GROUP})
    op_rows = gemm.op_row[first_rows]
    calls = launched.calls(op_rows)
    of_op = np.full(len(launched.trace.operators) + 1, -1, dtype=np.int64)
    of_op[gemm.op_row] = group
    parameters = {name: getattr(shape, name) for name in ("B", "M", "N", "K", "bias")}
    columns = op_columns(
        launched,
        op_rows,
        [product_work(call) for call in calls],
        gemm.dur_ns / 1000,
        group,
        of_op[launched.link],
        {**parameters, **_factors(calls, shape.transpose)},
    )
    # Also where no model counts the work.
    columns["Compute Spec"] = [f"matrix_{rate_name(dtype) or dtype}" for dtype in shape.dtype]
    keys = {f"_{name}": getattr(shape, name) for name in SHEET_GROUP}
    return most_first(sheet({**columns, **_extras(gemm, group, first_rows), **keys}), f"{TIMES}_sum")


def _factors(calls: Sequence[OpCall], transpose: np.ndarray) -> dict[str, list[str]]:
    """stride_A, stride_B, dtype_A_B and transpose (of B and A, as a column-major BLAS sees them)."""
    columns: dict[str, list[str]] = {name: [] for name in ("stride_A", "stride_B", "dtype_A_B", "transpose")}
    for call, letters in zip(calls, transpose, strict=True):
        left, right = factor_indices(call.name)
        columns["stride_A"].append(str(call.stride(left) or ""))
        columns["stride_B"].append(str(call.stride(right) or ""))
        columns["dtype_A_B"].append(str((call.dtype(left) or None, call.dtype(right) or None)))
        columns["transpose"].append(str(tuple(letter == "T" for letter in letters[::-1])))
    return columns


def _extras(gemm: Table, group: np.ndarray, first_rows: np.ndarray) -> dict[str, Any]:
    """Our columns: robust spread, the kernels' family, and the time with and without a collective beside."""
    n, dur_us = len(first_rows), gemm.dur_ns / 1000
    stats = grouped(dur_us, group, n, (5, 95))
    by_names, _ = grouped_rows([group, gemm.kernels])
    extras: dict[str, Any] = {
        "mad_us": stats["mad"],
        "cv": stats["cv"],
        "p5_us": stats["p5"],
        "p95_us": stats["p95"],
        "family": gemm.family[first_rows],
        "num_kernel_names": np.bincount(group[by_names], minlength=n),
    }
    for name, chosen in (("free", gemm.comm_ns == 0), ("overlapped", gemm.comm_ns > 0)):
        part = grouped(dur_us[chosen], group[chosen], n)
        extras |= {f"{name}_n": part["count"], f"{name}_median_us": part["median"]}
    return extras
