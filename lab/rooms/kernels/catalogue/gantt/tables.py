"""The chart as tables: one row per bar, one row per device; and the files they are written to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lab.recordings.integrity.words import AT_LEAST, AT_MOST, bound
from lab.recordings.lacks import Lack
from lab.report.figures import save_png
from lab.report.tables import write_csv
from lab.rooms.kernels.catalogue.gantt.bars import FAMILIES, GROUP_OF_FAMILY, GROUPS, Bars
from lab.rooms.kernels.catalogue.gantt.picture import draw
from lab.rooms.kernels.schema import TABLES
from lab.stats.intervals import spans, total, union


def write_gantt(bars: Bars, out: Path, *, step: str | None = None) -> list[Path]:
    """gantt.csv and gantt.png in `out`; the page is the report's."""
    return [
        write_csv(bar_table(bars), out / TABLES / "gantt.csv"),
        save_png(draw(bars, step=step), out / "figures" / "gantt.png", dpi=150),
    ]


def bar_table(bars: Bars) -> pd.DataFrame:
    """One row per bar, columns as in the original's CSV; `row` is the row of the chart."""
    names = np.array(bars.names, dtype=object)
    families = np.array([name for name, _, _ in FAMILIES], dtype=object)
    rows = np.array(bars.rows, dtype=object)
    found: pd.DataFrame = pd.DataFrame(
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
    return found


def busy_table(bars: Bars, lacks: Sequence[Lack] = ()) -> pd.DataFrame:
    """One row per rank and device: ms busy, idle, of each group, and of compute beside the others.

    bound says `busy at least, idle at most` where `lacks` names lost GPU rows.
    """
    bounds = f"busy {AT_LEAST}, idle {AT_MOST}" if bound(lacks, "gpu") else ""
    rows = []
    for lane in sorted(set(bars.lane)):
        mine = np.isin(bars.row, [row for row, one in enumerate(bars.lane) if one == lane])
        every = spans(
            np.rint(bars.start_us[mine] * 1000).astype(np.int64),
            np.rint(bars.dur_us[mine] * 1000).astype(np.int64),
        )
        group = GROUP_OF_FAMILY[bars.family[mine]]
        merged_ns = union(every)
        whole = int(merged_ns[-1, 1] - merged_ns[0, 0]) if len(merged_ns) else 0
        parts = {f"{name}_ms": total(every[group == index]) / 1e6 for index, name in enumerate(GROUPS)}
        overlap = bars.overlap[lane]
        rows.append(
            {
                "rank": lane[0],
                "device": lane[1],
                "launches": int(mine.sum()),
                "span_ms": whole / 1e6,
                "busy_ms": total(every) / 1e6,
                "idle_ms": (whole - total(every)) / 1e6,
                **parts,
                "overlap_ms": float((overlap[:, 1] - overlap[:, 0]).sum()) / 1000,
                "bound": bounds,
            }
        )
    found: pd.DataFrame = pd.DataFrame(rows)
    return found
