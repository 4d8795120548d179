"""Means with their intervals, and whether two differ, judged by their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from lab.stats.student import quantile, tail


@dataclass(frozen=True)
class Sample:
    """Mean and sample standard deviation of n values."""

    mean: float
    sd: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Of (n,) values, n >= 1; the deviation of a single one is NaN."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else math.nan, len(values))

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


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of (n,) values and its 95 % interval by Student's t; NaN edges below 2 values, NaN for none."""
    if not values:
        return math.nan, math.nan, math.nan
    sample = Sample.of(values)
    return sample.mean, *mean_ci(sample)


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
    half = student_t(1 - level, _freedom(parts, a, b)) * math.sqrt(variance)
    return difference - half, difference + half


def beyond_p(a: Sample, b: Sample, least: float = 0.0) -> float:
    """One-sided p that a.mean - b.mean is not above `least`, by the test that `difference_ci` inverts.

    NaN below two values of either.
    """
    if min(a.n, b.n) < 2:
        return math.nan
    parts = [one.standard_error**2 for one in (a, b)]
    distance, variance = a.mean - b.mean - least, sum(parts)
    if variance == 0:
        return float(distance <= 0)
    above = tail(abs(distance) / math.sqrt(variance), _freedom(parts, a, b))
    return above if distance > 0 else 1 - above


def _freedom(parts: Sequence[float], a: Sample, b: Sample) -> float:
    """Satterthwaite's degrees of freedom; parts: squared standard errors, not both 0."""
    weights = (part**2 / (one.n - 1) for part, one in zip(parts, (a, b), strict=True))
    return float(sum(parts) ** 2 / sum(weights))


def student_t(p: float, df: float) -> float:
    """The t that |t| exceeds with probability p, for df >= 1 degrees of freedom."""
    return quantile(1 - p / 2, df)
