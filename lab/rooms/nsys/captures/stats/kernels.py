"""Kernels by range and by launching thread."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from lab.recordings.projection import Projection
from lab.recordings.tables import Table
from lab.rooms.nsys.captures.stats.ranges import range_labels, range_styles
from lab.rooms.nsys.captures.stats.sums import api_names
from lab.rooms.nsys.captures.stats.table import SPREAD, Report, distinct_codes, grouped, unattributed_note


def _kernel_range_pairs(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of a kernel (row of `ops`) and a range that it counts in; -1 once where there is none."""
    kernels = np.flatnonzero(projection.capture.kernels)
    ops, rows = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for start in (projection.ops.range, projection.ops.inherited):
        op, at = kernels, start[kernels]
        while len(op := op[at >= 0]):
            at = at[at >= 0]
            ops.append(op)
            rows.append(at)
            at = projection.instances.parent[at]
    in_loose = projection.capture.kernels[projection.loose.op]
    ops.append(projection.loose.op[in_loose])
    rows.append(projection.loose.range[in_loose])
    op, row = np.concatenate(ops), np.concatenate(rows)
    alone = np.setdiff1d(kernels, op)
    return np.concatenate([op, alone]), np.concatenate([row, np.full(len(alone), -1)])


def range_kernel_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    op, row = _kernel_range_pairs(projection)
    labels = np.append(range_labels(capture), "")[row]
    styles = np.append(range_styles(capture), "")[row]
    tid = np.where(row >= 0, np.append(capture.ranges.tid, -1)[row], _launch_tid(projection)[op])
    pid, kernel = capture.ops.pid[op], capture.ops.name_id[op]
    dur_ns = capture.ops.end_ns[op] - capture.ops.start_ns[op]
    groups = grouped(dur_ns, distinct_codes(labels), distinct_codes(styles), pid, tid, kernel)
    distinct = np.unique(np.stack([groups.of_row, row], axis=1), axis=0)
    instances = np.bincount(distinct[:, 0][distinct[:, 1] >= 0], minlength=len(groups.total))
    at = groups.first

    def key(group: int) -> tuple[Any, ...]:
        one = at[group]
        return (labels[one], styles[one], pid[one], tid[one], -groups.total[group], capture.name(kernel[one]))

    shown = []
    for group in sorted(range(len(groups.total)), key=key):
        one = at[group]
        whose = [labels[one], styles[one], str(pid[one]), str(tid[one]) if tid[one] >= 0 else ""]
        figures = [instances[group], groups.count[group], groups.total[group]]
        shown.append([*whose, *map(str, figures), *groups.spread(group), capture.name(kernel[one])])
    header = [
        "NVTX Range",
        "Style",
        "PID",
        "TID",
        "NVTX Inst",
        "Kern Inst",
        "Total Time (ns)",
        *SPREAD,
        "Kernel Name",
    ]
    return Report(name, header, shown, unattributed_note(projection))


def _launch_tid(projection: Projection) -> np.ndarray:
    """Thread (n,) that launched each operation, -1 where the call was not recorded."""
    tids: np.ndarray = np.append(projection.capture.api.tid, -1)[projection.ops.api]
    return tids


def execution_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    rows = np.flatnonzero(capture.kernels & (projection.ops.api >= 0))
    ops, api = capture.ops.take(rows), capture.api.take(projection.ops.api[rows])
    calls = api_names(capture)[api.name_id]
    keys = (ops.pid, api.tid, ops.device, distinct_codes(calls), ops.name_id)
    queued = ops.start_ns - api.end_ns
    times = {
        "T": np.maximum(ops.end_ns, api.end_ns) - api.start_ns,
        "A": api.end_ns - api.start_ns,
        "Q": queued,
        "K": ops.end_ns - ops.start_ns,
    }
    groups = {letter: grouped(values, *keys) for letter, values in times.items()}
    waits = {
        group: queued[(groups["Q"].of_row == group) & (queued > 0)] for group in range(len(groups["T"].total))
    }
    shown = []
    for group in sorted(waits, key=lambda group: (-groups["T"].avg[group], groups["T"].first[group])):
        one, wait = groups["T"].first[group], waits[group]
        count = groups["T"].count[group]
        spread = grouped(wait, np.zeros_like(wait)).spread(0) if len(wait) else ["", "", "", "", "0.0"]
        figures = [groups["T"].spread(group), groups["A"].spread(group), spread, groups["K"].spread(group)]
        whose = [ops.pid[one], api.tid[one], ops.device[one], count, len(wait)]
        shown.append(
            [*map(str, whose), *chain.from_iterable(figures), calls[one], capture.name(ops.name_id[one])]
        )
    header = ["PID", "TID", "DevId", "Count", "QCount", *(letter + key for letter in times for key in SPREAD)]
    return Report(name, [*header, "API Name", "Kernel Name"], shown, unattributed_note(projection))


def execution_trace(name: str, projection: Projection) -> Report:
    """Every kernel with its call, by the call's start; the queue is the time between, if there was any."""
    capture = projection.capture
    rows = np.flatnonzero(capture.kernels & (projection.ops.api >= 0))
    rows = rows[np.lexsort((capture.ops.start_ns[rows], capture.api.start_ns[projection.ops.api[rows]]))]
    ops, api = capture.ops.take(rows), capture.api.take(projection.ops.api[rows])
    queued = ops.start_ns - api.end_ns
    columns = {
        "API Start (ns)": _texts(api.start_ns),
        "API Dur (ns)": _texts(api.end_ns - api.start_ns),
        "Queue Start (ns)": np.where(queued > 0, _texts(api.end_ns), ""),
        "Queue Dur (ns)": np.where(queued > 0, _texts(queued), ""),
        "Kernel Start (ns)": _texts(ops.start_ns),
        "Kernel Dur (ns)": _texts(ops.end_ns - ops.start_ns),
        "Total Dur (ns)": _texts(np.maximum(ops.end_ns, api.end_ns) - api.start_ns),
        "PID": _texts(ops.pid),
        "TID": _texts(api.tid),
        "DevId": _texts(ops.device),
        "API Function": api_names(capture)[api.name_id],
        "GridXYZ": _sizes(ops, "grid"),
        "BlockXYZ": _sizes(ops, "block"),
        "Kernel Name": capture.text(ops.name_id),
    }
    shown = [list(row) for row in zip(*(column.tolist() for column in columns.values()), strict=True)]
    return Report(name, list(columns), shown, unattributed_note(projection))


def _texts(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(str).astype(object)


def _sizes(ops: Table, name: str) -> np.ndarray:
    """`  16    1    1` of each row (n,), as nsys writes it; "" where it was not recorded."""
    sizes = np.stack([getattr(ops, f"{name}_{axis}") for axis in "xyz"], axis=1)
    used, which = np.unique(sizes, axis=0, return_inverse=True)
    texts = ["".join(f"{size:4d} " for size in row)[:-1] if min(row) >= 0 else "" for row in used.tolist()]
    return np.array(texts, dtype=object)[which.ravel()] if len(used) else np.empty(0, dtype=object)
