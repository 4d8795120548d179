"""The sheets that have a row per op: by category, by name, by arguments."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.arguments import ARGUMENTS, Cached, as_tuple
from lab.rooms.sweep.gemm.sheets.figures import ranked, sheet
from lab.rooms.sweep.gemm.sheets.kernels import kernel_details
from lab.rooms.sweep.gemm.sheets.launches import Launches
from lab.stats.columns import grouped_rows, objects
from lab.stats.robust import grouped

S5 = ("mean", "median", "std", "min", "max")
WHO = ["process_name", "process_label", "thread_name"]


def ops_summary_by_category(found: Launches) -> Table:
    names, group = np.unique(found.category.astype(str), return_inverse=True)
    found_rows = sheet(
        {
            "op category": names,
            "Count": np.bincount(group, minlength=len(names)),
            "total_direct_kernel_time_ms": np.bincount(group, found.direct_us, len(names)) / 1000,
        }
    )
    return ranked(found_rows, "total_direct_kernel_time_ms")


def ops_summary(found: Launches) -> Table:
    """One row per name of an op that launched kernels itself."""
    name_ids, group = np.unique(found.ops.name_id, return_inverse=True)
    n = len(name_ids)
    direct, subtree = (np.bincount(group, us, n) for us in (found.direct_us, found.subtree_us))
    categories: list[set[str]] = [set() for _ in range(n)]
    for at, category in set(zip(group.tolist(), found.category.tolist(), strict=True)):
        categories[at].add(category)
    found_rows = sheet(
        {
            "name": found.trace.text(name_ids),
            "total_direct_kernel_time_sum": direct,
            "total_subtree_kernel_time_sum": subtree,
            "total_direct_kernel_time_ms": direct / 1000,
            "total_subtree_kernel_time_ms": subtree / 1000,
            "Count": np.bincount(group, minlength=n),
            "Categories": [str(sorted(each)) for each in categories],
        }
    )
    return ranked(found_rows, "total_direct_kernel_time_ms")


def ops_unique_args(found: Launches) -> Table:
    """One row per op name, thread and set of arguments."""
    ops, text = found.ops, found.trace.text
    arguments = (getattr(ops, name) for name in ARGUMENTS.values())
    first, group = grouped_rows([ops.name_id, *arguments, ops.pid, ops.tid])
    n = len(first)
    direct, subtree = grouped(found.direct_us, group, n), grouped(found.subtree_us, group, n)
    readable = Cached(lambda index: as_tuple(text(np.array([index]))[0]))
    pairs = {
        f"total_{which}_kernel_time_{statistic}": stats[statistic]
        for statistic in (*S5, "sum")
        for which, stats in (("direct", direct), ("subtree", subtree))
    }
    found_rows = sheet(
        {
            "name": text(ops.name_id[first]),
            "op category": found.category[first],
            **who(found.trace, ops.pid[first], ops.tid[first]),
            **{
                title: [readable[i] for i in getattr(ops, name)[first].tolist()]
                for title, name in ARGUMENTS.items()
            },
            "operation_count": direct["count"],
            **pairs,
            "ex_UID": ops.external_id[first],
            **kernel_details(found, np.append(group, -1)[found.launcher], n),  # launcher -1: of no op
        }
    )
    return ranked(found_rows, "total_direct_kernel_time_sum")


def who(trace: Capture, pid: np.ndarray, tid: np.ndarray) -> dict[str, np.ndarray]:
    """Columns process_name, process_label, thread_name of each (pid, tid); "" where not recorded."""
    names, labels = (
        dict(
            zip(
                trace.process_names.pid.tolist(),
                trace.text(getattr(trace.process_names, column)),
                strict=True,
            )
        )
        for column in ("name_id", "label_id")
    )
    threads = dict(
        zip(
            zip(trace.thread_names.pid.tolist(), trace.thread_names.tid.tolist(), strict=True),
            trace.text(trace.thread_names.name_id),
            strict=True,
        )
    )
    where = list(zip(pid.tolist(), tid.tolist(), strict=True))
    columns = [
        [names.get(process, "") for process, _ in where],
        [labels.get(process, "") for process, _ in where],
        [threads.get(one, "") for one in where],
    ]
    return {title: objects(column) for title, column in zip(WHO, columns, strict=True)}
