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
    dur_ns, names = _calls(projection)
    return _sum_by_label(name, "Num Calls", ["Name"], [("", dur_ns, names)])


def os_sum(name: str, projection: Projection) -> Report:
    calls = projection.capture.osrt
    if projection.part is not None:
        calls = calls.where(projection.part.osrt)
    names = projection.capture.text(calls.name_id)
    return _sum_by_label(name, "Num Calls", ["Name"], [("", calls.end_ns - calls.start_ns, names)])


def gpu_sum(name: str, projection: Projection) -> Report:
    return _sum_by_label(name, "Instances", ["Category", "Operation"], _gpu_work(projection))


def api_gpu_sum(name: str, projection: Projection) -> Report:
    kinds = [("CUDA_API", *_calls(projection)), *_gpu_work(projection)]
    return _sum_by_label(name, "Instances", ["Category", "Operation"], kinds)


def _calls(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Duration and nsys' name (n,) of each API call that counts."""
    api = projection.capture.api
    if projection.part is not None:
        api = api.where(projection.part.api)
    return api.end_ns - api.start_ns, api_names(projection.capture)[api.name_id]


def _gpu_work(projection: Projection) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(nsys' category, durations, names) of kernels, and of copies and fills."""
    ops = projection.capture.ops
    dur_ns, names = ops.end_ns - ops.start_ns, operation_names(projection.capture)
    memory = np.isin(ops.kind, (MEMCPY, MEMSET))
    kernels = projection.capture.kernels
    return [("CUDA_KERNEL", dur_ns[kernels], names[kernels]), ("MEMORY_OPER", dur_ns[memory], names[memory])]


def _sum_by_label(
    name: str, counted: str, last: list[str], kinds: list[tuple[str, np.ndarray, np.ndarray]]
) -> Report:
    """Durations (n,) by kind and name (n,); `last` has one column for the name, or two with the kind."""
    kind = np.concatenate([np.full(len(names), index) for index, (_, _, names) in enumerate(kinds)])
    dur_ns = np.concatenate([durations for _, durations, _ in kinds])
    names = np.concatenate([texts for _, _, texts in kinds])
    groups = grouped(dur_ns, kind, distinct_codes(names))

    def label(group: int) -> list[str]:
        row = groups.first[group]
        return [kinds[kind[row]][0], names[row]][-len(last) :]

    return share_table(name, counted, last, groups, label)


def api_names(capture: Capture) -> np.ndarray:
    return np.array([*(_VERSION.sub("", text) for text in capture.strings), ""], dtype=object)


def operation_names(capture: Capture) -> np.ndarray:
    """nsys' name (n,) of each copy and fill (HIP for CUDA on ROCm); a kernel's own name for a kernel."""
    maker = "HIP" if capture.collector in ("rocpd", "rpd", "rocprofv3") else "CUDA"
    known = (f"[{maker} memcpy {COPY_KINDS[kind]}]" if kind in COPY_KINDS else "" for kind in range(14))
    copies = np.array([*known, ""], dtype=object)
    names = capture.text(capture.ops.name_id)
    kinds = np.clip(capture.ops.copy_kind, -1, 13)
    is_copy = (capture.ops.kind == MEMCPY) & (copies[kinds] != "")
    names = np.where(is_copy, copies[kinds], names)
    return np.where(capture.ops.kind == MEMSET, f"[{maker} memset]", names)


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
