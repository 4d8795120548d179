"""The framework's own operators within the measured steps."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.recordings.capture import OP, Capture
from lab.stats.intervals import enclosing


def cpu_ops_of(capture: Capture, steps: np.ndarray) -> pd.DataFrame:
    """Calls and self time per step of the framework's operators, costliest first; empty for nsys."""
    ranges = capture.ranges
    first, last = (ranges.start_ns[steps], ranges.end_ns[steps]) if len(steps) else (np.empty(0), np.empty(0))
    order = np.argsort(first)
    step = np.searchsorted(first[order], ranges.start_ns, side="right") - 1
    inside = (step >= 0) & (ranges.kind == OP)
    inside[inside] &= ranges.start_ns[inside] < last[order][step[inside]]
    rows = np.flatnonzero(inside)
    self_ns = (ranges.end_ns - ranges.start_ns).astype(np.int64)
    parents = _parent_ranges(capture)
    child = np.flatnonzero((parents >= 0) & (ranges.kind == OP))
    np.subtract.at(self_ns, parents[child], (ranges.end_ns - ranges.start_ns)[child])
    found = pd.DataFrame({"op": capture.text(ranges.name_id[rows]), "ns": self_ns[rows]})
    grouped = found.groupby("op")["ns"].agg(["size", "sum"]).sort_values("sum", ascending=False)
    num = max(1, len(steps))
    frame: pd.DataFrame = pd.DataFrame(
        {
            "op": grouped.index,
            "calls": grouped["size"].to_numpy() / num,
            "self_ms": grouped["sum"].to_numpy() / num / 1e6,
        }
    )
    return frame


def _parent_ranges(capture: Capture) -> np.ndarray:
    """The range around each range on its thread (n,), or -1."""
    ranges = capture.ranges
    parents = np.full(len(ranges), -1, dtype=np.int64)
    order = np.lexsort((-ranges.end_ns, ranges.start_ns, ranges.tid, ranges.pid))
    key = np.stack([ranges.pid[order], ranges.tid[order]], axis=1)
    cuts = np.flatnonzero((key[1:] != key[:-1]).any(axis=1)) + 1
    for rows in np.split(order, cuts):
        if len(rows):
            around = enclosing(np.stack([ranges.start_ns[rows], ranges.end_ns[rows]], axis=1))
            parents[rows] = np.where(around >= 0, rows[around], -1)
    return parents
