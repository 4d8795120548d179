"""Several tests at once: what each p-value is worth beside the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """p-values (n,) corrected for their number, in the order given; NaN stays NaN and does not count.

    Rejecting where the corrected one is at most alpha calls a true hypothesis false, any of them, with
    probability alpha at most, however they depend on each other; whatever Bonferroni rejects is rejected.
    Source: Holm, Scandinavian Journal of Statistics 6 (1979) 65.
    """
    given = np.asarray(p_values, dtype=float)
    corrected = np.full(len(given), np.nan)
    known = np.flatnonzero(~np.isnan(given))
    order = known[np.argsort(given[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * factors))
    return corrected
