"""The matrix of a diagnosis: every training as a row, and as a cell of one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.core.words import plural
from lab.report.figures import Cell, cell_grid, save
from lab.report.parts import Block, Figure, Table
from lab.rooms.semicrf.report.common import PILLS

COLUMNS = (
    *("backend", "lengths", "reg", "order", "repeat"),
    *("outcome", "step", "message", "transition_max", "duration_max", "weights"),
)
LEGEND = {"passed": "ok", "failed": "fail", "different bits": "warn"}


def matrix_blocks(
    cells: list[dict[str, Any]], frame: pd.DataFrame, folder: Path, fixed: int | None
) -> list[Block]:
    """The picture and the table."""
    figure = save(_grid(cells), folder, "matrix")
    length = "none" if fixed is None else plural(fixed, "frame")
    caption = (
        f"Each cell is one training. Fixed length: {length}; shorter utterances are left out. Cells of one "
        "row and order that ended with different weights are marked: same input, different bits."
    )
    shown = frame.drop(columns=["weights"])
    return [
        Figure(figure, caption, "figures/matrix.png", "tables/matrix.csv"),
        Table(shown, "Every training of the matrix", "tables/matrix.csv", pills=PILLS, open_rows=16),
    ]


def cell_frame(cells: Sequence[dict[str, Any]]) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(cells).reindex(columns=list(COLUMNS))
    return frame


def _grid(cells: list[dict[str, Any]]) -> Drawing:
    rows = list(dict.fromkeys((c["backend"], c["lengths"], c["reg"]) for c in cells))
    columns = list(dict.fromkeys((c["order"], c["repeat"]) for c in cells))
    by_key = {(c["backend"], c["lengths"], c["reg"], c["order"], c["repeat"]): c for c in cells}

    def cell(down: int, across: int) -> Cell | None:
        case = rows[down]
        training = by_key.get((*case, *columns[across]))
        if training is None:
            return None
        first_repeat = (*case, columns[across][0], 0)
        text, role = _look(training, by_key[first_repeat])
        return Cell(text, role, 0.55, training["message"] or "")

    names = [f"{backend}, {lengths}, reg {reg:g}" for backend, lengths, reg in rows]
    heads = [f"order {order + 1}\nrun {repeat + 1}" for order, repeat in columns]
    return cell_grid(names, heads, cell, legend=LEGEND)


def _look(training: dict[str, Any], reference: dict[str, Any]) -> tuple[str, str]:
    """Text and colour of a training; `reference` is the first repeat with the same input."""
    if training["outcome"] == "failed":
        return f"step {training['step'] + 1}", "fail"
    if (
        training["outcome"] == reference["outcome"] == "passed"
        and training["weights"] != reference["weights"]
    ):
        return "different bits", "warn"
    return training["outcome"], "warn" if training["outcome"] == "skipped" else "ok"
