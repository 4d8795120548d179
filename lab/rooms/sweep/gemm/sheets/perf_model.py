"""One row per op and arguments (`unified_perf_summary`), and one sheet per kind of op that a model knows.

A kernel belongs to the innermost op around its launch that has a model, otherwise to the op that launched it:
so attention's time is with attention, whatever it launches inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.perfmodel.boards import Board, board_of
from lab.perfmodel.calls import OpCall, Work
from lab.perfmodel.ops import BEYOND_TRACELENS, work_of
from lab.perfmodel.roofs import excess_of, roof_of
from lab.recordings.capture import Capture
from lab.recordings.tables import Table
from lab.recordings.views import work_owners
from lab.rooms.sweep.gemm.sheets.arguments import ARGUMENTS, as_tuple, op_arguments
from lab.rooms.sweep.gemm.sheets.families import category
from lab.rooms.sweep.gemm.sheets.figures import most_first, ranked, sheet
from lab.rooms.sweep.gemm.sheets.kernels import kernel_details
from lab.rooms.sweep.gemm.sheets.launches import Launches
from lab.rooms.sweep.gemm.sheets.ops import S5, who
from lab.rooms.sweep.tables import column_names
from lab.stats.columns import objects
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
TIMES, SPREAD = "Kernel Time (µs)", ("median", "min", "max")


@dataclass(frozen=True)
class _Instances:
    """Every op that owns kernels: its row of ops (m,), its kernels' time (m,), each kernel's owner (n,)."""

    rows: np.ndarray
    time_us: np.ndarray
    of_kernel: np.ndarray


def perf_model_sheets(launched: Launches) -> dict[str, Table]:
    """unified_perf_summary and the sheets of SHEETS that have a row."""
    trace = launched.trace
    instances = _instances(launched)
    ops = trace.operators.take(instances.rows)
    keys = np.stack([ops.name_id, *(getattr(ops, name) for name in ARGUMENTS.values()), ops.pid, ops.tid], 1)
    distinct, first_rows, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    works = [_work(trace, key) for key in distinct[:, :5].tolist()]
    group = group.ravel()
    board = _board(trace)
    sheets = {"unified_perf_summary": _unified(launched, instances, first_rows, group, works, board)}
    for name in SHEETS:
        chosen = [index for index, work in enumerate(works) if work is not None and work.kind == name]
        if chosen:
            sheets[name] = _sheet(launched, instances, first_rows, group, works, chosen, board)
    return sheets


def _instances(launched: Launches) -> _Instances:
    trace = launched.trace
    owner = work_owners(trace)
    linked = np.flatnonzero(owner >= 0)
    rows, index = np.unique(owner[linked], return_inverse=True)
    of_kernel = np.full(len(owner), -1, dtype=np.int64)
    of_kernel[linked] = index.ravel()
    op_spans = spans(trace.ops.start_ns, trace.ops.dur_ns)
    return _Instances(rows, totals(op_spans[linked], of_kernel[linked], len(rows)) / 1000, of_kernel)


def _work(trace: Capture, key: Sequence[int]) -> Work | None:
    name, dims, types, strides, concrete = (trace.text(np.array([index]))[0] for index in key)
    work = work_of(OpCall.from_profiler(name, dims, types, strides, concrete))
    return None if work is not None and work.kind in BEYOND_TRACELENS else work


def _unified(
    launched: Launches,
    instances: _Instances,
    first_rows: np.ndarray,
    group: np.ndarray,
    works: Sequence[Work | None],
    board: Board | None,
) -> Table:
    trace, n = launched.trace, len(first_rows)
    ops = trace.operators.take(instances.rows[first_rows])
    stats = grouped(instances.time_us, group, n)
    host = grouped(trace.operators.dur_ns[instances.rows] / 1000, group, n)
    rates = _rates(instances.time_us, group, works)
    details = kernel_details(launched, _looked_up(group, instances.of_kernel), n)
    found_rows = sheet(
        {
            "name": trace.text(ops.name_id),
            "op category": _categories(launched, instances, first_rows),
            **who(trace, ops.pid, ops.tid),
            **{title: _readable(trace, getattr(ops, name)) for title, name in ARGUMENTS.items()},
            "ex_UID": ops.external_id,
            "operation_count": stats["count"],
            "total_duration_us": host["sum"],
            "mean_duration_us": host["mean"],
            "std_duration_us": host["std"],
            **_amounts(works),
            "Compute Spec": [work.spec if work else "" for work in works],
            **{f"{rate}_{key}": values[key] for rate, values in rates.items() for key in ("mean", "std")},
            **{f"{TIMES}_{key}": stats[key] for key in ("mean", "std", "sum")},
            **{f"duration_us_{key}": host[key] for key in SPREAD},
            **{f"{rate}_{key}": values[key] for rate, values in rates.items() for key in SPREAD},
            **{f"{TIMES}_{key}": stats[key] for key in SPREAD},
            **details,
            "perf_params": [str(work.params) if work else "" for work in works],
            "has_perf_model": [work is not None for work in works],
            **_roofs(works, details["kernel_details_summary"], stats["mean"], board),
        }
    )
    columns = ranked(found_rows, f"{TIMES}_sum").as_dict()
    return Table({name: columns[name] for name in [*(name for name in columns if name not in ROOFS), *ROOFS]})


def _looked_up(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """values[index] (n,), -1 where index is."""
    looked_up: np.ndarray = np.append(values, -1)[index]
    return looked_up


def _sheet(
    launched: Launches,
    instances: _Instances,
    first_rows: np.ndarray,
    group: np.ndarray,
    works: Sequence[Work | None],
    chosen: Sequence[int],
    board: Board | None,
) -> Table:
    """One row per op and parameters; the same parameters by other arguments are one row, as in TraceLens."""
    trace = launched.trace
    names = trace.text(trace.operators.name_id[instances.rows[first_rows[list(chosen)]]])
    number: dict[tuple[str, str], int] = {}
    of_group = np.full(len(works), -1, dtype=np.int64)
    leads: list[int] = []
    for lead, name in zip(chosen, names, strict=True):
        work = works[lead]
        key = name, str(work.params if work else "")
        if key not in number:
            number[key] = len(number)
            leads.append(lead)
        of_group[lead] = number[key]
    row = of_group[group]
    rows_of_sheet = np.flatnonzero(row >= 0)
    leading_works = [work for lead in leads if (work := works[lead]) is not None]
    n = len(leading_works)
    stats = grouped(instances.time_us[rows_of_sheet], row[rows_of_sheet], n)
    rates = _rates(instances.time_us[rows_of_sheet], row[rows_of_sheet], leading_works)
    rows = instances.rows[first_rows[leads]]
    ops = trace.operators.take(rows)
    details = kernel_details(launched, _looked_up(row, instances.of_kernel), n)
    found_rows = sheet(
        {
            "name": trace.text(ops.name_id),
            **{
                f"param: {name}": _cells([work.params.get(name) for work in leading_works])
                for name in dict.fromkeys(name for work in leading_works for name in work.params)
            },
            **{f"{name}_first": values for name, values in _amounts(leading_works).items()},
            **{f"{rate}_{key}": values[key] for rate, values in rates.items() for key in S5},
            **{f"{name}_first": column for name, column in who(trace, ops.pid, ops.tid).items()},
            "Compute Spec": [work.spec for work in leading_works],
            "kernel_details__summarize_kernel_stats": details["kernel_details_summary"],
            "trunc_kernel_details": details["trunc_kernel_details"],
            **{f"{title}_first": column for title, column in op_arguments(trace, rows).items()},
            **{f"{TIMES}_{key}": stats[key] for key in (*S5, "sum")},
            "name_count": stats["count"],
            "UID_first": ops.external_id,
            **_roofs(leading_works, details["kernel_details_summary"], stats["mean"], board),
        }
    )
    return most_first(found_rows, f"{TIMES}_sum")


def _categories(launched: Launches, instances: _Instances, first_rows: np.ndarray) -> np.ndarray:
    """The report's category of each distinct op, by its name, else by the kernels that are its own."""
    lead = np.full(len(instances.rows), -1, dtype=np.int64)
    order = np.flatnonzero(instances.of_kernel >= 0)[::-1]
    lead[instances.of_kernel[order]] = order
    names = launched.trace.text(launched.trace.operators.name_id[instances.rows[first_rows]])
    kernels = launched.trace.text(launched.trace.ops.name_id[lead[first_rows]])
    return objects([category(name, kernel) for name, kernel in zip(names, kernels, strict=True)])


def _readable(trace: Capture, ids: np.ndarray) -> np.ndarray:
    return objects([as_tuple(text) for text in trace.text(ids)])


def _cells(values: Sequence[Any]) -> list[Any]:
    """Parameters as a table holds them: tuples and lists as texts."""
    return [str(value) if isinstance(value, (tuple, list)) else value for value in values]


def _amounts(works: Sequence[Work | None]) -> dict[str, np.ndarray]:
    flops = np.array([work.flops if work else np.nan for work in works], dtype=float)
    num_bytes = np.array([work.num_bytes if work else np.nan for work in works], dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        intensity = flops / num_bytes
    return {"GFLOPS": flops / 1e9, "Data Moved (MB)": num_bytes / 2**20, "FLOPS/Byte": intensity}


def _rates(
    time_us: np.ndarray, group: np.ndarray, works: Sequence[Work | None]
) -> dict[str, dict[str, np.ndarray]]:
    """Statistics over instances of TB/s and TFLOPS/s."""
    flops = np.array([work.flops if work else np.nan for work in works], dtype=float)
    num_bytes = np.array([work.num_bytes if work else np.nan for work in works], dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        seconds = np.where(time_us > 0, time_us, np.nan) * 1e-6
        return {
            "TB/s": grouped(num_bytes[group] / seconds / 1e12, group, len(works)),
            "TFLOPS/s": grouped(flops[group] / seconds / 1e12, group, len(works)),
        }


def _board(trace: Capture) -> Board | None:
    """The data sheet of the recording's first device."""
    device = next(iter(trace.devices), None)
    return board_of(device.name, device.num_sms) if device else None


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
