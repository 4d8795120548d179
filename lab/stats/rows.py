"""Distinct values, and distinct rows of integer columns."""

from __future__ import annotations

import numpy as np

_MOST = 2**62


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values (m,), ascending; without a sort where there is only one, as in most recordings.

    The same as np.unique, which loads numpy.ma for it (15 ms).
    """
    if values.size and (values == values.flat[0]).all():
        return values.reshape(-1)[:1]
    found = np.sort(values, axis=None)
    kept: np.ndarray = found[np.append(True, found[1:] != found[:-1])] if len(found) else found
    return kept


def distinct_rows(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows (m, k) of integers (n, k), ascending, and which of them each row is (n,).

    The same as np.unique(axis=0), which compares whole rows and takes several times as long.
    """
    if not keys.size:
        used, which = np.unique(keys, axis=0, return_inverse=True)
        return used, which.reshape(-1)
    code, size = np.zeros(len(keys), dtype=np.int64), 1
    for values in keys.T:
        lowest, span = int(values.min()), int(values.max()) - int(values.min()) + 1
        if span > 2**31:
            used, column = np.unique(values, return_inverse=True)
            span = len(used)
        else:
            column = values.astype(np.int64) - lowest
        if size * span >= _MOST:
            code, size = _ranks(code, size)
        code = code * span + column
        size *= span
    which, count = _ranks(code, size)
    example = np.empty(count, dtype=np.int64)
    example[which] = np.arange(len(keys))
    return keys[example], which


def _ranks(code: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """The place (n,) of each `code` (n,), below `size`, among the distinct ones; how many these are."""
    if size > 8 * len(code) + 1024:
        used, which = np.unique(code, return_inverse=True)
        return which, len(used)
    present = np.zeros(size, dtype=bool)
    present[code] = True
    rank = np.cumsum(present) - 1
    return rank[code], int(rank[-1]) + 1
