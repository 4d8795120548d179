"""The sheets of ops whose work a model knows: TraceLens' columns, in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lab.perfmodel.calls import Work
from lab.rooms.sweep.gemm.sheets.figures import S5, op_arguments, who
from lab.rooms.sweep.gemm.sheets.kernels import kernel_details
from lab.rooms.sweep.gemm.sheets.launches import Launches
from lab.stats.robust import grouped

TIMES = "Kernel Time (µs)"


def op_columns(
    launched: Launches,
    op_rows: np.ndarray,
    works: Sequence[Work | None],
    time_us: np.ndarray,
    group: np.ndarray,
    of_kernel: np.ndarray,
    parameters: Mapping[str, Any],
) -> dict[str, Any]:
    """One row per op and parameters (n,): its first instance is at op_rows, its work in works.

    time_us (m,) and group (m,) are the instances and the row of each; of_kernel: each kernel's row, or -1.
    """
    n, trace = len(op_rows), launched.trace
    ops = trace.operators.take(op_rows)
    stats = grouped(time_us, group, n)
    details = kernel_details(launched, of_kernel, n)
    return {
        "name": trace.text(ops.name_id),
        **{f"param: {name}": values for name, values in parameters.items()},
        **{f"{name}_first": values for name, values in amounts(works).items()},
        **{
            f"{rate}_{key}": values[key]
            for rate, values in rates(works, time_us, group).items()
            for key in S5
        },
        **who(trace, ops, "_first"),
        "Compute Spec": [work.spec if work else "" for work in works],
        "kernel_details__summarize_kernel_stats": details["kernel_details_summary"],
        "trunc_kernel_details": details["trunc_kernel_details"],
        **op_arguments(trace, op_rows),
        **{f"{TIMES}_{key}": stats[key] for key in (*S5, "sum")},
        "name_count": stats["count"],
        "UID_first": ops.external_id,
    }


def amounts(works: Sequence[Work | None]) -> dict[str, np.ndarray]:
    """Columns of the work of one call; NaN where no model knows it."""
    flops, num_bytes = _flops_and_bytes(works)
    with np.errstate(invalid="ignore", divide="ignore"):
        intensity = flops / num_bytes
    return {"GFLOPS": flops / 1e9, "Data Moved (MB)": num_bytes / 2**20, "FLOPS/Byte": intensity}


def rates(
    works: Sequence[Work | None], time_us: np.ndarray, group: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """Statistics over instances of TB/s and TFLOPS/s; work in no time has no rate."""
    flops, num_bytes = _flops_and_bytes(works)
    timed = time_us > 0
    row, timed_us = group[timed], time_us[timed]
    return {
        "TB/s": grouped(num_bytes[row] / timed_us / 1e6, row, len(works)),
        "TFLOPS/s": grouped(flops[row] / 1e9 / timed_us * 1e3, row, len(works)),
    }


def _flops_and_bytes(works: Sequence[Work | None]) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(work.flops, work.num_bytes) if work else (np.nan, np.nan) for work in works]
    flops, num_bytes = np.array(pairs, dtype=float).reshape(-1, 2).T
    return flops, num_bytes
