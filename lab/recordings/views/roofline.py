"""What each op of a recording computes, how fast, and how near it comes to its board's roof.

A GPU row is part of the innermost op around its launch that has a model of work (`lab.perfmodel`), else of
the op that launched it: so a product split in K counts its sum, and attention what it launches inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.perfmodel.boards import Board, Roof, board_of, excess_of, roof_of
from lab.perfmodel.calls import OpCall, Work
from lab.perfmodel.communication import collective_work, kind_in
from lab.perfmodel.dtypes import dtype_name
from lab.perfmodel.ops import has_model, work_of
from lab.perfmodel.products import is_product
from lab.recordings.capture import MEMSET, Capture, once
from lab.recordings.owners import nearest_ancestor
from lab.recordings.tables import Table
from lab.recordings.views.collectives import collective_instances
from lab.recordings.views.launches import link_ops, op_parents
from lab.stats.columns import columns_of_rows, distinct_rows
from lab.stats.intervals import spans, totals

NAMES = (
    "op shapes dtype kind rate count time_ms time_percent mean_us gflop mbytes intensity tflops gb_per_s "
    "peak_tflops peak_gb_per_s percent_of_roof bound_by note kernels"
)
COLUMNS = tuple(NAMES.split())
_FIGURES = COLUMNS[COLUMNS.index("mean_us") : COLUMNS.index("bound_by")]
_BLANK: dict[str, Any] = {name: np.nan if name in _FIGURES else "" for name in COLUMNS}
NO_OP = "(no op recorded)"
MOST_POINTS = 300  # of a drawing
_ARGUMENTS = ("dims_id", "types_id", "strides_id", "concrete_id")


@once
def work_owners(trace: Capture) -> np.ndarray:
    """Row of `operators` (n,) whose work each GPU row is part of, -1 where no op is known."""
    link = link_ops(trace)
    owner = nearest_ancestor(op_parents(trace), link, trace.by_text(has_model, trace.operators.name_id))
    return np.where(owner >= 0, owner, link)


def board_of_recording(trace: Capture) -> Board | None:
    """Return the data sheet of the recording's devices; None if they differ or are not known."""
    devices = {(device.name, device.num_sms) for device in trace.devices}
    return board_of(*devices.pop()) if len(devices) == 1 else None


@once
def op_roofs(trace: Capture) -> Table:
    """One row per op and arguments, most time first, and one of all GPU rows without an op.

    time_ms is the union of an op's GPU rows, summed over its `count` calls; rates are work over time. Work is
    NaN where it is not known and `note` says why; roofs are NaN for an unknown board, and where the kernels'
    names do not tell which units they use.
    """
    owner = work_owners(trace)
    collectives = collective_instances(trace) if len(trace.ops) else Table({"row": np.empty(0, np.int64)})
    of_collective = np.isin(np.arange(len(owner)), collectives.row)
    counted = (owner >= 0) & ~of_collective
    # A fill before a product clears a workspace of the library: it is not part of the product.
    fills = counted & (trace.ops.kind == MEMSET)
    counted[fills] = ~trace.by_text(is_product, trace.operators.name_id[owner[fills]])
    launched = np.flatnonzero(counted)
    op_rows, call_of_row = np.unique(owner[launched], return_inverse=True)
    row_spans = spans(trace.ops.start_ns, trace.ops.dur_ns)
    time_us = totals(row_spans[launched], call_of_row.ravel(), len(op_rows)) / 1000
    ops = trace.operators.take(op_rows)
    keys = np.stack([getattr(ops, name) for name in ("name_id", *_ARGUMENTS)], axis=1)
    distinct, group = distinct_rows(keys)
    group = group.ravel()
    counts = np.bincount(group, minlength=len(distinct))
    sums_us = np.bincount(group, weights=time_us, minlength=len(distinct))
    kernels = _kernel_names(trace, launched, call_of_row.ravel(), group, len(distinct))
    board = board_of_recording(trace)
    rows = [
        _row(trace, key, int(counts[index]), float(sums_us[index]), kernels[index], board)
        for index, key in enumerate(distinct.tolist())
    ]
    rows += _collective_rows(collectives)
    no_op = (owner < 0) & ~of_collective
    without_op_us = trace.ops.dur_ns[no_op].sum() / 1000
    all_us = float(sum(1000 * row["time_ms"] for row in rows) + without_op_us) or 1.0
    if without_op_us:
        of_no_op = {"op": NO_OP, "count": int(no_op.sum()), "time_ms": without_op_us / 1000, "note": "no op"}
        rows.append(_BLANK | of_no_op)
    for row in rows:
        row["time_percent"] = 100_000 * row["time_ms"] / all_us
    rows.sort(key=lambda row: -row["time_ms"])
    return Table(columns_of_rows(rows, COLUMNS))


def _kernel_names(
    trace: Capture, launched: np.ndarray, call_of_row: np.ndarray, group: np.ndarray, num_groups: int
) -> list[str]:
    """Names of the kernels of each group of calls, in the order in which they first ran."""
    pairs = np.stack([group[call_of_row], trace.ops.name_id[launched]], axis=1)
    _, first_rows = np.unique(pairs, axis=0, return_index=True)
    names: list[list[str]] = [[] for _ in range(num_groups)]
    for row in sorted(first_rows.tolist()):
        names[pairs[row, 0]].append(trace.name(int(pairs[row, 1])))
    return [" ; ".join(texts) for texts in names]


def _row(
    trace: Capture, key: Sequence[int], count: int, time_us: float, kernels: str, board: Board | None
) -> dict[str, Any]:
    name, dims, types, strides, concrete = (trace.name(index) for index in key)
    work = work_of(OpCall.from_profiler(name, dims, types, strides, concrete))
    roof = roof_of(work, board, kernels)
    mean_s = time_us / count * 1e-6
    row = _timed(name, dims, count, time_us, kernels, work)
    row["note"] = _note(name, dims, work, roof, board, mean_s)
    if work is not None:
        row |= {"dtype": work.dtype, "kind": work.kind}
        row["intensity"] = work.flops / work.num_bytes if work.num_bytes else np.nan
        row["tflops"] = work.flops / mean_s / 1e12 if mean_s > 0 else np.nan
    if roof is not None and board is not None:
        row |= {"rate": roof.rate, "peak_tflops": roof.peak_flops_per_s / 1e12, "bound_by": roof.bound_by}
        row["peak_gb_per_s"] = board.bytes_per_s / 1e9
        row["percent_of_roof"] = 100 * roof.least_s / mean_s if mean_s > 0 else np.nan
    return row


def _timed(
    name: str, shapes: str, count: int, time_us: float, kernels: str, work: Work | None
) -> dict[str, Any]:
    """A row with its time, and how much it computes and moves where that is known."""
    mean_us = time_us / count
    mean_s = mean_us * 1e-6
    row = _BLANK | {"op": name, "shapes": shapes, "count": count, "time_ms": time_us / 1000}
    row |= {"mean_us": mean_us, "kernels": kernels}
    if work is not None:
        row |= {"gflop": work.flops / 1e9, "mbytes": work.num_bytes / 1e6}
        row["gb_per_s"] = work.num_bytes / mean_s / 1e9 if mean_s > 0 else np.nan
    return row


def _collective_rows(collectives: Table) -> list[dict[str, Any]]:
    """One row per collective and message; waiting for other ranks is part of its time."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    names = ("collective", "in_nelems", "out_nelems", "dtype", "group_size", "kernel", "dur_ns")
    if len(collectives):
        for *key, dur_ns in zip(*(getattr(collectives, name).tolist() for name in names), strict=True):
            groups.setdefault(tuple(key), []).append(dur_ns / 1000)
    rows = []
    for (name, in_nelems, out_nelems, dtype, ranks, kernel), durs_us in groups.items():
        kind = kind_in(name) or kind_in(kernel)
        work = collective_work(kind, in_nelems, out_nelems, dtype, ranks)
        shapes = f"[{in_nelems}] of {ranks} ranks" if in_nelems >= 0 else ""
        row = _timed(name or kind or "a collective", shapes, len(durs_us), sum(durs_us), kernel, work)
        note = "a link has no roof here" if work else "no sizes recorded"
        rows.append(row | {"dtype": dtype, "kind": "Collective", "note": note})
    return rows


def _note(
    name: str, dims: str, work: Work | None, roof: Roof | None, board: Board | None, mean_s: float
) -> str:
    """Why an op has no work or no roof, or why its figures cannot be."""
    if work is None:
        if not has_model(name):
            return "no FLOPs known for this op"
        return "its sizes or types do not tell its FLOPs" if dims else "no shapes recorded"
    if board is None:
        return "unknown board"
    return excess_of(roof, mean_s) if roof is not None else "its kernels do not tell which peak they have"


def summary_of(roofs: Table) -> list[str]:
    """Say how much of the GPU's time has FLOPs, what has none, and which figures cannot be."""
    if not len(roofs) or (roofs.op == NO_OP).all():
        return []
    percent, gflop = roofs.time_percent.astype(float), roofs.gflop.astype(float)
    counted = ~np.isnan(gflop)
    largest = [f"{roofs.op[row]} {percent[row]:.1f} %" for row in np.flatnonzero(~counted).tolist()[:3]]
    largest_text = f"; without: {', '.join(largest)}" if largest else ""
    sentences = [f"FLOPs are known for {percent[counted].sum():.1f} % of the GPU's time{largest_text}."]
    if "unknown board" in roofs.note:
        sentences.append("No roof is drawn: lab has no data sheet for this board.")
    excess = np.flatnonzero([" peak cannot be: " in note for note in roofs.note]).tolist()
    sentences += [f"{roofs.op[row]} {roofs.shapes[row]}: {roofs.note[row]}." for row in excess[:3]]
    if len(excess) > 3:
        sentences.append(f"{len(excess) - 3} more ops are above their peak, see roofline.csv.")
    return sentences


Points = dict[str, list[tuple[float, float, str]]]


def drawing_of(roofs: Table) -> tuple[Points, dict[str, tuple[float, float]]]:
    """Return the MOST_POINTS costliest ops as points by rate, and the roof of each rate.

    A point is (FLOP per byte, TFLOP/s, text); a roof (peak TFLOP/s, TB/s).
    """
    points: Points = {}
    rates_of_roof: dict[tuple[float, float], dict[str, None]] = {}
    columns = (roofs.intensity, roofs.tflops, roofs.rate, roofs.dtype, roofs.peak_tflops, roofs.peak_gb_per_s)
    texts = (roofs.op, roofs.shapes, roofs.count, roofs.percent_of_roof)
    for row in zip(*columns, *texts, strict=True):
        intensity, tflops, rate, dtype, peak_tflops, peak_gb_per_s, op, shapes, count, percent = row
        if not (intensity > 0 and tflops > 0):
            continue
        if sum(map(len, points.values())) == MOST_POINTS:
            break
        of_roof = f", {percent:.0f} % of the roof" if percent == percent else ""
        text = f"{op} {shapes[:60]}: {tflops:.3g} TFLOP/s{of_roof}, {count} times"
        points.setdefault(rate or f"{dtype_name(dtype) or dtype}, no roof", []).append(
            (float(intensity), float(tflops), text)
        )
        if rate:
            rates_of_roof.setdefault((float(peak_tflops), float(peak_gb_per_s) / 1000), {})[rate] = None
    return points, {f"{', '.join(rates)} {roof[0]:g} TFLOP/s": roof for roof, rates in rates_of_roof.items()}
