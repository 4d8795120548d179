"""Statistics that a few outliers cannot fool, and honest intervals around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def median(values: Sequence[float] | np.ndarray) -> float:
    """Middle value of (n,); NaN for none."""
    return float(np.median(values)) if len(values) else float("nan")


def mad(values: Sequence[float] | np.ndarray) -> float:
    """Median absolute deviation from the median, unscaled; NaN for none."""
    if len(values) == 0:
        return float("nan")
    return float(np.median(np.abs(np.asarray(values, dtype=float) - np.median(values))))


def cv(values: Sequence[float] | np.ndarray) -> float:
    """Coefficient of variation: standard deviation (ddof 1) over the mean; NaN below 2 values or mean 0."""
    if len(values) < 2 or float(np.mean(values)) == 0:
        return float("nan")
    return float(np.std(values, ddof=1) / np.mean(values))


def percentile(values: Sequence[float] | np.ndarray, percent: float) -> float:
    """Linear-interpolated percentile, `percent` in 0..100; NaN for none."""
    return float(np.percentile(values, percent)) if len(values) else float("nan")


def bootstrap_ci(
    samples: Sequence[np.ndarray],
    statistic: Callable[..., np.ndarray],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 2025,
) -> tuple[float, float]:
    """Percentile bootstrap interval of `statistic(*samples)`; (NaN, NaN) if a sample is empty.

    samples: one or more arrays (n_i,), each resampled on its own, so that a ratio of two medians works.
    statistic: takes one array (resamples, n_i) per sample and reduces the last axis, for example
    `lambda free, busy: np.median(busy, axis=-1) / np.median(free, axis=-1)`.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    if any(len(sample) == 0 for sample in samples):
        return float("nan"), float("nan")
    random = np.random.default_rng(seed)
    drawn: list[Any] = [random.choice(np.asarray(s, dtype=float), size=(resamples, len(s))) for s in samples]
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(statistic(*drawn), [tail, 100 - tail])
    return float(low), float(high)
