"""The GEMM sheet: one row per shape, with work, rates and the time beside collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.perfmodel.calls import OpCall
from lab.perfmodel.dtypes import rate_name
from lab.perfmodel.products import factor_indices, product_work
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.figures import ARGUMENTS, most_first, sheet
from lab.rooms.sweep.gemm.sheets.launches import Launches
from lab.rooms.sweep.gemm.sheets.models import TIMES, op_columns
from lab.rooms.sweep.tables import GROUP, column_names
from lab.stats.columns import distinct_rows, grouped_rows, in_order_of_appearance
from lab.stats.robust import grouped

SHEET_GROUP = [*GROUP, "transpose"]
# Our own columns of the GEMM sheet, after those of TraceLens.
EXTRAS = column_names(
    "mad_us cv p5_us p95_us family num_kernel_names free_n free_median_us overlapped_n overlapped_median_us"
)


def gemm_sheet(launched: Launches, gemm: Table) -> Table:
    """One row per GEMM shape that an op launched, most time first; `gemm` as `gemm_table` makes it.

    The last columns, whose names start with _, are the group's key and not for a workbook.
    """
    gemm = gemm.where(gemm.op_row >= 0)
    first_rows, group = in_order_of_appearance(*grouped_rows([getattr(gemm, name) for name in SHEET_GROUP]))
    shape = Table({name: getattr(gemm, name)[first_rows] for name in SHEET_GROUP})
    op_rows = gemm.op_row[first_rows]
    calls = _calls(launched, op_rows)
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


def _calls(launched: Launches, op_rows: np.ndarray) -> list[OpCall]:
    trace, ops = launched.trace, launched.trace.operators.take(op_rows)
    columns = [trace.text(getattr(ops, name)) for name in ("name_id", *ARGUMENTS.values())]
    return [OpCall.from_profiler(*texts) for texts in zip(*columns, strict=True)]


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
        part = grouped(dur_us[chosen], group[chosen], n)
        extras |= {f"{name}_n": part["count"], f"{name}_median_us": part["median"]}
    return extras
