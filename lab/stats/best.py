"""Which of several treatments may be the best, from randomised complete blocks (Hsu, 1984: MCB).

value = treatment + block + error, small is good. A treatment may be the best unless another's mean is lower
by more than d s sqrt(2 / b), d being the one-sided many-to-one critical value (Dunnett, 1955).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

DRAWS, SEED = 400_000, 2025


@dataclass(frozen=True)
class Best:
    """What the blocks say. means and lead have the values' unit; needed is the lead that proves the first.

    first is the index of the lowest mean; candidates are all that may be the best (several: nobody is
    proven). needed is NaN, and everyone a candidate, without two blocks of two treatments.
    """

    means: tuple[float, ...]
    first: int
    candidates: tuple[int, ...]
    lead: float
    needed: float


def best_of(values: np.ndarray, *, level: float = 0.05) -> Best:
    """The judgement over values (blocks, treatments), all finite, at least one treatment."""
    num_blocks, num = values.shape
    means = values.mean(axis=0) if num_blocks else np.full(num, math.nan)
    order = np.argsort(means, kind="stable")
    lead = float(means[order[1]] - means[order[0]]) if num > 1 else math.nan
    if num_blocks < 2 or num < 2:
        return Best(tuple(means.tolist()), int(order[0]), tuple(range(num)), lead, math.nan)
    residuals = values - means - values.mean(axis=1)[:, None] + values.mean()
    free = (num - 1) * (num_blocks - 1)
    error = math.sqrt(float((residuals**2).sum()) / free)
    needed = mcb_critical(num, free, level) * error * math.sqrt(2 / num_blocks)
    others = np.where(np.arange(num) == order[0], means[order[1]], means[order[0]])
    chosen = np.flatnonzero(means - others <= needed)
    alone = [int(order[0])] if lead > needed else chosen.tolist()
    return Best(tuple(means.tolist()), int(order[0]), tuple(alone), lead, needed)


@lru_cache(maxsize=64)
def mcb_critical(num: int, free: int, level: float = 0.05) -> float:
    """One-sided critical value of the largest of num - 1 comparisons with one mean; free: error's df.

    By simulation with a fixed seed, to about 0.01.
    """
    random = np.random.default_rng(SEED)
    centre = random.standard_normal(DRAWS)
    largest = np.full(DRAWS, -np.inf)
    for _ in range(num - 1):
        np.maximum(largest, random.standard_normal(DRAWS) - centre, out=largest)
    scale = np.sqrt(random.chisquare(free, DRAWS) / free) * math.sqrt(2)
    return float(np.quantile(largest / scale, 1 - level))
