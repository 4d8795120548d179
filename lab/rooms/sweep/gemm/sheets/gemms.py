"""The GEMM sheet: one row per shape, with work, rates and the time beside collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.perfmodel.calls import OpCall
from lab.perfmodel.dtypes import rate_name
from lab.perfmodel.products import factor_indices, product_work
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.arguments import ARGUMENTS, op_arguments
from lab.rooms.sweep.gemm.sheets.figures import most_first, sheet
from lab.rooms.sweep.gemm.sheets.kernels import kernel_details
from lab.rooms.sweep.gemm.sheets.launches import Launches
from lab.rooms.sweep.gemm.sheets.ops import S5, who
from lab.rooms.sweep.tables import column_names
from lab.stats.columns import distinct_rows, grouped_rows, in_order_of_appearance
from lab.stats.robust import grouped

GEMM_GROUP = ["op", "B", "M", "N", "K", "bias", "strides", "dtype", "dims", "transpose"]
# Our own columns of the GEMM sheet, after those of TraceLens.
EXTRAS = column_names(
    "mad_us cv p5_us p95_us family num_kernel_names free_n free_median_us overlapped_n overlapped_median_us"
)


def gemm_sheet(launched: Launches, gemm: Table) -> Table:
    """One row per GEMM shape that an op launched, most time first; `gemm` as `gemm_table` makes it.

    The last columns, whose names start with _, are the group's key and not for a workbook.
    """
    gemm = gemm.where(gemm.op_row >= 0)
    first_rows, group = in_order_of_appearance(*grouped_rows([getattr(gemm, name) for name in GEMM_GROUP]))
    n = len(first_rows)
    shape = Table({name: getattr(gemm, name)[first_rows] for name in GEMM_GROUP})
    arguments = op_arguments(launched.trace, gemm.op_row[first_rows])
    calls = _calls(launched, gemm.op_row[first_rows])
    works = [product_work(call) for call in calls]
    gflops = np.array([work.flops / 1e9 if work else np.nan for work in works])
    moved_bytes = np.array([work.num_bytes if work else np.nan for work in works])
    dur_us = gemm.dur_ns / 1000
    stats = grouped(dur_us, group, n, (5, 95))
    timed = dur_us > 0  # work in no time has no rate
    of, timed_us = group[timed], dur_us[timed]
    rates = {
        "TB/s": grouped(moved_bytes[of] / timed_us / 1e6, of, n),
        "TFLOPS/s": grouped(gflops[of] / timed_us * 1e3, of, n),
    }
    tid = gemm.tid[first_rows]
    found_rows = sheet(
        {
            "name": shape.op,
            **{f"param: {name}": getattr(shape, name) for name in ("B", "M", "N", "K", "bias")},
            **_factors(calls, shape.transpose),
            "GFLOPS_first": gflops,
            "Data Moved (MB)_first": moved_bytes / 2**20,
            "FLOPS/Byte_first": gflops * 1e9 / moved_bytes,
            **{f"{rate}_{key}": values[key] for rate, values in rates.items() for key in S5},
            **{
                f"{name}_first": column
                for name, column in who(
                    launched.trace, launched.trace.operators.pid[gemm.op_row[first_rows]], tid
                ).items()
            },
            "Compute Spec": [f"matrix_{rate_name(dtype) or dtype}" for dtype in shape.dtype],
            **_gemm_details(launched, gemm, group, n),
            **{f"{title}_first": column for title, column in arguments.items()},
            **{f"Kernel Time (µs)_{key}": stats[key] for key in (*S5, "sum")},
            "name_count": stats["count"],
            "UID_first": gemm.uid[first_rows],
            **_gemm_extras(gemm, group, first_rows, stats),
            **{f"_{name}": getattr(shape, name) for name in GEMM_GROUP},
        }
    )
    return most_first(found_rows, "Kernel Time (µs)_sum")


def _calls(launched: Launches, op_rows: np.ndarray) -> list[OpCall]:
    trace, ops = launched.trace, launched.trace.operators.take(op_rows)
    columns = [trace.text(getattr(ops, name)) for name in ("name_id", *ARGUMENTS.values())]
    return [OpCall.from_profiler(*texts) for texts in zip(*columns, strict=True)]


def _factors(calls: Sequence[OpCall], transpose: np.ndarray) -> dict[str, list[str]]:
    """Columns stride_A, stride_B, dtype_A_B and transpose (of B and A, as a column-major BLAS sees them)."""
    columns: dict[str, list[str]] = {
        f"param: {name}": [] for name in ("stride_A", "stride_B", "dtype_A_B", "transpose")
    }
    for call, letters in zip(calls, transpose, strict=True):
        left, right = factor_indices(call.name)
        columns["param: stride_A"].append(str(call.stride(left) or ""))
        columns["param: stride_B"].append(str(call.stride(right) or ""))
        columns["param: dtype_A_B"].append(str((call.dtype(left) or None, call.dtype(right) or None)))
        columns["param: transpose"].append(str(tuple(letter == "T" for letter in letters[::-1])))
    return columns


def _gemm_details(
    launched: Launches, gemm: Table, group: np.ndarray, num_groups: int
) -> dict[str, list[str]]:
    of_op = np.full(len(launched.trace.operators) + 1, -1, dtype=np.int64)
    of_op[gemm.op_row] = group
    details = kernel_details(launched, of_op[launched.link], num_groups)
    return {
        "kernel_details__summarize_kernel_stats": details["kernel_details_summary"],
        "trunc_kernel_details": details["trunc_kernel_details"],
    }


def _gemm_extras(
    gemm: Table, group: np.ndarray, first_rows: np.ndarray, stats: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Our columns: robust spread, the kernels' family, and the time with and without a collective beside."""
    n = len(stats["count"])
    names, _ = distinct_rows(np.stack([group, grouped_rows([gemm.kernels])[1]], axis=1))
    extras: dict[str, Any] = {
        "mad_us": stats["mad"],
        "cv": stats["cv"],
        "p5_us": stats["p5"],
        "p95_us": stats["p95"],
        "family": gemm.family[first_rows],
        "num_kernel_names": np.bincount(names[:, 0], minlength=n),
    }
    for name, chosen in (("free", gemm.comm_ns == 0), ("overlapped", gemm.comm_ns > 0)):
        part = grouped(gemm.dur_ns[chosen] / 1000, group[chosen], n)
        extras |= {f"{name}_n": part["count"], f"{name}_median_us": part["median"]}
    return extras
