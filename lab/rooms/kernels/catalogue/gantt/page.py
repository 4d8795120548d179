"""The Gantt chart as a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.core.words import plural
from lab.recordings.gantt.bars import Bars, busy_table, packed
from lab.recordings.integrity.words import integrity_lines
from lab.recordings.lacks import Lack, verdict_of
from lab.report.page import write_page
from lab.report.parts import Page, Section, Table, Timeline
from lab.report.tables import write_csv

CAPTION = (
    "Every launch: one row per stream for compute, communication and copies each. Grey bands are forwards or "
    "steps; red shade is compute beside communication or copies; the darker a pixel, the busier it is. "
    "Scroll to zoom, drag to move, double-click to show everything; a click says all about a launch. "
    "Keys: arrows, + and -, 0, n and p for the next and previous launch that the search finds."
)


def write_gantt_page(bars: Bars, out: Path, traces: Sequence[Path], lacks: Sequence[Lack] = ()) -> Path:
    """`out/gantt.html` with the chart and the times of each device; tables/busy.csv beside it."""
    busy = busy_table(bars, lacks)
    write_csv(busy, out / "tables" / "busy.csv")
    page = Page(
        title=f"Gantt of {traces[0].name}" + (f" and {len(traces) - 1} more" if len(traces) > 1 else ""),
        question="Who ran when?",
        verdict=[_sentence(bars), *(integrity_lines(lacks) if lacks else [])],
        status="ok" if verdict_of(lacks) == "complete" else "warn",
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


def _sentence(bars: Bars) -> str:
    forwards = f", {plural(len(bars.marks), 'forward or step', 'forwards or steps')}" if bars.marks else ""
    launches, rows = plural(len(bars.row), "launch"), plural(len(bars.rows), "row")
    return f"{launches} on {rows}{forwards}, {bars.end_us / 1000:.2f} ms."
