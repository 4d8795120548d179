"""Tables in three shapes: CSV with full precision, text for the terminal, cells for the page."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lab.core.files import write_atomic
from lab.core.words import inert, is_formula, printable

ABSENT = "–"
UNITS = {
    **{unit: unit for unit in ("ns", "ms", "s")},
    "us": "µs",
    "bytes": "B",
    "mib": "MiB",
    "percent": "%",
    "j": "J",
    "w": "W",
    "gbps": "GB/s",
    "tflops": "TFLOP/s",
    "mhz": "MHz",
}


class Heading(NamedTuple):
    words: str
    unit: str


def write_csv(frame: pd.DataFrame, path: Path) -> Path:
    """Write `frame` atomically; floats in their shortest text that reads back to the same number.

    A text that a spreadsheet would run as a formula gets a quote before it. Raises StorageError where the
    file cannot be written.
    """
    write_atomic(path, without_formulas(frame).to_csv(index=False, lineterminator="\n").encode())
    return path


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """The same, with a quote before each text that is a formula in a spreadsheet."""
    found = [at for at in range(frame.shape[1]) if not is_numeric(frame.iloc[:, at])]
    found = [at for at in found if frame.iloc[:, at].astype(object).map(is_formula).any()]
    if not found:
        return frame
    changed: pd.DataFrame = frame.copy()
    for at in found:
        changed.isetitem(at, frame.iloc[:, at].map(inert).to_numpy())
    return changed


def heading(column: str) -> Heading:
    """Split a column name into words and unit: `total_time_ms` is (`total time`, `ms`)."""
    words = column.split("_")
    for at in (len(words) - 1, 0):
        if len(words) > 1 and words[at] in UNITS:
            return Heading(" ".join(words[:at] + words[at + 1 :]), UNITS[words[at]])
    return Heading(" ".join(words), "")


def is_numeric(values: pd.Series) -> bool:
    """Whether a column is to be set and sorted as numbers."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def cell_texts(values: pd.Series) -> list[str]:
    """The cells of a column as a reader sees them: decimals are the same down a column."""
    if not is_numeric(values):
        return [ABSENT if _is_absent(value) or value == "" else str(value) for value in values]
    decimals = _decimals(values)
    return [ABSENT if _is_absent(value) else number(value, decimals) for value in values]


def number(value: float, decimals: int) -> str:
    """A number with fixed decimals and, from 10 000 on, narrow spaces between thousands."""
    text = f"{value:,.{decimals}f}"
    return text.replace(",", "\u202f") if abs(value) >= 10_000 else text.replace(",", "")


def terminal_table(frame: pd.DataFrame, *, width: int = 110) -> str:
    """`frame` as lines for a terminal of `width` columns, numbers right aligned, no colour codes."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    columns = [frame.iloc[:, at] for at in range(frame.shape[1])]
    for values in columns:
        words, unit = heading(str(values.name))
        # Text, not str: rich reads [brackets] in a str as markup, and labels are hostile.
        header = Text(f"{words} {unit}".strip())
        table.add_column(header, justify="right" if is_numeric(values) else "left", overflow="fold")
    for row in zip(*(cell_texts(values) for values in columns), strict=True):
        table.add_row(*(Text(printable(cell)) for cell in row))
    buffer = io.StringIO()
    Console(file=buffer, width=width, color_system=None, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().strip("\n").splitlines())


def _decimals(values: pd.Series) -> int:
    if pd.api.types.is_integer_dtype(values):
        return 0
    finite = values.to_numpy(dtype=float, na_value=np.nan)
    finite = np.abs(finite[np.isfinite(finite)])
    if not len(finite) or not finite.max() or bool(np.all(finite == np.round(finite))):
        return 0
    return min(4, max(0, 3 - math.floor(math.log10(finite.max()))))


def _is_absent(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))
