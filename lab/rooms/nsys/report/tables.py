"""The results of an analysis, and the tables of the room, one per CSV file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab.rooms.nsys.answers.answer import Answer, CellData, python_sample

# Column of the overview -> part and name of the value that fills it.
OVERVIEW = {
    "forward_ms": ("a", "range_ms"),
    "forward_plain_ms": ("a", "python_plain_ms"),
    "forward_busy_ms": ("a", "busy_ms"),
    "not_matmul_percent": ("c", "not_matmul_percent"),
    "forward_matmul_percent": ("d", "forward_matmul_percent"),
    "backward_matmul_percent": ("d", "backward_matmul_percent"),
    "training_matmul_percent": ("d", "step_matmul_percent"),
    "softmax_us": ("e", "computing_softmax_us"),
    "qk_gemm_us": ("e", "qk_gemm_us"),
    "av_gemm_us": ("e", "av_gemm_us"),
    "softmax_over_qk": ("e", "time_ratio"),
}
_BRIEF = ["cell", "outcome", "collector", "wall_ms", "plain_ms", "kernel_ms", "matmul_percent", "peak_mib"]


@dataclass(frozen=True)
class Results:
    """All that the page is made of. cells: a row per cell with outcome; data: cells with tables."""

    cells: pd.DataFrame
    data: list[CellData]
    answers: list[Answer]
    problems: pd.DataFrame

    @property
    def brief_cells(self) -> pd.DataFrame:
        columns: pd.DataFrame = self.cells[_BRIEF]
        return columns


def cell_row(cell: CellData, outcome: str, reason: str) -> dict[str, Any]:
    """A cell's row of tables/cells.csv: its outcome, its collector and its main figures."""
    files, result, recording = cell.files, cell.files.result, cell.recording
    step, collected = cell.phase("step"), cell.files.collected
    plain = python_sample(files.twin, "step")
    wall_ms = float(step.wall_ms) if step is not None else np.nan
    peak = result.peak_allocated_bytes if result else None
    device = (result.device.get("name") if result else None) or (recording.device if recording else "")
    return {
        "cell": cell.label,
        "size": files.cell.size,
        "context": files.cell.context,
        "type": files.cell.type,
        "outcome": outcome,
        "reason": reason,
        "collector": recording.collector if recording else collected.collector if collected else "",
        "not_nsys_because": (collected.reason or "") if collected and collected.collector != "nsys" else "",
        "tool_version": recording.version if recording else "",
        "device": device,
        "dtype": result.asked.dtype if result else "",
        "steps": int(step.steps) if step is not None else 0,
        "wall_ms": wall_ms,
        "plain_ms": np.nan if plain is None else plain.mean,
        "overhead_percent": np.nan if plain is None else 100 * (wall_ms - plain.mean) / plain.mean,
        "kernel_ms": float(step.kernel_ms) if step is not None else np.nan,
        "kernels": float(step.kernels) if step is not None else np.nan,
        "matmul_percent": float(step.matmul_percent) if step is not None else np.nan,
        "peak_mib": np.nan if peak is None else peak / 2**20,
        "capture": files.capture.name if files.capture else "",
    }


def all_tables(results: Results) -> dict[str, pd.DataFrame]:
    """Every table of the room, by the name of its CSV."""
    answers, data = results.answers, results.data
    checks = [(a.part, a.cell, c.name, c.state, c.expected, c.actual) for a in answers for c in a.checks]
    values = [(a.part, a.cell, name, value) for a in answers for name, value in a.values.items()]
    parts = {"phases": "phases", "classes": "classes", "kernels": "kernels", "attention": "parts"}
    of_cells = {
        name: _joined((cell, getattr(cell.tables, part)) for cell in data if cell.tables is not None)
        for name, part in parts.items()
    }
    cpu_ops = ((cell, cell.recording.cpu_ops) for cell in data if cell.recording is not None)
    return {
        "cells": results.cells,
        "overview": _overview(results),
        "answers": _frame(((a.part, a.cell, a.state, a.sentence) for a in answers), "part cell state answer"),
        "checks": _frame(checks, "part cell check state expected found"),
        "values": _frame(values, "part cell name value"),
        **of_cells,
        "cpu_ops": _joined(cpu_ops),
        "problems": results.problems,
    }


def _overview(results: Results) -> pd.DataFrame:
    """The main numbers of the answers, a row per size and context; empty where a question has no answer."""
    values = {(answer.cell, answer.part): answer.values for answer in results.answers if answer.is_answered}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for cell in results.data:
        size, context = cell.size_and_context
        row = rows.setdefault(cell.size_and_context, {"size": size, "context": context})
        for column, (part, name) in OVERVIEW.items():
            if name in values.get((cell.label, part), {}):
                row[column] = values[cell.label, part][name]
    return _frame(rows.values(), f"size context {' '.join(OVERVIEW)}")


def _frame(rows: Iterable[Any], columns: str) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(list(rows), columns=columns.split())
    return frame


def _joined(frames: Iterable[tuple[CellData, pd.DataFrame]]) -> pd.DataFrame:
    """One table of all cells' tables, the cell first."""
    parts = [frame.assign(cell=cell.label)[["cell", *frame.columns]] for cell, frame in frames if len(frame)]
    joined: pd.DataFrame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["cell"])
    return joined
