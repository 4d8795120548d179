"""Columns from Python values, and rows grouped by several columns, without loading pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from lab.stats.rows import distinct_rows

_INT64 = np.iinfo(np.int64)


def column(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Values as an array (n,): booleans, int64, float64 (None is NaN) or, for anything else, objects."""
    if isinstance(values, np.ndarray):
        return values.astype(object) if values.dtype.kind == "U" else values
    kinds = {type(value) for value in values}
    if kinds and all(issubclass(kind, (bool, np.bool_)) for kind in kinds):
        return np.array(values, dtype=bool)
    if kinds and all(_is_integer(kind) for kind in kinds):
        if _INT64.min <= min(values) and max(values) <= _INT64.max:
            return np.array(values, dtype=np.int64)
    elif kinds - {type(None)} and all(_is_number(kind) or kind is type(None) for kind in kinds):
        return np.array(values, dtype=float)  # None becomes NaN
    return objects(values)


def objects(values: Sequence[Any]) -> np.ndarray:
    """Values as an object array (n,), lists and tuples among them as they are."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def columns_of_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Rows as columns (n,) of these names; what a row does not have is missing."""
    return {name: column([row.get(name) for row in rows]) for name in names}


def grouped_rows(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each distinct combination (m,), ascending by the columns' values, and each row's (n,).

    columns: (n,) of values of one kind, none missing; at least one.
    """
    keys = np.stack([_codes(values) for values in columns], axis=1)
    distinct, group = distinct_rows(keys)
    first = np.zeros(len(distinct), dtype=np.int64)
    first[group[::-1]] = np.arange(len(keys))[::-1]
    return first, group


def in_order_of_appearance(first: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The groups of `grouped_rows`, numbered in the order in which each comes first."""
    order = np.argsort(first)
    number = np.empty(len(first), dtype=np.int64)
    number[order] = np.arange(len(first))
    return first[order], number[group]


def _codes(values: np.ndarray) -> np.ndarray:
    """Integers (n,) in the order of the values."""
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    cells = values.tolist()
    rank = {value: at for at, value in enumerate(sorted(set(cells)))}
    return np.array([rank[value] for value in cells], dtype=np.int64)


def _is_integer(kind: type) -> bool:
    return issubclass(kind, Integral) and not issubclass(kind, bool)


def _is_number(kind: type) -> bool:
    return issubclass(kind, Real) and not issubclass(kind, bool)
