"""Time and size by kernel, API call, copy and fill."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from lab.recordings.capture import COPY_KINDS, MEMCPY, MEMSET, Capture
from lab.recordings.projection import Projection
from lab.recordings.tables import Table
from lab.rooms.nsys.captures.stats.table import (
    Report,
    by_total,
    labelled,
    rounded,
    rows_of,
    share_table,
    spread,
)

_VERSION = re.compile(r"_v\d{4}$")  # nsys strips versions of four digits only


def kernel_sum(name: str, projection: Projection) -> Report:
    kernels = projection.capture.ops.where(projection.capture.kernels)
    names = projection.capture.text(kernels.name_id)
    return share_table(name, "Instances", _timed(kernels, Name=names), ["Name"])


def api_sum(name: str, projection: Projection) -> Report:
    calls = projection.capture.api
    if projection.part is not None:
        calls = calls.where(projection.part.api)
    names = api_names(projection.capture, calls.name_id)
    return share_table(name, "Num Calls", _timed(calls, Name=names), ["Name"])


def os_sum(name: str, projection: Projection) -> Report:
    calls = projection.capture.osrt
    if projection.part is not None:
        calls = calls.where(projection.part.osrt)
    names = projection.capture.text(calls.name_id)
    return share_table(name, "Num Calls", _timed(calls, Name=names), ["Name"])


def memory_time(name: str, projection: Projection) -> Report:
    ops, names = _memory_ops(projection)
    return share_table(name, "Count", _timed(ops, Operation=names), ["Operation"])


def _timed(rows: Table, **labels: np.ndarray) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame({"ns": rows.end_ns - rows.start_ns, **labels})
    return frame


def memory_size(name: str, projection: Projection) -> Report:
    ops, names = _memory_ops(projection)
    table = by_total(pd.DataFrame({"ns": np.maximum(ops.bytes, 0), "Operation": names}), ["Operation"])
    lines = [
        [rounded(row.total / 1e6, 3), str(row.size), *spread(row, 3, 1_000_000), row.Operation]
        for row in rows_of(table)
    ]
    heads = [f"{word} (MB)" for word in ("Avg", "Med", "Min", "Max", "StdDev")]
    return Report(name, ["Total (MB)", "Count", *heads, "Operation"], lines)


def _memory_ops(projection: Projection) -> tuple[Table, np.ndarray]:
    capture = projection.capture
    mask = np.isin(capture.ops.kind, (MEMCPY, MEMSET))
    return capture.ops.where(mask), operation_names(capture)[mask]


def api_names(capture: Capture, name_id: np.ndarray) -> np.ndarray:
    """nsys' name of each API call (n,) by its string id."""
    return labelled(lambda index: _VERSION.sub("", capture.name(index)), name_id)


def operation_names(capture: Capture) -> np.ndarray:
    """nsys' name (n,) of each copy and fill (HIP for CUDA on ROCm); a kernel's own name for a kernel."""
    maker = "HIP" if capture.collector in ("rocpd", "rpd", "rocprofv3") else "CUDA"

    def text(kind: int, copy_kind: int, name_id: int) -> str:
        if kind == MEMSET:
            return f"[{maker} memset]"
        if kind == MEMCPY and copy_kind in COPY_KINDS:
            return f"[{maker} memcpy {COPY_KINDS[copy_kind]}]"
        return capture.name(name_id)

    return labelled(text, capture.ops.kind, capture.ops.copy_kind, capture.ops.name_id)
