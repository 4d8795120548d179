"""The chart as a table of bars and a picture, and the files they are written to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from lab.recordings.gantt.bars import FAMILIES, Bars
from lab.report.figures import save_png
from lab.report.tables import write_csv
from lab.rooms.kernels.catalogue.gantt.picture import draw
from lab.rooms.kernels.schema import TABLES


def write_gantt(bars: Bars, out: Path, *, step: str | None = None, bound: str = "") -> list[Path]:
    """gantt.csv, with its `bound`, and gantt.png in `out`; the page is the report's."""
    return [
        write_csv(bar_table(bars).assign(bound=bound), out / TABLES / "gantt.csv"),
        save_png(draw(bars, step=step), out / "figures" / "gantt.png", dpi=150),
    ]


def bar_table(bars: Bars) -> pd.DataFrame:
    """One row per bar, columns as in the original's CSV; `row` is the row of the chart."""
    names = np.array(bars.names, dtype=object)
    families = np.array([name for name, _, _ in FAMILIES], dtype=object)
    rows = np.array(bars.rows, dtype=object)
    table: pd.DataFrame = pd.DataFrame(
        {
            "name": names[bars.name] if len(bars.name) else [],
            "start_ms": bars.start_us / 1000,
            "dur_ms": bars.dur_us / 1000,
            "device": bars.device,
            "stream": bars.stream,
            "category": families[bars.family],
            "row": rows[bars.row],
        }
    )
    return table
