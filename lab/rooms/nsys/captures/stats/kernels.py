"""Kernels by range and by launching thread."""

from __future__ import annotations

from itertools import chain
from typing import Any, cast

import numpy as np

from lab.recordings.projection import Projection
from lab.recordings.tables import Table
from lab.rooms.nsys.captures.stats.ranges import range_labels, range_styles
from lab.rooms.nsys.captures.stats.sums import api_names
from lab.rooms.nsys.captures.stats.table import (
    SPREAD,
    Labels,
    Report,
    grouped,
    groups_of,
    labelled,
    numbers,
    table_of,
    unattributed_note,
)


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
    labels, styles = _or_none(range_labels(capture), row), _or_none(range_styles(capture), row)
    tid = np.where(row >= 0, np.append(capture.ranges.tid, -1)[row], _launch_tid(projection)[op])
    pid, kernel = capture.ops.pid[op], capture.ops.name_id[op]
    dur_ns = capture.ops.end_ns[op] - capture.ops.start_ns[op]
    groups = grouped(dur_ns, labels.codes, styles.codes, pid, tid, kernel)
    distinct = groups_of(groups.of_row, row)[0] if len(row) else np.empty(0, dtype=np.int64)
    instances = np.bincount(groups.of_row[distinct][row[distinct] >= 0], minlength=len(groups.total))
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
    calls = api_names(capture, api.name_id)
    keys = (ops.pid, api.tid, ops.device, calls.codes, ops.name_id)
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
        "API Start (ns)": numbers(api.start_ns),
        "API Dur (ns)": numbers(api.end_ns - api.start_ns),
        "Queue Start (ns)": _where(queued > 0, api.end_ns),
        "Queue Dur (ns)": _where(queued > 0, queued),
        "Kernel Start (ns)": numbers(ops.start_ns),
        "Kernel Dur (ns)": numbers(ops.end_ns - ops.start_ns),
        "Total Dur (ns)": numbers(np.maximum(ops.end_ns, api.end_ns) - api.start_ns),
        "PID": numbers(ops.pid),
        "TID": numbers(api.tid),
        "DevId": numbers(ops.device),
        "API Function": api_names(capture, api.name_id).column().tolist(),
        "GridXYZ": _sizes(ops, "grid"),
        "BlockXYZ": _sizes(ops, "block"),
        "Kernel Name": capture.text(ops.name_id).tolist(),
    }
    return table_of(name, columns, unattributed_note(projection))


def _where(shown: np.ndarray, values: np.ndarray) -> list[str]:
    texts = zip(numbers(values), shown.tolist(), strict=True)
    return [text if is_shown else "" for text, is_shown in texts]


def _or_none(labels: Labels, rows: np.ndarray) -> Labels:
    """Those of `rows`, "" for row -1."""
    codes = np.append(labels.codes, len(labels.texts))
    return Labels(np.append(labels.texts, ""), codes[rows])


def _sizes(ops: Table, name: str) -> list[str]:
    """`  16    1    1` of each row (n,), as nsys writes it; "" where it was not recorded."""

    def text(*size: int) -> str:
        return "".join(f"{one:4d} " for one in size)[:-1] if min(size) >= 0 else ""

    found = labelled(text, *(getattr(ops, f"{name}_{axis}") for axis in "xyz"))
    return cast("list[str]", found.column().tolist())
