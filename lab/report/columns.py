"""The columns of a table, whatever holds them: pandas is loaded only by who brings a DataFrame."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

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
