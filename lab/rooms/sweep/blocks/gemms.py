"""GEMM times by shape and configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.report.figures import Cell, cell_grid, save
from lab.report.parts import Block, Figure, Prose, Table
from lab.report.terminal import Heading
from lab.rooms.sweep.names import shape_name, short_name
from lab.rooms.sweep.tables import GEMM_SHAPE, SETTING

MOST_SHAPES = 14
MOST_LABELLED = 16  # columns that leave room for a number in each cell


def gemm_blocks(gemm: pd.DataFrame, folder: Path) -> list[Block]:
    if gemm.empty:
        return [Prose("No GEMM could be linked to its operator in these traces.")]
    median_us = gemm.groupby([*GEMM_SHAPE, *SETTING], dropna=False)["median_us"].median().unstack(SETTING)
    weight = gemm.groupby(GEMM_SHAPE, dropna=False)["sum_us"].sum()
    median_us = median_us.loc[weight.sort_values(ascending=False).index]
    figure = save(_gemm_grid(median_us.head(MOST_SHAPES)), folder, "gemm")
    caption = (
        f"Median GEMM time in µs over instances and ranks, {min(len(median_us), MOST_SHAPES)} of "
        f"{len(median_us)} shapes, most time first. The stronger the colour, the slower than in the "
        "fastest configuration for that shape."
    )
    return [Figure(figure, caption, "figures/gemm.png", "tables/gemm.csv"), _gemm_table(gemm)]


def _gemm_grid(median_us: pd.DataFrame) -> Drawing:
    """Rows are shapes, columns configurations; `median_us` holds µs."""
    times_us = median_us.to_numpy(dtype=float)
    slower = times_us / np.nanmin(times_us, axis=1, keepdims=True)
    # 25 % at least, so that noise is not painted like an effect.
    scale = max(float(np.nanmax(slower)) - 1, 0.25)
    settings = list(median_us.columns)
    shapes = [shape_name(shape) for shape in median_us.index]

    def cell(down: int, across: int) -> Cell | None:
        time_us, ratio = times_us[down, across], slower[down, across]
        if np.isnan(time_us):
            return None
        name = f"{shapes[down]}, {short_name(*settings[across])}"
        text = f"{time_us:.0f}" if len(settings) <= MOST_LABELLED else ""
        hover = f"{name}: {time_us:.1f} µs, {ratio:.2f} times the fastest"
        return Cell(text, "communication", (ratio - 1) / scale, hover)

    return cell_grid(shapes, [short_name(*setting) for setting in settings], cell, legend={})


def _gemm_table(gemm: pd.DataFrame) -> Table:
    figures = ["n", "median_us", "mad_us", "p95_us", "max_us", "cv", "tflops_median"]
    rows = gemm.groupby([*GEMM_SHAPE, *SETTING], dropna=False)[figures].median().reset_index()
    rows.insert(0, "configuration", [short_name(*pair) for pair in rows[SETTING].itertuples(index=False)])
    rows = rows.drop(columns=SETTING).sort_values(["op", "M", "N", "K", "configuration"])
    headings = {"tflops_median": Heading("median rate", "TFLOP/s"), "n": Heading("n per rank", "")}
    return Table(rows, "GEMMs by shape, medians over ranks", "tables/gemm.csv", headings, open_rows=0)
