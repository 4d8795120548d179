"""Who ran when: the catalogue's launches as bars, as a table, a picture and a page of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.errors import MissingError
from lab.recordings.gantt import sources_of
from lab.recordings.gantt.bars import (
    FAMILIES,
    FAMILY_OF,
    PIXELS,
    Bars,
    Span,
    assemble,
    busy_table,
    folded,
    joined,
    packed,
)
from lab.recordings.integrity.words import integrity_lines
from lab.recordings.lacks import verdict_of
from lab.report.figures import save_png, timeline
from lab.report.page import write_page
from lab.report.parts import Page, Section, Table, Timeline
from lab.report.tables import write_csv
from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.rank import RankData
from lab.rooms.kernels.catalogue.trace_args import summary
from lab.rooms.kernels.schema import TABLES
from lab.stats.intervals import union

MOST_ROWS = 40  # of a picture; the page has all
CAPTION = (
    "Every launch: one row per stream for compute, communication and copies each. Grey bands are forwards or "
    "steps; red shade is compute beside communication or copies; the darker a pixel, the busier it is. "
    "Scroll to zoom, drag to move, double-click to show everything; a click says all about a launch. "
    "Keys: arrows, + and -, 0, n and p for the next and previous launch that the search finds."
)


def bars_of(catalogue: Catalogue) -> Bars:
    """All launches of all ranks on a common zero, in the classes that the catalogue's tables have."""
    launches = catalogue.launches
    shapes = {signature.sig_id: summary(signature.args) for signature in catalogue.signatures.signatures}
    frame = pd.DataFrame(
        {
            "rank": [launch.rank for launch in launches],
            "device": [launch.device for launch in launches],
            "stream": [launch.stream for launch in launches],
            "start_us": [launch.ts_us for launch in launches],
            "dur_us": [launch.dur_us for launch in launches],
            "family": np.array([FAMILY_OF[launch.class_] for launch in launches], dtype=np.int8),
            "name": [launch.name for launch in launches],
            "op": catalogue.op_names,
            "module": catalogue.modules,
            "phase": [launch.phase for launch in launches],
            "shapes": [shapes[launch.sig_id] for launch in launches],
            "source": np.concatenate([_sources(rank) for rank in catalogue.ranks]),
            "forward": [launch.forward for launch in launches],
        }
    )
    return assemble(frame, _marks(catalogue.ranks, frame))


def _sources(rank: RankData) -> np.ndarray:
    """The model's line (n,) of each launch of a rank by time, "" where it is not known."""
    order = np.argsort(rank.start_ns(), kind="stable")
    owner = rank.owner[order]
    operator_rows = np.append(rank.trace.operator_rows, -1)
    in_trace = (owner >= 0) & (owner < len(rank.trace.operators))
    sources = sources_of(rank.trace, operator_rows[np.where(in_trace, owner, -1)])
    if rank.compiled is not None:  # the model's line that Inductor wrote down, before its generated file
        kernels, hashes = rank.trace.text(rank.trace.ops.name_id)[order], rank.compiled.hashes[order]
        for row in np.flatnonzero(hashes != "").tolist():
            origin = rank.compiled.provenance.of(str(kernels[row]), str(hashes[row]))
            if origin and origin.lines:
                sources[row] = "; ".join(origin.lines)
    return sources


def _marks(ranks: Sequence[RankData], frame: pd.DataFrame) -> list[Span]:
    """The forwards of the first rank that has any, by what they launched."""
    for rank in ranks:
        of_rank = frame[(frame["rank"] == rank.rank) & (frame["forward"] >= 0)]
        if len(of_rank):
            ends_us = (of_rank["start_us"] + of_rank["dur_us"]).groupby(of_rank["forward"]).max()
            starts_us = of_rank.groupby("forward")["start_us"].min()
            return [
                Span(rank.marks.names[int(forward)], float(starts_us[forward]), float(end_us))
                for forward, end_us in ends_us.items()
            ]
    return []


def write_gantt(bars: Bars, out: Path, *, step: str | None = None, bound: str = "") -> list[Path]:
    """Write gantt.csv, with its `bound`, and gantt.png into `out`; the page is the report's."""
    return [
        write_csv(bar_table(bars).assign(bound=bound), out / TABLES / "gantt.csv"),
        save_png(draw(bars, step=step), out / "figures" / "gantt.png", dpi=150),
    ]


def bar_table(bars: Bars) -> pd.DataFrame:
    """One row per bar, columns as in the original's CSV; `row` is the row of the chart."""
    table: pd.DataFrame = pd.DataFrame(
        {
            "name": np.array(bars.names, dtype=object)[bars.name],
            "start_ms": bars.start_us / 1000,
            "dur_ms": bars.dur_us / 1000,
            "device": bars.device,
            "stream": bars.stream,
            "category": np.array([name for name, _, _ in FAMILIES], dtype=object)[bars.family],
            "row": np.array(bars.rows, dtype=object)[bars.row],
        }
    )
    return table


def write_gantt_page(bars: Bars, catalogue: Catalogue, out: Path) -> Path:
    """Write `out/gantt.html` with the chart and the times of each device; tables/busy.csv beside it."""
    busy = busy_table(bars, catalogue.lacks)
    write_csv(busy, out / TABLES / "busy.csv")
    traces = [rank.path for rank in catalogue.ranks]
    forwards = f", {plural(len(bars.marks), 'forward or step', 'forwards or steps')}" if bars.marks else ""
    counts = f"{plural(len(bars.row), 'launch')} on {plural(len(bars.rows), 'row')}"
    lines = integrity_lines(catalogue.lacks) if catalogue.lacks else []
    page = Page(
        title=f"Gantt of {traces[0].name}" + (f" and {len(traces) - 1} more" if len(traces) > 1 else ""),
        question="Who ran when?",
        verdict=[f"{counts}{forwards}, {bars.end_us / 1000:.2f} ms.", *lines],
        status="ok" if verdict_of(catalogue.lacks) == "complete" else "warn",
        room="kernels",
        provenance={"Traces": {str(index): str(path) for index, path in enumerate(traces)}},
        sections=[
            Section(
                "Chart",
                [Timeline("gantt", packed(bars), CAPTION, "tables/gantt.csv", "figures/gantt.png")],
            ),
            Section("By device", [Table(busy, "Times of each device", "tables/busy.csv")]),
        ],
    )
    return write_page(page, out / "gantt.html")


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
