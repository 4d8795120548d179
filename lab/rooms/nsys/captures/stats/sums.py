"""Time and size by kernel, API call, copy and fill."""

from __future__ import annotations

import re

import numpy as np

from lab.recordings.capture import COPY_KINDS, MEMCPY, MEMSET, Capture
from lab.recordings.projection import Projection
from lab.rooms.nsys.captures.stats.table import (
    Labels,
    Report,
    by_total,
    grouped,
    labelled,
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
    names = labelled(projection.capture.name, calls.name_id)
    return _sum_by_label(name, "Num Calls", ["Name"], [("", calls.end_ns - calls.start_ns, names)])


def gpu_sum(name: str, projection: Projection) -> Report:
    return _sum_by_label(name, "Instances", ["Category", "Operation"], _gpu_work(projection))


def api_gpu_sum(name: str, projection: Projection) -> Report:
    kinds = [("CUDA_API", *_calls(projection)), *_gpu_work(projection)]
    return _sum_by_label(name, "Instances", ["Category", "Operation"], kinds)


def _calls(projection: Projection) -> tuple[np.ndarray, Labels]:
    """Duration and nsys' name (n,) of each API call that counts."""
    api = projection.capture.api
    if projection.part is not None:
        api = api.where(projection.part.api)
    return api.end_ns - api.start_ns, api_names(projection.capture, api.name_id)


def _gpu_work(projection: Projection) -> list[tuple[str, np.ndarray, Labels]]:
    """(nsys' category, durations, names) of kernels, and of copies and fills."""
    ops = projection.capture.ops
    dur_ns, names = ops.end_ns - ops.start_ns, operation_names(projection.capture)
    memory = np.flatnonzero(np.isin(ops.kind, (MEMCPY, MEMSET)))
    kernels = np.flatnonzero(projection.capture.kernels)
    kinds = {"CUDA_KERNEL": kernels, "MEMORY_OPER": memory}
    return [(kind, dur_ns[rows], names.take(rows)) for kind, rows in kinds.items()]


def _sum_by_label(
    name: str, counted: str, last: list[str], kinds: list[tuple[str, np.ndarray, Labels]]
) -> Report:
    """Durations (n,) by kind and name (n,); `last` has one column for the name, or two with the kind."""
    kind = np.concatenate([np.full(len(durations), at) for at, (_, durations, _) in enumerate(kinds)])
    dur_ns = np.concatenate([durations for _, durations, _ in kinds])
    codes = np.concatenate([names.codes for _, _, names in kinds])
    groups = grouped(dur_ns, kind, codes)

    def label(group: int) -> list[str]:
        row = groups.first[group]
        title, _, names = kinds[kind[row]]
        return [title, names.texts[codes[row]]][-len(last) :]

    return share_table(name, counted, last, groups, label)


def api_names(capture: Capture, name_id: np.ndarray) -> Labels:
    """nsys' name of each API call (n,) by its string id."""
    return labelled(lambda one: _VERSION.sub("", capture.name(one)), name_id)


def operation_names(capture: Capture) -> Labels:
    """nsys' name (n,) of each copy and fill (HIP for CUDA on ROCm); a kernel's own name for a kernel."""
    maker = "HIP" if capture.collector in ("rocpd", "rpd", "rocprofv3") else "CUDA"

    def text(kind: int, copy_kind: int, name_id: int) -> str:
        if kind == MEMSET:
            return f"[{maker} memset]"
        if kind == MEMCPY and copy_kind in COPY_KINDS:
            return f"[{maker} memcpy {COPY_KINDS[copy_kind]}]"
        return capture.name(name_id)

    return labelled(text, capture.ops.kind, capture.ops.copy_kind, capture.ops.name_id)


def _memory_ops(projection: Projection) -> tuple[np.ndarray, Labels]:
    rows = np.flatnonzero(np.isin(projection.capture.ops.kind, (MEMCPY, MEMSET)))
    return rows, operation_names(projection.capture).take(rows)


def memory_time(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    ops = projection.capture.ops.take(rows)
    groups = grouped(ops.end_ns - ops.start_ns, names.codes)
    return share_table(name, "Count", ["Operation"], groups, lambda group: [names[groups.first[group]]])


def memory_size(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    groups = grouped(np.maximum(projection.capture.ops.bytes[rows], 0), names.codes)
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
