"""Student's t: its distribution function and its quantiles, exact to rounding."""

from __future__ import annotations

import math


def quantile(p: float, freedom: float) -> float:
    """The quantile of Student's t, by bisection on its distribution function."""
    low, high = 0.0, 1.0
    while cdf(high, freedom) < p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle, freedom) < p else (low, middle)
    return high


def cdf(t: float, freedom: float) -> float:
    """P(T <= t) for t >= 0, by the regularised incomplete beta function's continued fraction (Lentz)."""
    x = freedom / (freedom + t * t)
    return 1 - 0.5 * _beta(x, freedom / 2, 0.5)


def _beta(x: float, a: float, b: float) -> float:
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
