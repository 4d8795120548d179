"""The picture: bars by pixels, forwards as bands, overlap shaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lab.errors import MissingError
from lab.recordings.gantt.bars import FAMILIES, PIXELS, Bars, folded, joined
from lab.report.figures import timeline
from lab.stats.intervals import union

MOST_ROWS = 40  # of a picture; the page has all


def draw(bars: Bars, *, step: str | None = None) -> Any:
    """A matplotlib Figure: one row per stream and group, families by colour; rows of little time as one."""
    bars = folded(bars, MOST_ROWS)
    low_us, high_us = window(bars, step)
    shown = merged(bars, low_us, high_us)
    bands = [
        (mark.name, mark.start_us / 1000, mark.end_us / 1000)
        for mark in bars.marks
        if mark.end_us > low_us and mark.start_us < high_us
    ]
    shades = [
        (row, piece[0] / 1000, piece[1] / 1000)
        for row, lane in enumerate(bars.lane)
        for piece in joined(bars.overlap[lane], low_us, high_us)
    ]
    parts = {}
    for index, (name, role, _) in enumerate(FAMILIES):
        bars_of_family = shown[shown["family"] == index][["row", "start_us", "dur_us", "busy"]]
        if len(bars_of_family):
            parts[name, role] = bars_of_family.to_numpy(dtype=float) / [1, 1000, 1000, 1]
    return timeline(
        bars.rows,
        parts,
        span=(low_us / 1000, high_us / 1000),
        bands=bands,
        shades=shades,
        axis="ms since the first launch",
    )


def window(bars: Bars, step: str | None) -> tuple[float, float]:
    """The time shown, us: everything, or the forward named `step` with a little before and after."""
    if step is None:
        return 0.0, bars.end_us
    for mark in bars.marks:
        if step in (mark.name, mark.name.rpartition("#")[2]):
            edge = 0.02 * (mark.end_us - mark.start_us)
            return mark.start_us - edge, mark.end_us + edge
    names = ", ".join(mark.name for mark in bars.marks[:8])
    raise MissingError(
        f"no forward or step {step!r} in the trace",
        fix=f"one of: {names}" if names else "this trace has no marks: leave out --step",
    )


def merged(bars: Bars, low_us: float, high_us: float, pixels: int = PIXELS) -> pd.DataFrame:
    """Bars inside the window, in a picture's resolution: columns row, family, start_us, dur_us, busy.

    A pixel that several families share belongs to the one with most time in it; busy is the share of the
    pixel in which anything runs, in quarters, rounded up. Equal neighbours are joined.
    """
    pixel = max((high_us - low_us) / pixels, 1e-3)
    edges = low_us + pixel * np.arange(pixels + 1)
    end_us = bars.start_us + bars.dur_us
    inside = (bars.start_us < high_us) & (end_us > low_us)
    parts = []
    for row in range(len(bars.rows)):
        of_row = inside & (bars.row == row)
        of_family = [of_row & (bars.family == index) for index in range(len(FAMILIES))]
        covered = np.stack(
            [_covered(bars.start_us[is_used], end_us[is_used], edges) for is_used in of_family]
        )
        winner = np.where(covered.max(axis=0) > 0, covered.argmax(axis=0), -1)
        quarters = np.ceil(np.minimum(covered.sum(axis=0) / (pixel * 1000), 1.0) * 4 - 1e-6).astype(np.int64)
        alike = winner * 8 + quarters
        starts = np.flatnonzero(np.diff(alike, prepend=alike[:1] - 1) != 0)
        ends = np.append(starts[1:], len(winner))
        is_used = winner[starts] >= 0
        columns = {
            "row": row,
            "family": winner[starts][is_used],
            "start_us": edges[starts][is_used],
            "dur_us": (edges[ends] - edges[starts])[is_used],
            "busy": quarters[starts][is_used] / 4,
        }
        parts.append(pd.DataFrame(columns))
    shown: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return shown


def _covered(start_us: np.ndarray, end_us: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Ticks (p,) that bars (n,) cover between neighbouring `edges` (p + 1,), each instant counted once."""
    ticks = np.rint(np.stack([start_us, np.maximum(end_us, start_us + 1e-3)], axis=1) * 1000).astype(np.int64)
    once = union(ticks)
    if not len(once):
        return np.zeros(len(edges) - 1)
    lengths = np.cumsum(once[:, 1] - once[:, 0])
    covered_until = np.stack([np.append(0, lengths[:-1]), lengths], axis=1).ravel()
    covered: np.ndarray = np.diff(np.interp(edges * 1000, once.ravel(), covered_until))
    return covered
