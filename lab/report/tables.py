"""Tables in three shapes: CSV with full precision, text for the terminal, cells for the page.

pandas is loaded only by who brings a DataFrame.
"""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

from lab.core.files import write_atomic
from lab.core.words import inert
from lab.report.terminal import ABSENT, decimals_of, lines_of, number

if TYPE_CHECKING:
    import pandas as pd


class Columns(Protocol):
    """Columns of equal length by name, such as `lab.recordings.tables.Table`."""

    def as_dict(self) -> dict[str, np.ndarray]: ...


AnyTable = Union["pd.DataFrame", Columns]


@dataclass(frozen=True)
class Column:
    """One column: values (n,), NaN or None where missing; set and sorted as numbers or as text."""

    name: str
    values: np.ndarray
    is_numeric: bool
    is_integer: bool

    def __len__(self) -> int:
        return len(self.values)

    def part(self, start: int, stop: int) -> Column:
        """Rows start..stop-1."""
        return Column(self.name, self.values[start:stop], self.is_numeric, self.is_integer)

    def finite(self) -> np.ndarray:
        """The finite numbers of a numeric column (m,)."""
        numbers: np.ndarray = self.values.astype(float)  # None becomes NaN
        finite: np.ndarray = numbers[np.isfinite(numbers)]
        return finite


def columns_of(table: AnyTable) -> list[Column]:
    """The columns of a table or DataFrame, in their order."""
    if "pandas" in sys.modules and isinstance(table, sys.modules["pandas"].DataFrame):
        return [column_of(values) for _, values in table.items()]
    columns: dict[str, np.ndarray] = table.as_dict()  # type: ignore[operator]
    return [_plain(name, values) for name, values in columns.items()]


def column_of(values: pd.Series) -> Column:
    """A Series as a column; values of pandas' own types as Python's."""
    kind = values.dtype
    if isinstance(kind, np.dtype) and kind.kind in "biuf":
        return _plain(str(values.name), values.to_numpy())
    from pandas.api.types import is_bool_dtype, is_integer_dtype, is_numeric_dtype

    cells = values.astype(object)
    if cells.isna().any():
        cells = cells.where(values.notna(), None)
    numeric = is_numeric_dtype(values) and not is_bool_dtype(values)
    return Column(str(values.name), cells.to_numpy(), numeric, is_integer_dtype(values))


def _plain(name: str, values: np.ndarray) -> Column:
    return Column(name, values, values.dtype.kind in "iuf", values.dtype.kind in "iu")


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: None or NaN."""
    return value is None or (isinstance(value, (float, np.floating)) and bool(value != value))


def write_csv(table: AnyTable, path: Path) -> Path:
    """Write `table` atomically; floats in their shortest text that reads back to the same number.

    A text that a spreadsheet would run as a formula gets a quote before it. Raises StorageError where the
    file cannot be written.
    """
    columns = columns_of(table)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([inert(column.name) for column in columns])
    writer.writerows(zip(*map(_csv_cells, columns), strict=True))
    write_atomic(path, text.getvalue().encode())
    return path


def _csv_cells(column: Column) -> list[Any]:
    values = column.values
    cells: list[Any] = values.tolist()
    if values.dtype.kind == "f":
        if values.dtype.itemsize < 8:  # its own shortest text, not that of the double nearest to it
            cells = list(map(str, values))
        for row in (values != values).nonzero()[0].tolist():
            cells[row] = ""
        return cells
    if values.dtype.kind in "biu":
        return cells
    safe = {value: inert(value) for value in {value for value in cells if type(value) is str}}
    return [
        safe[value] if type(value) is str else "" if is_missing(value) else inert(value) for value in cells
    ]


def cell_texts(column: Column) -> list[str]:
    """The cells of a column as a reader sees them: decimals are the same down a column."""
    cells = column.values.tolist()
    if not column.is_numeric:
        return [ABSENT if is_missing(value) or value == "" else str(value) for value in cells]
    decimals = 0 if column.is_integer else decimals_of(column.finite().tolist())
    return [ABSENT if is_missing(value) else number(value, decimals) for value in cells]


def terminal_table(frame: pd.DataFrame, *, width: int = 110) -> str:
    """`frame` as lines for a terminal of `width` columns, numbers right aligned, no colour codes."""
    columns = columns_of(frame)
    return lines_of(
        [column.name for column in columns],
        [column.is_numeric for column in columns],
        [cell_texts(column) for column in columns],
        width,
    )
