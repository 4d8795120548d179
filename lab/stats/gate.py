"""Is HEAD slower than BASE by more than is allowed? The samples are processes, never steps of one process.

Times are compared as logs, so that a change is a share whatever the size; Welch's interval allows unequal
spread. Of 14 equal runs of one program the medians spread by 8.8 %, and tests over their steps called 86 to
90 % of equal pairs different; this one calls about 1 %.

Further processes of BASE, measured apart (A against A), show how much equal ones differ. Where all scatter
alike they are pooled: with more degrees of freedom, true changes are proven sooner, and three processes that
agree by luck prove nothing. Where HEAD, or BASE today, scatters more, the wider of the pooled and of Welch's
interval holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np

from lab.stats.means import Sample, beyond_p, difference_ci, student_t, upper_p, variance_ratio

Outcome = Literal["regression", "excluded", "undecided"]
LEVEL = 0.99
LEAST = 3
LEAST_EQUAL = 3  # A/A processes below which they are not used
MOST_REPEATS = 10_000
# What this share of equal cases stays below passes for alike: strict, because a variance that is too small
# raises false alarms, and one that is too large only costs power.
ALIKE = 0.75


class Decision(dict[str, object]):
    """outcome, change (B/A - 1), low, high (its interval), n_base, n_head, detectable, more; and one-sided:
    p_slower against a slowdown of `allowed` at most, p_faster against a gain of `allowed` at most."""


def decide(
    base: Sequence[float],
    head: Sequence[float],
    allowed: float,
    *,
    level: float = LEVEL,
    equal: Sequence[float] = (),
    excluding: float | None = None,
    ahead: bool = True,
) -> Decision:
    """One median per process on each side; `allowed` is the largest slowdown that passes, as a share.

    A regression is proven if the whole interval lies above `allowed`, excluded if it lies below; else
    undecided, and `more` says how many further processes per side would settle it if the change stays. With
    fewer than three processes per side nothing is decided. equal: times of further processes of BASE, which
    tell how much equal ones differ (LEAST_EQUAL or more). excluding: the level at which a regression is
    excluded, if not `level`: of many things tested together, each is excluded by itself. ahead: whether to
    work out `more`. Of several things p_slower and p_faster are what `lab.stats.effects.holm` corrects.
    Raises ValueError for values that are not positive and finite, or a negative `allowed`.
    """
    a, b, apart = (np.asarray(times, dtype=float) for times in (base, head, equal))
    if not all(np.isfinite(times).all() and (times > 0).all() for times in (a, b, apart)):
        raise ValueError("times must be positive and finite")
    if not (math.isfinite(allowed) and allowed >= 0):
        raise ValueError(f"the allowed slowdown must be a share of 0 or more, got {allowed}")
    decision = Decision(n_base=len(a), n_head=len(b), outcome="undecided", change=None, low=None, high=None)
    decision.update(detectable=None, more=max(LEAST - min(len(a), len(b)), 0), p_slower=1.0, p_faster=1.0)
    if min(len(a), len(b)) < 1:
        return decision
    x, y = np.log(a), np.log(b)
    change = float(y.mean() - x.mean())
    decision["change"] = math.expm1(change)
    if min(len(a), len(b)) < LEAST:
        return decision
    samples = Sample(change, float(y.std(ddof=1)), len(y)), Sample(0.0, float(x.std(ddof=1)), len(x))
    among = Sample(0.0, float(np.log(apart).std(ddof=1)), len(apart)) if len(apart) >= LEAST_EQUAL else None
    by_itself = excluding if excluding is not None else level
    alike = among is not None and _alike(*samples, among)
    half, narrow = (_half(*samples, among, alike, share) for share in (level, by_itself))
    decision.update(
        low=math.expm1(change - half), high=math.expm1(change + half), detectable=math.expm1(2 * half)
    )
    limit = math.log1p(allowed)
    decision["p_slower"] = _beyond_p(change - limit, *samples, among, alike)
    if allowed < 1:
        decision["p_faster"] = _beyond_p(math.log1p(-allowed) - change, *samples, among, alike)
    if change - half > limit:
        decision["outcome"] = "regression"
    elif change + narrow < limit:
        decision["outcome"] = "excluded"
    elif ahead:
        side = level if change > limit else by_itself
        decision["more"] = _more(samples, among, alike, abs(change - limit), side)
    return decision


def _half(head: Sample, base: Sample, among: Sample | None, alike: bool, level: float) -> float:
    """Half the width of the two-sided interval: Welch's, or that of one variance from all three."""
    if among is None:
        return _welch(head, base, level)
    error, freedom = _pooled(head, base, among)
    together = student_t(1 - level, freedom) * error
    return together if alike else max(together, _welch(head, base, level))


def _welch(head: Sample, base: Sample, level: float) -> float:
    return difference_ci(Sample(0.0, head.sd, head.n), Sample(0.0, base.sd, base.n), level=level)[1]


def _beyond_p(distance: float, head: Sample, base: Sample, among: Sample | None, alike: bool) -> float:
    """One-sided p that the means do not differ by `distance` above a limit, by the test of `_half`."""
    welch = beyond_p(Sample(distance, head.sd, head.n), Sample(0.0, base.sd, base.n))
    if among is None:
        return welch
    together = upper_p(distance, *_pooled(head, base, among))
    return together if alike else max(together, welch)


def _pooled(head: Sample, base: Sample, among: Sample) -> tuple[float, int]:
    """The standard error of the difference of means by one variance from all, and its degrees of freedom."""
    freedom = head.n + base.n + among.n - 3
    variance = sum((sample.n - 1) * sample.sd**2 for sample in (head, base, among)) / freedom
    return math.sqrt(variance * (1 / head.n + 1 / base.n)), freedom


def _alike(head: Sample, base: Sample, among: Sample) -> bool:
    sizes = (head.n, base.n, among.n)
    return all(variance <= limit for variance, limit in scatters(head.sd**2, base.sd**2, among.sd**2, sizes))


Variance = TypeVar("Variance", float, np.ndarray)


def scatters(
    head: Variance, base: Variance, among: Variance, n: tuple[int, int, int]
) -> tuple[tuple[Variance, Variance], tuple[Variance, Variance]]:
    """Today's variance and HEAD's, each with the limit up to which it passes for alike.

    The limits come from the processes measured apart and from all of BASE; n: processes of HEAD, BASE, apart.
    """
    n_head, n_base, n_among = n
    today = ((n_head - 1) * head + (n_base - 1) * base) / (n_head + n_base - 2)
    of_base = ((n_among - 1) * among + (n_base - 1) * base) / (n_among + n_base - 2)
    return (
        (today, variance_ratio(ALIKE, n_head + n_base - 2, n_among - 1) * among),
        (head, variance_ratio(ALIKE, n_head - 1, n_among + n_base - 2) * of_base),
    )


def _more(
    samples: tuple[Sample, Sample], among: Sample | None, alike: bool, distance: float, level: float
) -> int | None:
    """More processes per side until half the interval is shorter than `distance`; None: over 10,000."""
    head, base = samples
    n = min(head.n, base.n)

    def half(k: int) -> float:
        return _half(Sample(0.0, head.sd, k), Sample(0.0, base.sd, k), among, alike, level)

    enough = n
    while half(enough) >= distance:
        enough *= 2
        if enough > MOST_REPEATS:
            return None
    low = enough // 2
    while enough - low > 1:
        middle = (low + enough) // 2
        low, enough = (low, middle) if half(middle) < distance else (middle, enough)
    return max(enough - n, 1)
