"""The GEMM sheet: one row per shape, with work, rates and the time beside collectives."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from lab.recordings import views
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.arguments import op_arguments, tuples
from lab.rooms.sweep.gemm.sheets.figures import dtype_bytes, most_first, sheet
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
COMPUTE = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "signed char": "int8",
    **dict.fromkeys(
        ("c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz"), "fp8"
    ),
}


def gemm_sheet(found: Launches, gemm: Table) -> Table:
    """One row per GEMM shape that an op launched, most time first; `gemm` as `gemm_table` makes it.

    The last columns, whose names start with _, are the group's key and not for a workbook.
    """
    gemm = gemm.where(gemm.op_row >= 0)
    first, group = in_order_of_appearance(*grouped_rows([getattr(gemm, name) for name in GEMM_GROUP]))
    n = len(first)
    shape = Table({name: getattr(gemm, name)[first] for name in GEMM_GROUP})
    arguments = op_arguments(found.trace, gemm.op_row[first])
    gflops, moved_bytes = _work(shape, arguments)
    dur_us = gemm.dur_ns / 1000
    stats = grouped(dur_us, group, n, (5, 95))
    timed = dur_us > 0  # work in no time has no rate
    of, timed_us = group[timed], dur_us[timed]
    rates = {
        "TB/s": grouped(moved_bytes[of] / timed_us / 1e6, of, n),
        "TFLOPS/s": grouped(gflops[of] / timed_us * 1e3, of, n),
    }
    tid = gemm.tid[first]
    found_rows = sheet(
        {
            "name": shape.op,
            **{f"param: {name}": getattr(shape, name) for name in ("B", "M", "N", "K", "bias")},
            **_factors(arguments, shape),
            "GFLOPS_first": gflops,
            "Data Moved (MB)_first": moved_bytes / 2**20,
            "FLOPS/Byte_first": gflops * 1e9 / moved_bytes,
            **{f"{rate}_{key}": values[key] for rate, values in rates.items() for key in S5},
            **{
                f"{name}_first": column
                for name, column in who(
                    found.trace, found.trace.operators.pid[gemm.op_row[first]], tid
                ).items()
            },
            "Compute Spec": [f"matrix_{COMPUTE.get(dtype, dtype)}" for dtype in shape.dtype],
            **_gemm_details(found, gemm, group, n),
            **{f"{title}_first": column for title, column in arguments.items()},
            **{f"Kernel Time (µs)_{key}": stats[key] for key in (*S5, "sum")},
            "name_count": stats["count"],
            "UID_first": gemm.uid[first],
            **_gemm_extras(gemm, group, first, stats),
            **{f"_{name}": getattr(shape, name) for name in GEMM_GROUP},
        }
    )
    return most_first(found_rows, "Kernel Time (µs)_sum")


def _work(shape: Table, arguments: dict[str, list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """GFLOP (n,) and bytes moved (n,) of each shape; NaN where a size is unknown.

    2 B M N K operations and B M N more for a bias; bytes of A, B, C and the bias, all in A's dtype.
    """
    b, m, n, k = (getattr(shape, name).astype(float) for name in ("B", "M", "N", "K"))
    known = np.where(m < 0, np.nan, 1.0)
    bias = [_bias_elements(op, dims) for op, dims in zip(shape.op, arguments["Input Dims"], strict=True)]
    has_bias = shape.bias.astype(bool)
    gflops = b * m * n * (2 * k + has_bias) / 1e9
    elements = b * (m * k + k * n + m * n) + np.where(has_bias, bias, 0)
    return gflops * known, elements * dtype_bytes(shape.dtype) * known


def _bias_elements(op: str, dims: str) -> float:
    """Elements of the bias: the argument before the factors, or the third one of linear."""
    items = ast.literal_eval(dims) if dims else []
    bias = (items + [None] * 3)[2 if op == "aten::linear" else 0]
    return (
        float(np.prod(bias)) if isinstance(bias, list) and all(isinstance(n, int) for n in bias) else np.nan
    )


def _factors(arguments: dict[str, list[str]], shape: Table) -> dict[str, list[str]]:
    """Columns stride_A, stride_B, dtype_A_B and transpose (of B and A, as a column-major BLAS sees them)."""
    columns: dict[str, list[str]] = {
        f"param: {name}": [] for name in ("stride_A", "stride_B", "dtype_A_B", "transpose")
    }
    rows = zip(shape.op, shape.transpose, arguments["Input Strides"], arguments["Input type"], strict=True)
    for op, letters, strides, types in rows:
        first = views.GEMM_OPS.get(op, 0)
        a, b = _two(strides, first)
        columns["param: stride_A"].append(str(tuples(a)) if a else "")
        columns["param: stride_B"].append(str(tuples(b)) if b else "")
        columns["param: dtype_A_B"].append(str(tuple(_two(types, first))))
        columns["param: transpose"].append(str(tuple(letter == "T" for letter in letters[::-1])))
    return columns


def _two(text: str, first: int) -> list[Any]:
    items = ast.literal_eval(text) if text else []
    return [*items[first : first + 2], None, None][:2]


def _gemm_details(found: Launches, gemm: Table, group: np.ndarray, num_groups: int) -> dict[str, list[str]]:
    of_op = np.full(len(found.trace.operators) + 1, -1, dtype=np.int64)
    of_op[gemm.op_row] = group
    details = kernel_details(found, of_op[found.link], num_groups)
    return {
        "kernel_details__summarize_kernel_stats": details["kernel_details_summary"],
        "trunc_kernel_details": details["trunc_kernel_details"],
    }


def _gemm_extras(
    gemm: Table, group: np.ndarray, first: np.ndarray, stats: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Our columns: robust spread, the kernels' family, and the time with and without a collective beside."""
    n = len(stats["count"])
    names, _ = distinct_rows(np.stack([group, grouped_rows([gemm.kernels])[1]], axis=1))
    extras: dict[str, Any] = {
        "mad_us": stats["mad"],
        "cv": stats["cv"],
        "p5_us": stats["p5"],
        "p95_us": stats["p95"],
        "family": gemm.family[first],
        "num_kernel_names": np.bincount(names[:, 0], minlength=n),
    }
    for name, chosen in (("free", gemm.comm_ns == 0), ("overlapped", gemm.comm_ns > 0)):
        part = grouped(gemm.dur_ns[chosen] / 1000, group[chosen], n)
        extras |= {f"{name}_n": part["count"], f"{name}_median_us": part["median"]}
    return extras
