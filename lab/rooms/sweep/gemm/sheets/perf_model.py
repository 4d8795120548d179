"""One row per op and arguments (`unified_perf_summary`), and one sheet per kind of op that a model knows.

A kernel belongs to the innermost op around its launch that has a model, otherwise to the op that launched it:
so attention's time is with attention, whatever it launches inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.perfmodel.boards import Board, board_of, excess_of, roof_of
from lab.perfmodel.calls import OpCall, Work
from lab.perfmodel.ops import BEYOND_TRACELENS, work_of
from lab.recordings.tables import Table
from lab.recordings.views import work_owners
from lab.rooms.sweep.gemm.sheets.launches import (
    ARGUMENTS,
    S5,
    Launches,
    as_tuples,
    category,
    most_first,
    of_op,
    op_arguments,
    ranked,
    sheet,
    who,
)
from lab.rooms.sweep.gemm.sheets.ops import kernel_details
from lab.rooms.sweep.tables import column_names
from lab.stats.columns import grouped_rows, in_order_of_appearance, objects
from lab.stats.intervals import spans, totals
from lab.stats.robust import grouped

# TraceLens' sheets with a model of their own, by kind of work; a GEMM's is `gemms`.
SHEETS = (
    "SDPA_fwd",
    "SDPA_bwd",
    "CONV_fwd",
    "CONV_bwd",
    "Normalization",
    "BinaryElementwise",
    "UnaryElementwise",
    "Reduce_fwd",
    "Reduce_bwd",
    "GroupedGEMM",
)
# Our columns: the least time by the GPU's data sheet, and how much of it the op reaches.
ROOFS = column_names("compute_roof_us memory_roof_us bound_by percent_of_roof roof_note")
SPREAD = ("median", "min", "max")
TIMES = "Kernel Time (µs)"


@dataclass(frozen=True)
class _Instances:
    """Every op that owns kernels, and the distinct ones by name, arguments and thread.

    rows (m,) are rows of ops, time_us (m,) their kernels' time, group (m,) the distinct op of each; of_kernel
    (n,) is each kernel's owner; first_rows and works are of the distinct ops (k,).
    """

    launched: Launches
    rows: np.ndarray
    time_us: np.ndarray
    of_kernel: np.ndarray
    group: np.ndarray
    first_rows: np.ndarray
    works: list[Work | None]
    board: Board | None


def perf_model_sheets(launched: Launches) -> dict[str, Table]:
    """unified_perf_summary and the sheets of SHEETS that have a row."""
    instances = _instances(launched)
    sheets = {"unified_perf_summary": _unified(instances)}
    for name in SHEETS:
        chosen = {index: work for index, work in enumerate(instances.works) if work and work.kind == name}
        if chosen:
            sheets[name] = _sheet(instances, chosen)
    return sheets


def _instances(launched: Launches) -> _Instances:
    trace = launched.trace
    owner = work_owners(trace)
    linked = np.flatnonzero(owner >= 0)
    rows, index = np.unique(owner[linked], return_inverse=True)
    of_kernel = np.full(len(owner), -1, dtype=np.int64)
    of_kernel[linked] = index.ravel()
    op_spans = spans(trace.ops.start_ns, trace.ops.dur_ns)
    ops = trace.operators.take(rows)
    arguments = (getattr(ops, name) for name in ARGUMENTS.values())
    first_rows, group = grouped_rows([ops.name_id, *arguments, ops.pid, ops.tid])
    device = next(iter(trace.devices), None)  # the recording's first, for whose data sheet the roofs are
    return _Instances(
        launched,
        rows,
        totals(op_spans[linked], of_kernel[linked], len(rows)) / 1000,
        of_kernel,
        group,
        first_rows,
        [_work(call) for call in launched.calls(rows[first_rows])],
        board_of(device.name, device.num_sms) if device else None,
    )


def _work(call: OpCall) -> Work | None:
    work = work_of(call)
    return None if work is not None and work.kind in BEYOND_TRACELENS else work


def _unified(instances: _Instances) -> Table:
    launched, works, group = instances.launched, instances.works, instances.group
    trace, first_rows, n = launched.trace, instances.first_rows, len(works)
    ops = trace.operators.take(instances.rows[first_rows])
    stats = grouped(instances.time_us, group, n)
    host = grouped(trace.operators.dur_ns[instances.rows] / 1000, group, n)
    rate_stats = rates(works, instances.time_us, group)
    details = kernel_details(launched, np.append(group, -1)[instances.of_kernel], n)
    rows = sheet(
        {
            "name": trace.text(ops.name_id),
            "op category": _categories(instances),
            **who(trace, ops),
            **{title: as_tuples(trace, getattr(ops, name)) for title, name in ARGUMENTS.items()},
            "ex_UID": ops.external_id,
            "operation_count": stats["count"],
            "total_duration_us": host["sum"],
            "mean_duration_us": host["mean"],
            "std_duration_us": host["std"],
            **amounts(works),
            "Compute Spec": [work.spec if work else "" for work in works],
            **{f"{rate}_{key}": part[key] for rate, part in rate_stats.items() for key in ("mean", "std")},
            **{f"{TIMES}_{key}": stats[key] for key in ("mean", "std", "sum")},
            **{f"duration_us_{key}": host[key] for key in SPREAD},
            **{f"{rate}_{key}": part[key] for rate, part in rate_stats.items() for key in SPREAD},
            **{f"{TIMES}_{key}": stats[key] for key in SPREAD},
            **details,
            "perf_params": [str(work.params) if work else "" for work in works],
            "has_perf_model": [work is not None for work in works],
            **_roofs(works, details["kernel_details_summary"], stats["mean"], instances.board),
        }
    )
    columns = ranked(rows, f"{TIMES}_sum").as_dict()
    return Table({name: columns[name] for name in [*(name for name in columns if name not in ROOFS), *ROOFS]})


def _sheet(instances: _Instances, works: Mapping[int, Work]) -> Table:
    """One row per op and parameters; the same parameters by other arguments are one row, as in TraceLens.

    works: the index of each distinct op of this kind, and its work.
    """
    launched, groups = instances.launched, np.array([*works])
    op_rows = instances.rows[instances.first_rows[groups]]
    keys = [of_op(launched.trace, "name_id", op_rows), objects([str(work.params) for work in works.values()])]
    leads, number = in_order_of_appearance(*grouped_rows(keys))
    of_group = np.full(len(instances.works), -1, dtype=np.int64)
    of_group[groups] = number
    row = of_group[instances.group]
    chosen = np.flatnonzero(row >= 0)
    leading_works = [works[lead] for lead in groups[leads].tolist()]
    columns = op_columns(
        launched,
        op_rows[leads],
        leading_works,
        instances.time_us[chosen],
        row[chosen],
        np.append(row, -1)[instances.of_kernel],
        {
            name: _cells([work.params.get(name) for work in leading_works])
            for name in dict.fromkeys(name for work in leading_works for name in work.params)
        },
    )
    kernels = columns["kernel_details__summarize_kernel_stats"]
    roofs = _roofs(leading_works, kernels, columns[f"{TIMES}_mean"], instances.board)
    return most_first(sheet({**columns, **roofs}), f"{TIMES}_sum")


def _categories(instances: _Instances) -> np.ndarray:
    """The report's category of each distinct op, by its name, else by the kernels that are its own."""
    trace, first_rows = instances.launched.trace, instances.first_rows
    lead = np.full(len(instances.rows), -1, dtype=np.int64)
    order = np.flatnonzero(instances.of_kernel >= 0)[::-1]
    lead[instances.of_kernel[order]] = order
    names = trace.text(trace.operators.name_id[instances.rows[first_rows]])
    kernels = trace.text(trace.ops.name_id[lead[first_rows]])
    return objects([category(name, kernel) for name, kernel in zip(names, kernels, strict=True)])


def _cells(values: Sequence[Any]) -> list[Any]:
    """Parameters as a table holds them: tuples and lists as texts."""
    return [str(value) if isinstance(value, (tuple, list)) else value for value in values]


def _roofs(
    works: Sequence[Work | None], kernels: Sequence[str], mean_us: np.ndarray, board: Board | None
) -> dict[str, Any]:
    """The least times by arithmetic and by memory, which of them binds, how much of it is reached, and what
    of that cannot be.

    NaN for an unknown board, for types that its data sheet has no rate for, and where the kernels' names do
    not tell which of its units they use.
    """
    rows: list[tuple[Any, ...]] = []
    for work, names, time_us in zip(works, kernels, mean_us.tolist(), strict=True):
        roof = roof_of(work, board, names)
        if roof is None:
            rows.append((np.nan, np.nan, "", np.nan, "" if board else "unknown board"))
            continue
        reached = 100 * roof.least_s * 1e6 / time_us if time_us > 0 else np.nan
        note = excess_of(roof, time_us * 1e-6)
        rows.append((roof.compute_s * 1e6, roof.memory_s * 1e6, roof.bound_by, reached, note))
    return {name: [row[column] for row in rows] for column, name in enumerate(ROOFS)}


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
