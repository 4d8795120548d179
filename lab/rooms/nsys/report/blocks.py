"""Figures and tables of each section of the page."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lab.report.figures import lines, roofline, save
from lab.report.parts import Block, Figure, Table
from lab.report.terminal import Heading
from lab.rooms.nsys.answers.answer import FAILED, OK, OPEN
from lab.rooms.nsys.report.drawings import matmul_shares, matrix_drawing, phase_drawing, roofs_of
from lab.rooms.nsys.report.results import Results
from lab.rooms.nsys.report.tables import overview

HEADINGS = {
    "not_nsys_because": Heading("not nsys, because", ""),
    "wall_ms": Heading("step, wall", "ms"),
    "plain_ms": Heading("step, no profiler", "ms"),
    "overhead_percent": Heading("profiler's overhead", "%"),
}

PILLS = {
    OK: "ok",
    FAILED: "fail",
    OPEN: "unknown",
    "no answer": "unknown",
    "oom": "warn",
    "failed": "fail",
    "timeout": "fail",
    "no_gpu_data": "warn",
    "skipped_estimate": "warn",
    "missing": "fail",
    "unreadable": "fail",
}


def matrix_blocks(results: Results, folder: Path) -> list[Block]:
    cells = results.cells
    caption = (
        "Mean wall time of a measured step under the profiler, or why there is none. "
        "The table also has the time without a profiler."
    )
    svg = save(matrix_drawing(cells), folder, "matrix")
    shown = cells.drop(columns=["cell", "capture"])
    shown = shown[[name for name in shown if (shown[name].notna() & (shown[name] != "")).any()]]
    return [
        Figure(svg, caption, "figures/matrix.png", "tables/cells.csv"),
        Table(
            overview(results).dropna(axis="columns", how="all"), "Answers in numbers", "tables/overview.csv"
        ),
        Table(shown, "Every cell", "tables/cells.csv", headings=HEADINGS, pills=PILLS),
    ]


def time_blocks(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Block]:
    classes, phases = tables["classes"], tables["phases"]
    blocks: list[Block] = []
    if len(classes):
        drawing = phase_drawing(results)
        caption = (
            "Mean kernel time per measured step (warm-up left out) of each phase, by class of kernel; "
            "for each size and context the profile type with most phases."
        )
        blocks.append(
            Figure(save(drawing, folder, "phases"), caption, "figures/phases.png", "tables/classes.csv")
        )
        contexts = sorted({cell.found.cell.context for cell in results.data})
        shares = matmul_shares(results, contexts)
        if len(contexts) > 1 and shares:
            caption = "Share of forward's kernel time that is matrix products, over the context length."
            drawing = lines(
                [str(context) for context in contexts],
                shares,
                across="context length (tokens)",
                axis="matrix products, % of forward",
            )
            svg = save(drawing, folder, "share_over_context")
            blocks.append(Figure(svg, caption, "figures/share_over_context.png", "tables/phases.csv"))
    if len(phases):
        blocks.append(Table(phases, "Phases, per measured step", "tables/phases.csv"))
    if not len(classes) and len(tables["cpu_ops"]):
        top = tables["cpu_ops"].groupby("cell", sort=False).head(10)
        blocks.append(
            Table(
                top, "The ten costliest CPU operators of a measured step, by self time", "tables/cpu_ops.csv"
            )
        )
    if len(classes):
        whole = classes[classes["phase"] != "step"]
        blocks.append(
            Table(whole, "Classes of kernels, per measured step", "tables/classes.csv", open_rows=12)
        )
        top = tables["kernels"].groupby(["cell", "phase"], sort=False).head(5)
        top = top[top["phase"] != "step"].drop(columns=["name"])
        blocks.append(
            Table(top, "The five costliest kernels of each phase", "tables/kernels.csv", open_rows=12)
        )
    return blocks


def attention_blocks(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Block]:
    blocks: list[Block] = []
    points, roofs = tables["roofline"], roofs_of(results)
    if len(points) and roofs:
        series = {
            str(what): [
                (x, y, f"{cell}, {what}: {y:.2f} TFLOP/s")
                for cell, x, y in rows[["cell", "flop_per_byte", "tflops"]].to_numpy().tolist()
            ]
            for what, rows in points.groupby("what", sort=False)
        }
        drawing = roofline(series, roofs=roofs, across="FLOP per least byte", axis="TFLOP/s achieved")
        caption = (
            "What each part achieved, against its GPU's ceilings: the slope is memory bandwidth, "
            "the flat line the rate of the units that multiply in this dtype."
        )
        blocks.append(
            Figure(save(drawing, folder, "roofline"), caption, "figures/roofline.png", "tables/roofline.csv")
        )
    if len(tables["attention"]):
        blocks.append(
            Table(
                tables["attention"],
                "Attention's parts in the forward pass, per layer",
                "tables/attention.csv",
            )
        )
    return blocks
