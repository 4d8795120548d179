"""Small computations that several sheets share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lab.perfmodel.dtypes import item_bytes
from lab.recordings.tables import Table
from lab.stats.columns import column

CUM = ["Percentage (%)", "Cumulative Percentage (%)"]


def sheet(columns: Mapping[str, Any]) -> Table:
    """A sheet from arrays and lists (n,); a single value stands in every row."""
    n = next((len(values) for values in columns.values() if _is_column(values)), 0)
    return Table(
        {
            name: column(values) if _is_column(values) else np.repeat(column([values]), n)
            for name, values in columns.items()
        }
    )


def _is_column(values: object) -> bool:
    return isinstance(values, (np.ndarray, list))


def most_first(table: Table, by: str) -> Table:
    """The rows in descending order of a column; those without a value last."""
    return table.take(np.argsort(-getattr(table, by), kind="stable"))


def ranked(table: Table, by: str) -> Table:
    """Most first, with each row's share of the column's sum and the shares added up."""
    table = most_first(table, by)
    values = getattr(table, by).astype(float)
    share = percent(values, float(np.nansum(values)))
    return Table({**table.as_dict(), **dict(zip(CUM, (share, np.cumsum(share)), strict=True))})


def percent(part: np.ndarray, total: float) -> np.ndarray:
    return 100 * part / total if total else np.full(len(part), np.nan)


def dtype_bytes(dtypes: np.ndarray) -> np.ndarray:
    return np.array([item_bytes(str(dtype)) or np.nan for dtype in dtypes], dtype=float)
