"""Rows that are equal in every column, found without a Python object per row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_ROOM = 2**62  # numbers of groups stay below this


def group_rows(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The first row (m,) of each group of equal rows, and the group (n,) of each row, over integer columns.

    Each column has n rows. Groups come in no particular order.
    """
    group = np.zeros(len(columns[0]), dtype=np.int64)
    if not len(group):
        return group, group
    num = 1
    for column in columns:
        least = int(column.min())
        width = int(column.max()) - least + 1
        if num * width >= _ROOM:
            group, num = _numbered(group)
        if num * width >= _ROOM:
            ids, width = _numbered(column)
            group = group * width + ids
        else:
            group = group * width + (column.astype(np.int64) - least)
        num *= width
    _, first, which = np.unique(group, return_index=True, return_inverse=True)
    return first, which.ravel()


def number_values(values: Iterable[Any]) -> tuple[np.ndarray, list[Any]]:
    """The index (n,) of each value in the list of the distinct ones, which are in order of appearance."""
    known: dict[Any, int] = {}
    ids = [known.setdefault(value, len(known)) for value in values]
    return np.array(ids, dtype=np.int64), list(known)


def _numbered(values: np.ndarray) -> tuple[np.ndarray, int]:
    used, which = np.unique(values, return_inverse=True)
    return which.ravel().astype(np.int64), len(used)
