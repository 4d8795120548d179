"""DataFrames in three shapes: CSV with full precision, text for the terminal, cells for the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.files import write_atomic
from lab.core.words import inert, is_formula
from lab.report.terminal import ABSENT, decimals_of, lines_of, number


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


def is_numeric(values: pd.Series) -> bool:
    """Whether a column is to be set and sorted as numbers."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def cell_texts(values: pd.Series) -> list[str]:
    """The cells of a column as a reader sees them: decimals are the same down a column."""
    if not is_numeric(values):
        return [ABSENT if _is_absent(value) or value == "" else str(value) for value in values]
    decimals = _decimals(values)
    return [ABSENT if _is_absent(value) else number(value, decimals) for value in values]


def terminal_table(frame: pd.DataFrame, *, width: int = 110) -> str:
    """`frame` as lines for a terminal of `width` columns, numbers right aligned, no colour codes."""
    columns = [frame.iloc[:, at] for at in range(frame.shape[1])]
    return lines_of(
        [str(name) for name in frame.columns],
        [is_numeric(values) for values in columns],
        [cell_texts(values) for values in columns],
        width,
    )


def _decimals(values: pd.Series) -> int:
    if pd.api.types.is_integer_dtype(values):
        return 0
    finite = values.to_numpy(dtype=float, na_value=np.nan)
    return decimals_of(finite[np.isfinite(finite)].tolist())


def _is_absent(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))
