"""Figures and tables of each section of the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.report.figures import lines, save, stacked_bars
from lab.report.parts import Block, Figure, Points, Prose, Section, Table
from lab.report.terminal import Heading
from lab.rooms.nsys.answers.answer import FAILED, OK, OPEN, Answer, CellData
from lab.rooms.nsys.config import QUESTIONS, TYPES
from lab.rooms.nsys.recording import PHASES
from lab.rooms.nsys.report.tables import Results

HEADINGS = {
    "not_nsys_because": Heading("not nsys, because", ""),
    "wall_ms": Heading("step, wall", "ms"),
    "plain_ms": Heading("step, no profiler", "ms"),
    "overhead_percent": Heading("longer than without profiler", "%"),
}
PILLS = {
    OK: "ok",
    FAILED: "fail",
    OPEN: "unknown",
    "no answer": "unknown",
    **dict.fromkeys(("oom", "no_gpu_data", "skipped_estimate"), "warn"),
    **dict.fromkeys(("failed", "timeout", "missing", "unreadable"), "fail"),
}
# Kernel classes drawn as one colour each: role -> (words, classes).
CLASS_COLOURS = {
    "computation": ("matrix products", ("gemm", "gemv", "attention", "conv")),
    "communication": ("elementwise", ("elementwise", "mask", "rope", "triton")),
    "memcpy": ("copies and gathers", ("copy", "index", "memcpy", "memset")),
    "ok": ("reductions, softmax, norms", ("reduce", "scan", "softmax", "norm", "splitk_reduce")),
    "fail": ("optimizer", ("optimizer",)),
    "unknown": ("other", ()),
}


def sections(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Section]:
    """The sections with something in them; figures go to `folder`."""
    checks, problems, attention = tables["checks"], results.problems, tables["attention"]
    blocks: dict[str, list[Block]] = {
        "Answers": _answer_blocks(results, tables["answers"]),
        "Sizes and contexts": _cell_blocks(results, tables["overview"]),
        "Where the time goes": _time_blocks(results, tables, folder),
        "Attention": [Table(attention, "Its parts in the forward pass, per layer", "tables/attention.csv")],
        "Self-checks": [Table(checks, "Every check of every answer", "tables/checks.csv", pills=PILLS)],
        "Problems": [Table(problems, "What could not be read, or looks wrong", "tables/problems.csv")],
    }
    empty = {"Attention": attention.empty, "Self-checks": checks.empty, "Problems": problems.empty}
    return [Section(title, parts) for title, parts in blocks.items() if parts and not empty.get(title)]


def _answer_blocks(results: Results, table: pd.DataFrame) -> list[Block]:
    blocks: list[Block] = []
    for part, question in QUESTIONS.items():
        answers = [answer for answer in results.answers if answer.part == part]
        if answers:
            blocks.append(Prose(f"({part}) {question}"))
            blocks.append(Points([f"{a.cell}: {a.sentence}{_failed_checks(a)}" for a in answers[:12]]))
    if len(table):
        blocks.append(Table(table, "All answers", "tables/answers.csv", pills=PILLS, open_rows=0))
    return blocks


def _failed_checks(answer: Answer) -> str:
    failed = [check.name for check in answer.checks if check.state == FAILED]
    return f" A self-check failed: {'; '.join(failed)}." if failed else ""


def _cell_blocks(results: Results, overview: pd.DataFrame) -> list[Block]:
    cells = results.cells.drop(columns=["cell", "capture"])
    cells = cells[[name for name in cells if (cells[name].notna() & (cells[name] != "")).any()]]
    overview = overview.dropna(axis="columns", how="all")
    return [
        Table(overview, "Answers in numbers", "tables/overview.csv"),
        Table(cells, "Every cell", "tables/cells.csv", headings=HEADINGS, pills=PILLS),
    ]


def _time_blocks(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Block]:
    classes, phases, cpu_ops = tables["classes"], tables["phases"], tables["cpu_ops"]
    blocks: list[Block] = []
    if len(classes):
        caption = (
            "Mean kernel time per measured step (warm-up left out) of each phase, by class of kernel; "
            "for each size and context the profile type with most phases."
        )
        blocks.append(_figure(_phase_drawing(results), folder, "phases", caption, "classes"))
    contexts = sorted({cell.files.cell.context for cell in results.data})
    shares = _matmul_shares(results, contexts)
    if len(contexts) > 1 and shares:
        caption = "Share of forward's kernel time that is matrix products, over the context length."
        words = {"across": "context length (tokens)", "axis": "matrix products, % of forward"}
        drawing = lines([str(context) for context in contexts], shares, **words)
        blocks.append(_figure(drawing, folder, "share_over_context", caption, "phases"))
    if len(phases):
        recorded = phases.dropna(axis="columns", how="all")
        blocks.append(Table(recorded, "Phases, per measured step", "tables/phases.csv"))
    if not len(classes) and len(cpu_ops):
        caption = "The ten costliest CPU operators of a measured step, by self time"
        blocks.append(Table(cpu_ops.groupby("cell", sort=False).head(10), caption, "tables/cpu_ops.csv"))
    if len(classes):
        phase_classes = classes[classes["phase"] != "step"]
        kernels = tables["kernels"].groupby(["cell", "phase"], sort=False).head(5)
        kernels = kernels[kernels["phase"] != "step"].drop(columns=["name"])
        caption = "Classes of kernels, per measured step"
        blocks.append(Table(phase_classes, caption, "tables/classes.csv", open_rows=12))
        caption = "The five costliest kernels of each phase"
        blocks.append(Table(kernels, caption, "tables/kernels.csv", open_rows=12))
    return blocks


def _figure(drawing: Drawing, folder: Path, name: str, caption: str, table: str) -> Figure:
    return Figure(save(drawing, folder, name), caption, f"figures/{name}.png", f"tables/{table}.csv")


def _phase_drawing(results: Results) -> Drawing:
    labels, rows = [], []
    for cell in _fullest(results):
        assert cell.tables is not None
        classes, (size, context) = cell.tables.classes, cell.size_and_context
        for phase in PHASES:
            ms = classes[classes["phase"] == phase].set_index("class")["ms"]
            if len(ms):
                labels.append(f"{size} {context} {phase.removesuffix('_step')}")
                rows.append(ms)
    named = {kind for _, kinds in CLASS_COLOURS.values() for kind in kinds}
    parts = {}
    for role, (_, kinds) in CLASS_COLOURS.items():
        sums = [
            row[[k for k in row.index if (k in kinds if kinds else k not in named)]].sum() for row in rows
        ]
        if any(sums):
            parts[role] = np.array(sums)
    words = {role: text for role, (text, _) in CLASS_COLOURS.items()}
    return stacked_bars(labels, parts, axis="ms of kernel time per measured step", words=words)


def _fullest(results: Results) -> list[CellData]:
    """For each size and context the cell with most phases."""
    best: dict[tuple[str, int], CellData] = {}
    for cell in results.data:
        if cell.has_kernels:
            fullest = best.setdefault(cell.size_and_context, cell)
            if TYPES.index(cell.files.cell.type) > TYPES.index(fullest.files.cell.type):
                best[cell.size_and_context] = cell
    return list(best.values())


def _matmul_shares(results: Results, contexts: list[int]) -> dict[str, np.ndarray]:
    """Size -> share of matrix products in inference [context], NaN where it was not recorded."""
    series: dict[str, np.ndarray] = {}
    for cell in results.data:
        row, (size, context) = cell.phase("forward"), cell.size_and_context
        if row is not None and cell.files.cell.type == "forward" and row.kernels > 0:
            line = series.setdefault(size, np.full(len(contexts), np.nan))
            line[contexts.index(context)] = row.matmul_percent
    return series
