"""Tables in three shapes: CSV with full precision, text for the terminal, cells for the page."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.core.files import write_atomic
from lab.core.words import inert
from lab.report.columns import AnyTable, Column, column_of, columns_of, is_missing
from lab.report.terminal import ABSENT, decimals_of, lines_of, number

if TYPE_CHECKING:
    import pandas as pd


def write_csv(table: AnyTable, path: Path) -> Path:
    """Write `table` atomically; floats in their shortest text that reads back to the same number.

    A text that a spreadsheet would run as a formula gets a quote before it. Raises StorageError where the
    file cannot be written.
    """
    columns = columns_of(table)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([inert(one.name) for one in columns])
    writer.writerows(zip(*map(_csv_cells, columns), strict=True))
    write_atomic(path, text.getvalue().encode())
    return path


def _csv_cells(column: Column) -> list[Any]:
    values = column.values
    cells: list[Any] = values.tolist()
    if values.dtype.kind == "f":
        if values.dtype.itemsize < 8:  # its own shortest text, not that of the double nearest to it
            cells = list(map(str, values))
        for at in (values != values).nonzero()[0].tolist():
            cells[at] = ""
        return cells
    if values.dtype.kind in "biu":
        return cells
    safe = {value: inert(value) for value in {value for value in cells if type(value) is str}}
    return [
        safe[value] if type(value) is str else "" if is_missing(value) else inert(value) for value in cells
    ]


def is_numeric(values: pd.Series) -> bool:
    """Whether a column is to be set and sorted as numbers."""
    return column_of(values).is_numeric


def cell_texts(values: pd.Series) -> list[str]:
    """The cells of a column as a reader sees them: decimals are the same down a column."""
    return _cell_texts(column_of(values))


def _cell_texts(column: Column) -> list[str]:
    cells = column.values.tolist()
    if not column.is_numeric:
        return [ABSENT if is_missing(value) or value == "" else str(value) for value in cells]
    decimals = 0 if column.is_integer else decimals_of(column.finite().tolist())
    return [ABSENT if is_missing(value) else number(value, decimals) for value in cells]


def terminal_table(frame: pd.DataFrame, *, width: int = 110) -> str:
    """`frame` as lines for a terminal of `width` columns, numbers right aligned, no colour codes."""
    columns = columns_of(frame)
    return lines_of(
        [one.name for one in columns],
        [one.is_numeric for one in columns],
        [_cell_texts(one) for one in columns],
        width,
    )
