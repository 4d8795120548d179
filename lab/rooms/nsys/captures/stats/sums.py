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
    names = labelled(capture.name, ops.name_id)
    return _sum_by_name(name, "Instances", "Name", ops.end_ns - ops.start_ns, names)


def api_sum(name: str, projection: Projection) -> Report:
    calls = projection.capture.api
    if projection.part is not None:
        calls = calls.where(projection.part.api)
    names = api_names(projection.capture, calls.name_id)
    return _sum_by_name(name, "Num Calls", "Name", calls.end_ns - calls.start_ns, names)


def os_sum(name: str, projection: Projection) -> Report:
    calls = projection.capture.osrt
    if projection.part is not None:
        calls = calls.where(projection.part.osrt)
    names = labelled(projection.capture.name, calls.name_id)
    return _sum_by_name(name, "Num Calls", "Name", calls.end_ns - calls.start_ns, names)


def memory_time(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    ops = projection.capture.ops.take(rows)
    return _sum_by_name(name, "Count", "Operation", ops.end_ns - ops.start_ns, names)


def _sum_by_name(name: str, counted: str, heading: str, dur_ns: np.ndarray, names: Labels) -> Report:
    groups = grouped(dur_ns, names.codes)
    return share_table(name, counted, [heading], groups, lambda group: [names[groups.first_row[group]]])


def memory_size(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    groups = grouped(np.maximum(projection.capture.ops.bytes[rows], 0), names.codes)
    lines = []
    for group in by_total(groups, lambda group: [names[groups.first_row[group]]]):
        total = rounded(groups.total[group] / 1e6, 3)
        spread = groups.spread(group, 3, 1_000_000)
        lines.append([total, str(groups.count[group]), *spread, names[groups.first_row[group]]])
    spread_heads = [f"{word} (MB)" for word in ("Avg", "Med", "Min", "Max", "StdDev")]
    return Report(name, ["Total (MB)", "Count", *spread_heads, "Operation"], lines)


def _memory_ops(projection: Projection) -> tuple[np.ndarray, Labels]:
    rows = np.flatnonzero(np.isin(projection.capture.ops.kind, (MEMCPY, MEMSET)))
    return rows, operation_names(projection.capture).take(rows)


def api_names(capture: Capture, name_id: np.ndarray) -> Labels:
    """nsys' name of each API call (n,) by its string id."""
    return labelled(lambda index: _VERSION.sub("", capture.name(index)), name_id)


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
