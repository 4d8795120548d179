"""Time and size by kernel, API call, copy and fill."""

from __future__ import annotations

import re

import numpy as np

from lab.recordings.capture import COPY_KINDS, MEMCPY, MEMSET, Capture
from lab.recordings.projection import Projection
from lab.rooms.nsys.captures.stats.table import (
    Report,
    by_total,
    distinct_codes,
    grouped,
    rounded,
    share_table,
)

_VERSION = re.compile(r"_v\d{4}$")  # nsys strips versions of four digits only


def kernel_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    ops = capture.ops.where(capture.kernels)
    groups = grouped(ops.end_ns - ops.start_ns, ops.name_id)
    return share_table(
        name, "Instances", ["Name"], groups, lambda group: [capture.name(ops.name_id[groups.first[group]])]
    )


def api_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    api = capture.api
    names = api_names(capture)[api.name_id]
    groups = grouped(api.end_ns - api.start_ns, distinct_codes(names))
    return share_table(name, "Num Calls", ["Name"], groups, lambda group: [names[groups.first[group]]])


def api_names(capture: Capture) -> np.ndarray:
    return np.array([*(_VERSION.sub("", text) for text in capture.strings), ""], dtype=object)


def operation_names(capture: Capture) -> np.ndarray:
    """nsys' name (n,) of each copy and fill of `ops`; a kernel's own name for a kernel."""
    copies = np.array(
        [*(f"[CUDA memcpy {COPY_KINDS[kind]}]" if kind in COPY_KINDS else "" for kind in range(14)), ""]
    )
    copies = copies.astype(object)
    names = capture.text(capture.ops.name_id)
    kinds = np.clip(capture.ops.copy_kind, -1, 13)
    is_copy = (capture.ops.kind == MEMCPY) & (copies[kinds] != "")
    names = np.where(is_copy, copies[kinds], names)
    return np.where(capture.ops.kind == MEMSET, "[CUDA memset]", names)


def _memory_ops(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    rows = np.flatnonzero(np.isin(projection.capture.ops.kind, (MEMCPY, MEMSET)))
    return rows, operation_names(projection.capture)[rows]


def memory_time(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    ops = projection.capture.ops.take(rows)
    groups = grouped(ops.end_ns - ops.start_ns, distinct_codes(names))
    return share_table(name, "Count", ["Operation"], groups, lambda group: [names[groups.first[group]]])


def memory_size(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    groups = grouped(np.maximum(projection.capture.ops.bytes[rows], 0), distinct_codes(names))
    shown = []
    for group in by_total(groups, lambda group: [names[groups.first[group]]]):
        figures = [
            rounded(groups.total[group] / 1e6, 3),
            str(groups.count[group]),
            *groups.spread(group, 3, 1_000_000),
        ]
        shown.append([*figures, names[groups.first[group]]])
    header = [
        "Total (MB)",
        "Count",
        "Avg (MB)",
        "Med (MB)",
        "Min (MB)",
        "Max (MB)",
        "StdDev (MB)",
        "Operation",
    ]
    return Report(name, header, shown)
