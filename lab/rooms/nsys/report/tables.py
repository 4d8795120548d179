"""The results of an analysis: its tables, one per CSV file, its sentences, and ANALYSIS_SUMMARY.txt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab.report.tables import terminal_table
from lab.rooms.nsys.answers.answer import FAILED, OK, OPEN, Answer, python_sample
from lab.rooms.nsys.config import QUESTIONS
from lab.rooms.nsys.layout import CellData

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
_STEP_FIGURES = ("kernel_ms", "kernels", "matmul_percent")
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
        table: pd.DataFrame = self.cells[_BRIEF]
        return table


def cell_row(cell: CellData, outcome: str, reason: str) -> dict[str, Any]:
    """A cell's row of tables/cells.csv: its outcome, its collector and its main figures."""
    result, recording, collected = cell.result, cell.recording, cell.collected
    step, plain = cell.phase("step"), python_sample(cell.twin, "step")
    wall_ms, *of_step = (
        np.nan if step is None else float(step[name]) for name in ("wall_ms", *_STEP_FIGURES)
    )
    plain_ms = np.nan if plain is None else plain.mean
    peak = result.peak_allocated_bytes if result else None
    device = (result.device.get("name") if result else None) or (recording.device if recording else "")
    return {
        "cell": cell.label,
        "size": cell.size,
        "context": cell.context,
        "type": cell.type,
        "outcome": outcome,
        "reason": reason,
        "collector": recording.collector if recording else collected.collector if collected else "",
        "not_nsys_because": (collected.reason or "") if collected and collected.collector != "nsys" else "",
        "tool_version": recording.version if recording else "",
        "device": device,
        "dtype": result.asked.dtype if result else "",
        "steps": 0 if step is None else int(step.steps),
        "wall_ms": wall_ms,
        "plain_ms": plain_ms,
        "overhead_percent": 100 * (wall_ms - plain_ms) / plain_ms,
        **dict(zip(_STEP_FIGURES, of_step, strict=True)),
        "peak_mib": np.nan if peak is None else peak / 2**20,
        "capture": cell.capture.name if cell.capture else "",
    }


def all_tables(results: Results) -> dict[str, pd.DataFrame]:
    """Every table of the room, by the name of its CSV."""
    answers = results.answers
    checks = [(a.part, a.cell, c.name, c.state, c.expected, c.actual) for a in answers for c in a.checks]
    values = [(a.part, a.cell, name, value) for a in answers for name, value in a.values.items()]
    return {
        "cells": results.cells,
        "overview": _overview(results),
        "answers": _frame(((a.part, a.cell, a.state, a.sentence) for a in answers), "part cell state answer"),
        "checks": _frame(checks, "part cell check state expected found"),
        "values": _frame(values, "part cell name value"),
        **{name: _joined(results.data, name) for name in ("phases", "classes", "kernels", "attention")},
        "problems": results.problems,
    }


def _overview(results: Results) -> pd.DataFrame:
    """The main numbers of the answers, a row per size and context; empty where a question has no answer."""
    values = {(answer.cell, answer.part): answer.values for answer in results.answers if answer.is_answered}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for cell in results.data:
        row = rows.setdefault(cell.size_and_context, {"size": cell.size, "context": cell.context})
        for column, (part, name) in OVERVIEW.items():
            if name in values.get((cell.label, part), {}):
                row[column] = values[cell.label, part][name]
    return _frame(rows.values(), f"size context {' '.join(OVERVIEW)}")


def _frame(rows: Iterable[Any], columns: str) -> pd.DataFrame:
    table: pd.DataFrame = pd.DataFrame(list(rows), columns=columns.split())
    return table


def _joined(data: Sequence[CellData], name: str) -> pd.DataFrame:
    """One table of the cells' tables of this name, the cell first."""
    of_cells = [(cell.label, cell.tables[name]) for cell in data if cell.tables]
    frames = [frame.assign(cell=label)[["cell", *frame.columns]] for label, frame in of_cells if len(frame)]
    table: pd.DataFrame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["cell"])
    return table


def verdict(results: Results) -> list[str]:
    """How much was recorded and by which collector, then each question's answer of the largest cell."""
    counts = results.cells["outcome"].value_counts()
    unrecorded = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "ok")
    collectors = sorted(set(results.cells.loc[results.cells["collector"] != "", "collector"]))
    by = f" by {' and '.join(collectors)}" if collectors else ""
    recorded = f"{int(counts.get('ok', 0))} of {len(results.cells)} cells recorded{by}"
    sentences = [f"{recorded}{f' ({unrecorded})' if unrecorded else ''}."]
    if len(results.cells) and (results.cells["outcome"] == "no_gpu_data").all():
        sentences.append(
            "These cells have no GPU kernels: only wall times are known, and questions (b) to (e) are open."
        )
    last_answers = {answer.part: answer for answer in results.answers if answer.is_answered}
    sentences += [
        f"({part}) {last_answers[part].cell}: {last_answers[part].sentence}"
        for part in QUESTIONS
        if part in last_answers
    ]
    return [*sentences, *_check_sentence(results.answers)]


def _check_sentence(answers: Sequence[Answer]) -> list[str]:
    checks = [(answer, check) for answer in answers for check in answer.checks]
    if not checks:
        return []
    states = [check.state for _, check in checks]
    sentence = f"{states.count(OK)} of {len(checks)} self-checks hold"
    if num_open := states.count(OPEN):
        sentence += f", {num_open} could not be made"
    if num_failed := states.count(FAILED):
        answer, check = checks[states.index(FAILED)]
        sentence += (
            f"; {num_failed} failed, the first in ({answer.part}) {answer.cell}: {check.name}, "
            f"expected {check.expected}, found {check.actual}"
        )
    return [sentence + "."]


def summary_text(results: Results, sentences: Sequence[str]) -> str:
    """ANALYSIS_SUMMARY.txt: the answers of every cell, to read and to commit."""
    lines = ["NSYS ANALYSIS SUMMARY", "", *sentences, ""]
    for part, question in QUESTIONS.items():
        answers = [answer for answer in results.answers if answer.part == part]
        if answers:
            lines += [f"({part}) {question}", ""]
        for answer in answers:
            lines.append(f"  {answer.cell}: {answer.sentence}")
            lines += [f"    {check.line()}" for check in answer.checks]
        lines += [""] if answers else []
    return "\n".join([*lines, terminal_table(results.brief_cells), ""])
