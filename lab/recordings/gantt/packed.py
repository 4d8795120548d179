"""The bars for the page's canvas: every launch, as compressed typed arrays."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from lab.recordings.gantt.bars import FAMILIES, LABELS, Bars
from lab.recordings.names import short_name
from lab.stats.intervals import union

PIXELS = 1500  # across a picture; pieces closer than one of them are drawn as one


def packed(bars: Bars) -> dict[str, Any]:
    """Arrays in base64 of deflate, little endian; times in ticks that fit 32 bits.

    A bar is its row, start (as the distance from the bar before), duration and kind; `kinds` holds name,
    family and labels of each distinct kind as columns of indices into `texts`.
    """
    tick_us = max(0.001, bars.end_us / (2**31 - 1))
    start = np.rint(bars.start_us / tick_us).astype(np.int64)
    kind_of_bar, kinds, texts = kinds_of(bars)
    return {
        "tickUs": tick_us,
        "count": len(bars.row),
        "rows": bars.rows,
        "families": [{"name": name, "role": role} for name, role, _ in FAMILIES],
        "texts": texts,
        "short": [short_name(name) for name in bars.names],
        "kinds": kinds,
        "start": _packed(np.diff(start, prepend=0), "<i4"),
        "dur": _packed(np.rint(bars.dur_us / tick_us), "<u4"),
        "row": _packed(bars.row, "<u4"),
        "kind": _packed(kind_of_bar, "<u4"),
        "marks": [[mark.name, mark.start_us, mark.end_us] for mark in bars.marks],
        "shades": [
            [row, *map(float, piece)]
            for row, lane in enumerate(bars.lane)
            for piece in joined(bars.overlap[lane], 0.0, bars.end_us * 1.001)
        ],
    }


def kinds_of(bars: Bars) -> tuple[np.ndarray, dict[str, list[int]], list[str]]:
    """The kind (n,) of each bar, the columns of the kinds, and their texts: names first, then labels."""
    shift = len(bars.names)
    columns = {"name": bars.name, "family": bars.family}
    for name in LABELS:
        if name in bars.labels:
            columns[name] = np.where(bars.labels[name] >= 0, bars.labels[name] + shift, -1)
    key = np.zeros(len(bars.row), dtype=np.int64)
    for values in columns.values():  # one number per combination, dense after each column
        used, codes = np.unique(values, return_inverse=True)
        key = np.unique(key * max(len(used), 1) + codes, return_inverse=True)[1]
    _, heads = np.unique(key, return_index=True)
    kinds: dict[str, list[int]] = {name: values[heads].tolist() for name, values in columns.items()}
    return key, kinds, [*bars.names, *bars.texts]


def _packed(values: np.ndarray, kind: str) -> str:
    raw = np.ascontiguousarray(values.astype(kind)).tobytes()
    return base64.b64encode(zlib.compress(raw, 6)).decode()


def joined(pieces_us: np.ndarray, low_us: float, high_us: float) -> np.ndarray:
    """Overlap inside the window, pieces closer than a pixel joined."""
    pixel = max((high_us - low_us) / PIXELS, 1e-3)
    pieces = pieces_us[(pieces_us[:, 1] > low_us) & (pieces_us[:, 0] < high_us)]
    ticks = np.stack([np.floor(pieces[:, 0] / pixel), np.ceil(pieces[:, 1] / pixel)], axis=1).astype(np.int64)
    merged: np.ndarray = union(ticks) * pixel
    return merged
