"""The sheets that have a row per op: by category, by name, by arguments."""

from __future__ import annotations

import numpy as np

from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.figures import ARGUMENTS, S5, as_tuples, ranked, sheet, who
from lab.rooms.sweep.gemm.sheets.kernels import kernel_details
from lab.rooms.sweep.gemm.sheets.launches import Launches
from lab.stats.columns import grouped_rows
from lab.stats.robust import grouped


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
