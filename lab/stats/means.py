"""Whether two means differ, judged by their standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True)
class Sample:
    """Mean and sample standard deviation of n values."""

    mean: float
    sd: float
    n: int

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN for a single value."""
        return self.sd / math.sqrt(self.n) if self.n > 1 else math.nan


def mean_ci(sample: Sample, *, level: float = 0.95) -> tuple[float, float]:
    """Interval of a mean, by Student's t; (NaN, NaN) for a single value."""
    if sample.n < 2:
        return math.nan, math.nan
    half = student_t(1 - level, sample.n - 1) * sample.standard_error
    return sample.mean - half, sample.mean + half


def difference_ci(a: Sample, b: Sample, *, level: float = 0.95) -> tuple[float, float]:
    """Interval of a.mean - b.mean for samples of unequal spread; (NaN, NaN) below two values of either.

    Source: Welch, Biometrika 34 (1947), with Satterthwaite's degrees of freedom.
    """
    if min(a.n, b.n) < 2:
        return math.nan, math.nan
    parts = [one.standard_error**2 for one in (a, b)]
    difference, variance = a.mean - b.mean, sum(parts)
    if variance == 0:
        return difference, difference
    weights = (part**2 / (one.n - 1) for part, one in zip(parts, (a, b), strict=True))
    half = student_t(1 - level, variance**2 / sum(weights)) * math.sqrt(variance)
    return difference - half, difference + half


def student_t(p: float, df: float) -> float:
    """The t that |t| exceeds with probability p, for df >= 1 degrees of freedom.

    Exact for 1 and 2, within 1e-3 above 2; between them too large (p 0.044 for 0.05), never too small.
    Source: Hill, Algorithm 396, Communications of the ACM 13 (1970).
    """
    if df == 1:
        return 1 / math.tan(p * math.pi / 2)
    if df == 2:
        return math.sqrt(2 / (p * (2 - p)) - 2)
    return min(_hill(p, df), student_t(p, 1 if df < 2 else 2))


def _hill(p: float, df: float) -> float:
    a = 1 / (df - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * df
    y = (d * p) ** (2 / df)
    if y <= 0.05 + a:
        y = ((1 / (((df + 6) / (df * y) - 0.089 * d - 0.822) * (df + 2) * 3) + 0.5 / (df + 4)) * y - 1) * (
            df + 1
        ) / (df + 2) + 1 / y
        return math.sqrt(df * y)
    x = NormalDist().inv_cdf(p / 2)
    y = x**2
    if df < 5:
        c += 0.3 * (df - 4.5) * (x + 0.6)
    c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
    y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
    return math.sqrt(df * math.expm1(a * y**2))
