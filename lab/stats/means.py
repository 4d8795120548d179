"""The mean of few runs with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom; beyond that 1.96 is used with a small excess.
T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of (n,) values and its 95 % interval by Student's t; NaN edges below 2 values, NaN for none."""
    if not len(values):
        return math.nan, math.nan, math.nan
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, math.nan
    t = T_95[len(values) - 2] if len(values) - 2 < len(T_95) else 2.042
    half = t * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half
