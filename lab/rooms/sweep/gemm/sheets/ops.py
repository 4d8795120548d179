"""The sheets that have a row per op: by category, by name, by arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.names import gemm_library
from lab.recordings.tables import KERNEL, Table
from lab.rooms.sweep.gemm.sheets.launches import (
    ARGUMENTS,
    S5,
    Launches,
    as_tuples,
    most_first,
    of_op,
    percent,
    ranked,
    sheet,
    who,
)
from lab.stats.columns import grouped_rows
from lab.stats.robust import grouped

SHORT_US = 10.0
BINS = 100
DURATIONS = {"total": "sum", "mean": "mean", "median": "median", "std_dev": "std", "min": "min", "max": "max"}


def ops_summary_by_category(launched: Launches) -> Table:
    names, group = np.unique(launched.category.astype(str), return_inverse=True)
    found_rows = sheet(
        {
            "op category": names,
            "Count": np.bincount(group, minlength=len(names)),
            "total_direct_kernel_time_ms": np.bincount(group, launched.direct_us, len(names)) / 1000,
        }
    )
    return ranked(found_rows, "total_direct_kernel_time_ms")


def ops_summary(launched: Launches) -> Table:
    """One row per name of an op that launched kernels itself."""
    name_ids, group = np.unique(launched.ops.name_id, return_inverse=True)
    n = len(name_ids)
    direct, subtree = (np.bincount(group, us, n) for us in (launched.direct_us, launched.subtree_us))
    categories: list[set[str]] = [set() for _ in range(n)]
    for index, category in set(zip(group.tolist(), launched.category.tolist(), strict=True)):
        categories[index].add(category)
    found_rows = sheet(
        {
            "name": launched.trace.text(name_ids),
            "total_direct_kernel_time_sum": direct,
            "total_subtree_kernel_time_sum": subtree,
            "total_direct_kernel_time_ms": direct / 1000,
            "total_subtree_kernel_time_ms": subtree / 1000,
            "Count": np.bincount(group, minlength=n),
            "Categories": [str(sorted(category)) for category in categories],
        }
    )
    return ranked(found_rows, "total_direct_kernel_time_ms")


def ops_unique_args(launched: Launches) -> Table:
    """One row per op name, thread and set of arguments."""
    ops, text = launched.ops, launched.trace.text
    arguments = (getattr(ops, name) for name in ARGUMENTS.values())
    first_rows, group = grouped_rows([ops.name_id, *arguments, ops.pid, ops.tid])
    n, leads = len(first_rows), ops.take(first_rows)
    direct, subtree = grouped(launched.direct_us, group, n), grouped(launched.subtree_us, group, n)
    pairs = {
        f"total_{scope}_kernel_time_{statistic}": stats[statistic]
        for statistic in (*S5, "sum")
        for scope, stats in (("direct", direct), ("subtree", subtree))
    }
    found_rows = sheet(
        {
            "name": text(leads.name_id),
            "op category": launched.category[first_rows],
            **who(launched.trace, leads),
            **{title: as_tuples(launched.trace, getattr(leads, name)) for title, name in ARGUMENTS.items()},
            "operation_count": direct["count"],
            **pairs,
            "ex_UID": leads.external_id,
            **kernel_details(launched, np.append(group, -1)[launched.launcher], n),  # launcher -1: of no op
        }
    )
    return ranked(found_rows, "total_direct_kernel_time_sum")


def kernel_summary(launched: Launches, total_us: float) -> Table:
    """One row per op, kernel and stream; kernels whose launch was not recorded have no op."""
    trace = launched.trace
    rows = np.flatnonzero(trace.ops.kind == KERNEL)
    kernels, op_name = trace.ops.take(rows), of_op(trace, "name_id", launched.link[rows])
    first_rows, group = grouped_rows([op_name, kernels.name_id, kernels.stream])
    stats = grouped(kernels.dur_ns / 1000, group, len(first_rows), (95,))
    names = trace.text(kernels.name_id[first_rows])
    found_rows = sheet(
        {
            "Parent op category": launched.kernel_category[rows][first_rows],
            "Parent cpu_op": trace.text(op_name[first_rows]),
            "Kernel name": names,
            "Kernel stream": kernels.stream[first_rows],
            **{f"Kernel duration (µs)_{key}": stats[key] for key in ("sum", "count", "mean", "min", "max")},
            "Percent of kernels time (%)": percent(stats["sum"], kernels.dur_ns.sum() / 1000),
            "Percent of total time (%)": percent(stats["sum"], total_us),
            **{f"{key}_us": stats[key] for key in ("median", "mad", "p95")},
            "family": [gemm_library(name) for name in names],
        }
    )
    return most_first(found_rows, "Kernel duration (µs)_sum")


def short_kernel_histogram(trace: Capture) -> Table:
    """Kernels below 10 µs in 100 bins between the shortest and the longest of them."""
    dur_us = trace.ops.dur_ns[trace.ops.kind == KERNEL] / 1000
    count, edges = np.histogram(dur_us[dur_us < SHORT_US], bins=BINS)
    shown = slice(None) if count.sum() else slice(0)
    return Table({"bin_start": edges[:-1][shown], "bin_end": edges[1:][shown], "count": count[shown]})


def short_kernels_summary(launched: Launches, total_us: float) -> Table:
    """Kernels below 10 µs by the op that launched them and its arguments."""
    kernels = launched.trace.ops
    is_short = (kernels.kind == KERNEL) & (kernels.dur_ns < SHORT_US * 1000) & (launched.link >= 0)
    rows = np.flatnonzero(is_short)
    ops, name_id = launched.trace.operators.take(launched.link[rows]), kernels.name_id[rows]
    first_rows, group = grouped_rows([ops.name_id, ops.dims_id, ops.strides_id, ops.concrete_id, name_id])
    leads, text = ops.take(first_rows), launched.trace.text
    stats = grouped(kernels.dur_ns[rows] / 1000, group, len(first_rows))
    found_rows = sheet(
        {
            "Parent cpu_op": text(leads.name_id),
            "Input dims": as_tuples(launched.trace, leads.dims_id),
            "Input strides": as_tuples(launched.trace, leads.strides_id),
            "Concrete Inputs": as_tuples(launched.trace, leads.concrete_id),
            "Kernel name": text(name_id[first_rows]),
            "Short Kernel duration (µs) sum": stats["sum"],
            "Short Kernel count": stats["count"],
            "Short Kernel duration (µs) mean": stats["mean"],
            "Short Kernel duration (µs) percent of total time": percent(stats["sum"], total_us),
        }
    )
    return most_first(found_rows, "Short Kernel duration (µs) sum")


def kernel_details(launched: Launches, group: np.ndarray, num_groups: int) -> dict[str, list[str]]:
    """Columns kernel_details_summary and trunc_kernel_details: each group's kernels with their statistics.

    group: 0..num_groups-1 or -1 for each row of `kernels` (n,).
    """
    rows = np.flatnonzero(group >= 0)
    kernels = launched.trace.ops.take(rows)
    first_rows, details_of = grouped_rows([group[rows], kernels.name_id, kernels.stream])
    stats = grouped(kernels.dur_ns / 1000, details_of, len(first_rows))
    leads, order = kernels.take(first_rows), np.argsort(-stats["sum"], kind="stable")
    columns = {
        "name": launched.trace.text(leads.name_id),
        "stream": leads.stream,
        "count": stats["count"],
        **{f"{name}_duration_us": stats[key] for name, key in DURATIONS.items()},
    }
    long: list[list[dict[str, Any]]] = [[] for _ in range(num_groups)]
    details = zip(*(values[order].tolist() for values in columns.values()), strict=True)
    for number, values in zip(group[rows][first_rows][order].tolist(), details, strict=True):
        long[number].append(dict(zip(columns, values, strict=True)))
    return {
        "kernel_details_summary": [str(kernels) for kernels in long],
        "trunc_kernel_details": [str([_short(kernel) for kernel in kernels]) for kernels in long],
    }


def _short(kernel: dict[str, Any]) -> dict[str, Any]:
    name = kernel["name"] if len(kernel["name"]) <= 64 else kernel["name"][:64] + "..."
    mean_us = round(kernel["mean_duration_us"], 2)
    return {"name": name, "stream": kernel["stream"], "mean_duration_us": mean_us}
