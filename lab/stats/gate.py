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

from lab.stats.means import Sample, beyond_p, difference_ci

Outcome = Literal["regression", "excluded", "undecided"]
LEVEL = 0.99
LEAST = 3
MOST_REPEATS = 10_000


class Decision(dict[str, object]):
    """outcome, change (B/A - 1), low, high (its interval), n_base, n_head, detectable, more; and one-sided:
    p_slower against a slowdown of `allowed` at most, p_faster against a gain of `allowed` at most."""


def decide(
    base: Sequence[float],
    head: Sequence[float],
    allowed: float,
    *,
    level: float = LEVEL,
    floor: float = 0.0,
    excluding: float | None = None,
    ahead: bool = True,
) -> Decision:
    """One median per process on each side; `allowed` is the largest slowdown that passes, as a share.

    A regression is proven if the whole interval lies above `allowed`, excluded if it lies below; else
    undecided, and `more` says how many further processes per side would settle it if the change stays. With
    fewer than three processes per side nothing is decided. floor: half the width, in logs, below which the
    interval does not go. excluding: the level at which a regression is excluded, if not `level`: of many
    things tested together, each is excluded by itself. ahead: whether to work out `more`. Of several things
    p_slower and p_faster are what `lab.stats.several.holm` corrects; they are 1 within the floor. Raises
    ValueError for values that are not positive and finite, or a negative `allowed`.
    """
    a, b = (np.asarray(side, dtype=float) for side in (base, head))
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 0).all() and (b > 0).all()):
        raise ValueError("times must be positive and finite")
    if not (math.isfinite(allowed) and allowed >= 0):
        raise ValueError(f"the allowed slowdown must be a share of 0 or more, got {allowed}")
    found = Decision(n_base=len(a), n_head=len(b), outcome="undecided", change=None, low=None, high=None)
    found.update(detectable=None, more=max(LEAST - min(len(a), len(b)), 0), p_slower=1.0, p_faster=1.0)
    if min(len(a), len(b)) < 1:
        return found
    x, y = np.log(a), np.log(b)
    change = float(y.mean() - x.mean())
    found["change"] = math.expm1(change)
    if min(len(a), len(b)) < LEAST:
        return found
    sd_base, sd_head = float(x.std(ddof=1)), float(y.std(ddof=1))
    half = max(_half(sd_base, sd_head, len(x), len(y), level), floor)
    by_itself = excluding if excluding is not None else level
    narrow = max(_half(sd_base, sd_head, len(x), len(y), by_itself), floor)
    found.update(
        low=math.expm1(change - half), high=math.expm1(change + half), detectable=math.expm1(2 * half)
    )
    limit = math.log1p(allowed)
    samples = Sample(change, sd_head, len(y)), Sample(0.0, sd_base, len(x))
    if change - floor > limit:
        found["p_slower"] = beyond_p(*samples, limit)
    if allowed < 1 and change + floor < (gain := math.log1p(-allowed)):
        found["p_faster"] = beyond_p(samples[1], samples[0], -gain)
    if change - half > limit:
        found["outcome"] = "regression"
    elif change + narrow < limit:
        found["outcome"] = "excluded"
    elif ahead:
        side = level if change > limit else by_itself
        found["more"] = _more(samples, abs(change - limit), side, floor)
    return found


def _half(sd_base: float, sd_head: float, n_base: int, n_head: int, level: float) -> float:
    """Half the width of Welch's two-sided interval."""
    return difference_ci(Sample(0.0, sd_head, n_head), Sample(0.0, sd_base, n_base), level=level)[1]


def _more(samples: tuple[Sample, Sample], distance: float, level: float, floor: float) -> int | None:
    """More processes per side until half the interval is shorter than `distance`; None if more than 10,000.

    floor: of the processes that there are; as a deviation's it shrinks with the root of their number.
    """
    head, base = samples
    n, floor_of_one = min(head.n, base.n), floor / math.sqrt(1 / head.n + 1 / base.n)

    def half(k: int) -> float:
        return max(_half(base.sd, head.sd, k, k, level), floor_of_one * math.sqrt(2 / k))

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
