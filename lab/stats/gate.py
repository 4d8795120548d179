"""Is HEAD slower than BASE by more than is allowed? The samples are processes, never steps of one process.

Times are compared as logs, so that a change is a share whatever the size; Welch's interval allows unequal
spread. Of 14 equal runs of one program the medians spread by 8.8 %, and tests over their steps called 86 to
90 % of equal pairs different; this one calls about 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lab.stats.means import Sample, beyond_p, difference_ci

Outcome = Literal["regression", "excluded", "undecided"]
LEVEL = 0.99
# With two processes per side t at 99 % is 9.9: no change would be seen.
LEAST = 3
MOST_REPEATS = 10_000


@dataclass
class Decision:
    """change is B/A - 1, low to high its interval; detectable the smallest change that could be seen; more:
    further processes per side that would decide if the change stays. One-sided: p_slower against a slowdown
    of `allowed` at most, p_faster against a gain of `allowed` at most."""

    n_base: int
    n_head: int
    outcome: Outcome = "undecided"
    change: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    further: int | None = 0
    p_slower: float = 1.0
    p_faster: float = 1.0
    level: float = LEVEL  # of the interval
    faster: bool = False  # proven of several, as `lab.compare.whole.decide_all` does


def decide(
    base: Sequence[float],
    head: Sequence[float],
    allowed: float,
    *,
    level: float = LEVEL,
    excluding: float | None = None,
    ahead: bool = True,
) -> Decision:
    """One time per process on each side; `allowed` is the largest slowdown that passes, as a share.

    A regression is proven if the whole interval lies above `allowed`, excluded if it lies below; else
    undecided. With fewer than three processes per side nothing is decided. excluding: the level at which a
    regression is excluded, if not `level`: of many things tested together, each is excluded by itself.
    ahead: whether to work out `more`. Of several things p_slower and p_faster are what
    `lab.stats.effects.holm` corrects. Raises ValueError for values that are not positive and finite, or a
    negative `allowed`.
    """
    base_times, head_times = (np.asarray(times, dtype=float) for times in (base, head))
    if not all(np.isfinite(times).all() and (times > 0).all() for times in (base_times, head_times)):
        raise ValueError("times must be positive and finite")
    if not (math.isfinite(allowed) and allowed >= 0):
        raise ValueError(f"the allowed slowdown must be a share of 0 or more, got {allowed}")
    fewest = min(len(base_times), len(head_times))
    decision = Decision(len(base_times), len(head_times), further=max(LEAST - fewest, 0), level=level)
    if not fewest:
        return decision
    base_logs, head_logs = np.log(base_times), np.log(head_times)
    change = float(head_logs.mean() - base_logs.mean())
    decision.change = math.expm1(change)
    if fewest < LEAST:
        return decision
    spreads = (
        Sample(0.0, float(head_logs.std(ddof=1)), len(head_logs)),
        Sample(0.0, float(base_logs.std(ddof=1)), len(base_logs)),
    )
    excluding_level = level if excluding is None else excluding
    half, narrow = (difference_ci(*spreads, level=share)[1] for share in (level, excluding_level))
    decision.low, decision.high = math.expm1(change - half), math.expm1(change + half)
    # A change of half the interval is seen every second time, of twice as much nearly always.
    decision.detectable = math.expm1(2 * half)
    limit = math.log1p(allowed)
    decision.p_slower = beyond_p(_moved(spreads[0], change - limit), spreads[1])
    # A gain of the whole time has no logarithm.
    if allowed < 1:
        decision.p_faster = beyond_p(_moved(spreads[0], math.log1p(-allowed) - change), spreads[1])
    if change - half > limit:
        decision.outcome = "regression"
    elif change + narrow < limit:
        decision.outcome = "excluded"
    elif ahead:
        wanted = level if change > limit else excluding_level
        decision.further = _further_processes(*spreads, abs(change - limit), wanted)
    return decision


def _moved(spread: Sample, mean: float) -> Sample:
    return Sample(mean, spread.sd, spread.n)


def _further_processes(head: Sample, base: Sample, distance: float, level: float) -> int | None:
    """More processes per side until half the interval is shorter than `distance`; None: over 10,000."""
    n = min(head.n, base.n)

    def half(count: int) -> float:
        return difference_ci(Sample(0.0, head.sd, count), Sample(0.0, base.sd, count), level=level)[1]

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
