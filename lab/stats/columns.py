"""Columns from Python values, distinct values and rows, rows grouped by columns; without pandas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

_INT64 = np.iinfo(np.int64)
_CODE_LIMIT = 2**62


def column(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Values as an array (n,): booleans, int64, float64 (None is NaN) or, for anything else, objects."""
    if isinstance(values, np.ndarray):
        return values.astype(object) if values.dtype.kind == "U" else values
    kinds = {type(value) for value in values}
    if kinds and all(issubclass(kind, (bool, np.bool_)) for kind in kinds):
        return np.array(values, dtype=bool)
    if kinds and all(_is_a(Integral, kind) for kind in kinds):
        if _INT64.min <= min(values) and max(values) <= _INT64.max:
            return np.array(values, dtype=np.int64)
    elif kinds - {type(None)} and all(_is_a(Real, kind) or kind is type(None) for kind in kinds):
        return np.array(values, dtype=float)  # None becomes NaN
    return objects(values)


def _is_a(number: type, kind: type) -> bool:
    return issubclass(kind, number) and not issubclass(kind, bool)


def objects(values: Sequence[Any]) -> np.ndarray:
    """Values as an object array (n,), lists and tuples among them as they are."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def columns_of_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Rows as columns (n,) of these names; what a row does not have is missing."""
    return {name: column([row.get(name) for row in rows]) for name in names}


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values (m,), ascending; without a sort where there is only one, as in most recordings.

    The same as np.unique, which loads numpy.ma for it (15 ms).
    """
    if values.size and (values == values.flat[0]).all():
        return values.reshape(-1)[:1]
    ordered = np.sort(values, axis=None)
    unique: np.ndarray = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
    return unique


def distinct_rows(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows (m, k) of integers (n, k), ascending, and the index (n,) into them of each row.

    The same as np.unique(axis=0), which compares whole rows and takes several times as long.
    """
    if not keys.size:
        used, row_of = np.unique(keys, axis=0, return_inverse=True)
        return used, row_of.reshape(-1)
    code, size = np.zeros(len(keys), dtype=np.int64), 1
    for values in keys.T:
        lowest, span = int(values.min()), int(values.max()) - int(values.min()) + 1
        # A wide column (ids, times) is ranked first: codes of several such columns would leave int64.
        if span > 2**31:
            used, codes = np.unique(values, return_inverse=True)
            span = len(used)
        else:
            codes = values.astype(np.int64) - lowest
        # The codes so far are ranked again before the next column would take them out of int64.
        if size * span >= _CODE_LIMIT:
            code, size = _ranks(code, size)
        code = code * span + codes
        size *= span
    rank, count = _ranks(code, size)
    example = np.empty(count, dtype=np.int64)
    example[rank] = np.arange(len(keys))
    return keys[example], rank


def per_distinct(keys: np.ndarray, value_of: Callable[[Any], Any], *, width: int = 0) -> np.ndarray:
    """value_of each key (n,), or row of keys (n, k), as integers; called once for equal keys.

    (n, width) where it answers with that many numbers.
    """
    used, index = distinct_rows(keys if keys.ndim > 1 else keys[:, None])
    wanted = (used if keys.ndim > 1 else used[:, 0]).tolist()
    values = np.array([value_of(key) for key in wanted], dtype=np.int64)
    result: np.ndarray = (values.reshape(-1, width) if width else values)[index]
    return result


def _ranks(code: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Rank (n,) of each `code` (n,), below `size`, among the distinct ones, and how many these are."""
    # Flags beat a sort, unless they were many more than the rows.
    if size > 8 * len(code) + 1024:
        used, rank = np.unique(code, return_inverse=True)
        return rank, len(used)
    present = np.zeros(size, dtype=bool)
    present[code] = True
    rank = np.cumsum(present) - 1
    return rank[code], int(rank[-1]) + 1


def grouped_rows(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each distinct combination (m,), ascending by the columns' values, and each row's (n,).

    columns: (n,) of values of one kind, none missing; at least one.
    """
    keys = np.stack([_codes(values) for values in columns], axis=1)
    used, group = distinct_rows(keys)
    first_row = np.zeros(len(used), dtype=np.int64)
    first_row[group[::-1]] = np.arange(len(keys))[::-1]
    return first_row, group


def in_order_of_appearance(first_row: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the groups of `grouped_rows` in the order of their first rows."""
    order = np.argsort(first_row)
    number = np.empty(len(first_row), dtype=np.int64)
    number[order] = np.arange(len(first_row))
    return first_row[order], number[group]


def _codes(values: np.ndarray) -> np.ndarray:
    """Integers (n,) in the order of the values."""
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    cells = values.tolist()
    rank = {value: index for index, value in enumerate(sorted(set(cells)))}
    return np.array([rank[value] for value in cells], dtype=np.int64)
