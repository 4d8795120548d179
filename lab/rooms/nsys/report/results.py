"""The results of an analysis, cell by cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.rooms.nsys.answers.answer import Answer, CellData, python_ms


@dataclass(frozen=True)
class Results:
    """All that the page is made of. cells: a row per cell with outcome; data: cells with tables."""

    cells: pd.DataFrame
    data: list[CellData]
    answers: list[Answer]
    problems: pd.DataFrame


def cell_row(cell: CellData, outcome: str, reason: str) -> dict[str, object]:
    """A cell's row of tables/cells.csv: its outcome, its collector and its main figures."""
    found, result = cell.found, cell.found.result
    step, collected = cell.phase("step"), cell.found.collected
    plain = python_ms(found.twin, "step")
    wall = float(step.wall_ms) if step is not None else np.nan
    peak = result.peak_allocated_bytes if result else None
    return {
        "cell": cell.label,
        "size": found.cell.size,
        "context": found.cell.context,
        "type": found.cell.type,
        "outcome": outcome,
        "reason": reason,
        "collector": cell.recording.collector if cell.recording else collected.collector if collected else "",
        "not_nsys_because": (collected.reason or "") if collected and collected.collector != "nsys" else "",
        "tool_version": cell.recording.version if cell.recording else "",
        "device": (result.device.get("name") if result else None)
        or (cell.recording.device if cell.recording else ""),
        "dtype": result.asked.dtype if result else "",
        "steps": int(step.steps) if step is not None else 0,
        "wall_ms": wall,
        "plain_ms": np.nan if plain is None else plain,
        "overhead_percent": np.nan if plain is None else 100 * (wall - plain) / plain,
        "kernel_ms": float(step.kernel_ms) if step is not None else np.nan,
        "kernels": float(step.kernels) if step is not None else np.nan,
        "matmul_percent": float(step.matmul_percent) if step is not None else np.nan,
        "peak_mib": np.nan if peak is None else peak / 2**20,
        "capture": found.capture.name if found.capture else "",
    }


def brief_cells(cells: pd.DataFrame) -> pd.DataFrame:
    short: pd.DataFrame = cells[
        ["cell", "outcome", "collector", "wall_ms", "plain_ms", "kernel_ms", "matmul_percent", "peak_mib"]
    ]
    return short
