"""The tables of the room, one per CSV file."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lab.rooms.nsys.answers.answer import CellData
from lab.rooms.nsys.answers.ceilings import roofline_points
from lab.rooms.nsys.report.results import Results


def all_tables(results: Results) -> dict[str, pd.DataFrame]:
    """Every table of the room, by the name of its CSV."""
    answers = pd.DataFrame(
        [(a.part, a.cell, a.state, a.sentence) for a in results.answers],
        columns=["part", "cell", "state", "answer"],
    )
    checks = pd.DataFrame(
        [
            (a.part, a.cell, check.name, check.state, check.expected, check.found)
            for a in results.answers
            for check in a.checks
        ],
        columns=["part", "cell", "check", "state", "expected", "found"],
    )
    values = pd.DataFrame(
        [(a.part, a.cell, name, value) for a in results.answers for name, value in a.values.items()],
        columns=["part", "cell", "name", "value"],
    )
    of_cells = {
        name: _joined(
            [(cell, getattr(cell.tables, name)) for cell in results.data if cell.tables is not None]
        )
        for name in ("phases", "classes", "kernels", "parts")
    }
    return {
        "cells": results.cells,
        "overview": overview(results),
        "answers": answers,
        "checks": checks,
        "values": values,
        "phases": of_cells["phases"],
        "classes": of_cells["classes"],
        "kernels": of_cells["kernels"],
        "attention": of_cells["parts"],
        "cpu_ops": _joined(
            [(cell, cell.recording.cpu_ops) for cell in results.data if cell.recording is not None]
        ),
        "roofline": _roofline_table(results),
        "problems": results.problems,
    }


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


def overview(results: Results) -> pd.DataFrame:
    """The main numbers of the answers, a row per size and context; empty where a question has no answer."""
    values = {(answer.cell, answer.part): answer.values for answer in results.answers if answer.given}
    rows: dict[tuple[str, int], dict[str, object]] = {}
    for cell in results.data:
        key = (cell.found.cell.size, cell.found.cell.context)
        row = rows.setdefault(key, {"size": key[0], "context": key[1]})
        row |= {
            column: values[cell.label, part][name]
            for column, (part, name) in OVERVIEW.items()
            if name in values.get((cell.label, part), {})
        }
    table: pd.DataFrame = pd.DataFrame(list(rows.values()), columns=["size", "context", *OVERVIEW])
    return table


def _joined(frames: Sequence[tuple[CellData, pd.DataFrame]]) -> pd.DataFrame:
    """One table of all cells' tables, the cell first."""
    parts = [frame.assign(cell=cell.label)[["cell", *frame.columns]] for cell, frame in frames if len(frame)]
    joined: pd.DataFrame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["cell"])
    return joined


def _roofline_table(results: Results) -> pd.DataFrame:
    rows = [
        point for cell in results.data if cell.found.cell.type == "forward" for point in roofline_points(cell)
    ]
    table: pd.DataFrame = pd.DataFrame(rows, columns=["cell", "what", "flop_per_byte", "tflops", "gb_per_s"])
    return table
