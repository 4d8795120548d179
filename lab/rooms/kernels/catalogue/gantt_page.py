"""The Gantt chart as a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.report.page import Page, Section, Table, Timeline, write_page
from lab.report.tables import write_csv
from lab.rooms.kernels.catalogue import gantt

CAPTION = (
    "Every launch, a row for compute, communication and copies of each stream; grey bands are forwards or steps, red shade "
    "is compute beside communication or copies; a pixel is as strong as it is busy. Wheel zooms, drag moves, double click shows all."
)


def write_gantt_page(bars: gantt.Bars, out: Path, traces: Sequence[Path]) -> Path:
    """`out/gantt.html` with the chart and the times of each device; tables/busy.csv beside it."""
    busy = gantt.busy(bars)
    write_csv(busy, out / "tables" / "busy.csv")
    forwards = f", {len(bars.marks)} forwards or steps" if bars.marks else ""
    page = Page(
        title=f"Gantt of {traces[0].name}" + (f" and {len(traces) - 1} more" if len(traces) > 1 else ""),
        question="Who ran when?",
        verdict=[
            f"{len(bars.row)} launches on {len(bars.rows)} rows{forwards}, {bars.end_us / 1000:.2f} ms."
        ],
        status="ok",
        room="kernels",
        provenance={"Traces": {str(at): str(path) for at, path in enumerate(traces)}},
        sections=[
            Section(
                "Chart",
                [Timeline("gantt", gantt.packed(bars), CAPTION, "tables/gantt.csv", "figures/gantt.png")],
            ),
            Section("By device", [Table(busy, "Times of each device", "tables/busy.csv")]),
        ],
    )
    return write_page(page, out / "gantt.html")
