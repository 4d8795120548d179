"""Student's t, and the ratio of two variances: distribution functions and quantiles, exact to rounding."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=1024)
def quantile(p: float, freedom: float) -> float:
    """The quantile of Student's t for p >= 0.5, by Newton's steps that stay between known bounds."""
    beyond = 1 - p  # of the tail, because near 1 a distribution function has no digits left
    low, high = 0.0, 1.0
    while tail(high, freedom) > beyond:
        low, high = high, high * 2
    at = (low + high) / 2
    for _ in range(100):
        off = tail(at, freedom) - beyond
        low, high = (at, high) if off > 0 else (low, at)
        step = at + off / _density(at, freedom)
        step = step if low < step < high else (low + high) / 2
        if abs(step - at) <= 1e-12 * at:
            return step
        at = step
    return at


def _density(t: float, freedom: float) -> float:
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return math.exp(log - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def tail(t: float, freedom: float) -> float:
    """P(T > t) for t >= 0, with all its digits where it is small."""
    return 0.5 * _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


@lru_cache(maxsize=1024)
def variance_ratio(p: float, above: int, below: int) -> float:
    """What the ratio of two variances of equal scatter stays below with probability p (Fisher and Snedecor).

    above, below: the degrees of freedom of each.
    """
    low, high = 0.0, 1.0  # of the share x = above F / (above F + below), which is beta distributed
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _beta(middle, above / 2, below / 2) < p else (low, middle)
    return below * low / (above * (1 - low))


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _fraction(1 - x, b, a) / b
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    found = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _apart(1 + term * d, tiny)
            c = _apart(1 + term / c, tiny)
            found *= d * c
        if abs(d * c - 1) < 1e-15:
            return found
    return found


def _apart(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
