"""The bars for the page's canvas: every launch, as typed arrays."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from lab.recordings.names import short_name
from lab.rooms.kernels.catalogue.gantt.bars import FAMILIES, Bars
from lab.rooms.kernels.catalogue.gantt.picture import joined


def packed(bars: Bars) -> dict[str, Any]:
    """Arrays in base64, little endian; times in ticks that fit 32 bits."""
    tick_us = max(0.001, bars.end_us / 2**31)
    return {
        "tickUs": tick_us,
        "count": len(bars.row),
        "rows": bars.rows,
        "names": [short_name(name) for name in bars.names],
        "families": [{"name": name, "role": role} for name, role, _ in FAMILIES],
        "start": _base64(np.rint(bars.start_us / tick_us), "<u4"),
        "dur": _base64(np.rint(bars.dur_us / tick_us), "<u4"),
        "row": _base64(bars.row, "<u2"),
        "family": _base64(bars.family, "<u1"),
        "name": _base64(bars.name, "<u4"),
        "marks": [[mark.name, mark.start_us, mark.end_us] for mark in bars.marks],
        "shades": [
            [row, *map(float, piece)]
            for row, lane in enumerate(bars.lane)
            for piece in joined(bars.overlap[lane], 0.0, bars.end_us * 1.001)
        ],
    }


def _base64(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values.astype(kind)).tobytes()).decode()
