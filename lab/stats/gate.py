"""Is HEAD slower than BASE by more than is allowed? The samples are processes, never steps of one process.

Times are compared as logs, so that a change is a share whatever the size; Welch's interval allows unequal
spread. Of 14 equal runs of one program the medians spread by 8.8 %, and tests over their steps called 86 to
90 % of equal pairs different; this one calls about 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

Outcome = Literal["regression", "excluded", "undecided"]
LEVEL = 0.99
LEAST = 3
MOST_REPEATS = 10_000


class Decision(dict[str, object]):
    """outcome, change (B/A - 1), low, high (its interval), n_base, n_head, detectable, more."""


def decide(base: Sequence[float], head: Sequence[float], allowed: float, *, level: float = LEVEL) -> Decision:
    """One median per process on each side; `allowed` is the largest slowdown that passes, as a share.

    A regression is proven if the whole interval lies above `allowed`, excluded if it lies below; else
    undecided, and `more` says how many further processes a side would settle it if the change stays. With
    fewer than three processes a side nothing is decided. Raises ValueError for values that are not positive
    and finite, or a negative `allowed`.
    """
    a, b = (np.asarray(side, dtype=float) for side in (base, head))
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 0).all() and (b > 0).all()):
        raise ValueError("times must be positive and finite")
    if not (math.isfinite(allowed) and allowed >= 0):
        raise ValueError(f"the allowed slowdown must be a share of 0 or more, got {allowed}")
    found = Decision(n_base=len(a), n_head=len(b), outcome="undecided", change=None, low=None, high=None)
    found.update(detectable=None, more=max(LEAST - min(len(a), len(b)), 0))
    if min(len(a), len(b)) < 1:
        return found
    x, y = np.log(a), np.log(b)
    change = float(y.mean() - x.mean())
    found["change"] = math.expm1(change)
    if min(len(a), len(b)) < LEAST:
        return found
    va, vb = float(x.var(ddof=1)), float(y.var(ddof=1))
    half = _half(va, vb, len(x), len(y), level)
    found.update(
        low=math.expm1(change - half), high=math.expm1(change + half), detectable=math.expm1(2 * half)
    )
    limit = math.log1p(allowed)
    if change - half > limit:
        found["outcome"] = "regression"
    elif change + half < limit:
        found["outcome"] = "excluded"
    else:
        found["more"] = _more(va, vb, min(len(x), len(y)), abs(change - limit), level)
    return found


def t_quantile(p: float, freedom: float) -> float:
    """The quantile of Student's t, by bisection on its distribution function."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < p else (low, middle)
    return high


def t_cdf(t: float, freedom: float) -> float:
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


def _half(va: float, vb: float, n: int, m: int, level: float) -> float:
    """Half the width of Welch's two-sided interval."""
    error = math.sqrt(va / n + vb / m)
    if error == 0:
        return 0.0
    freedom = (va / n + vb / m) ** 2 / ((va / n) ** 2 / (n - 1) + (vb / m) ** 2 / (m - 1))
    return t_quantile(1 - (1 - level) / 2, freedom) * error


def _more(va: float, vb: float, n: int, distance: float, level: float) -> int | None:
    """Further processes a side until the interval is shorter than `distance`; None if more than 10,000."""
    enough = n
    while _half(va, vb, enough, enough, level) >= distance:
        enough *= 2
        if enough > MOST_REPEATS:
            return None
    low = enough // 2
    while enough - low > 1:
        middle = (low + enough) // 2
        low, enough = (low, middle) if _half(va, vb, middle, middle, level) < distance else (middle, enough)
    return max(enough - n, 1)
