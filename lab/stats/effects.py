"""Whether conditions differ: ratios of medians, permutation tests, several tests at once, the best treatment.

All randomness is seeded, so that a number is the same on every run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

RESAMPLES = 2000
# Above this many values the permutation distribution is practically normal, with known moments.
MOST_PERMUTED = 2000
DRAWS, SEED = 400_000, 2025


def median_ratio_ci(
    base: np.ndarray,
    changed: np.ndarray,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 2025,
) -> tuple[float, float]:
    """Percentile bootstrap interval of median(changed) / median(base), for (n,) and (m,) positive values.

    (NaN, NaN) below two values of either, or where a base of zeros leaves no ratio. The cost does not
    grow with n beyond one sort: the median of a resample is an order statistic, whose position in the sorted
    sample follows a beta distribution.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; David and Nagaraja,
    Order Statistics (2003), section 2.3.
    """
    if min(len(base), len(changed)) < 2:
        return math.nan, math.nan
    random = np.random.default_rng(seed)
    above, below = (_resampled_medians(sample, resamples, random) for sample in (changed, base))
    if not below.all():
        return math.nan, math.nan
    ratio = above / below
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(ratio, [tail, 100 - tail])
    return float(low), float(high)


def permutation_p(
    values: np.ndarray,
    treated: np.ndarray,
    blocks: np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int = 2025,
) -> float:
    """Two-sided p-value that the `treated` (n,) values differ, labels shuffled within each block (n,) only.

    The statistic is the sum of the treated values' distances from the mean of their block. NaN where no
    block has both kinds, because then condition and block cannot be separated. A single block with few
    arrangements is enumerated, so that its p-value is exact; many values use the normal limit.
    Source: Good, Permutation, Parametric and Bootstrap Tests of Hypotheses (2005), chapters 3 and 6.
    """
    mixed = [rows for rows in _rows_of(blocks) if 0 < treated[rows].sum() < len(rows)]
    if not mixed:
        return math.nan
    # Centred in each block, so that differences between blocks add no variance.
    centred = [values[rows] - values[rows].mean() for rows in mixed]
    num_treated = [int(treated[rows].sum()) for rows in mixed]
    observed = abs(sum(float(x[treated[rows]].sum()) for x, rows in zip(centred, mixed, strict=True)))
    if sum(len(rows) for rows in mixed) > MOST_PERMUTED:
        return _normal_p(observed, centred, num_treated)
    if len(mixed) == 1 and math.comb(len(centred[0]), num_treated[0]) <= resamples:
        chosen = np.array(list(itertools.combinations(centred[0], num_treated[0]))).sum(axis=1)
        return float(np.mean(_reaches(chosen, observed)))
    random = np.random.default_rng(seed)
    shuffled = sum(
        random.permuted(np.tile(x, (resamples, 1)), axis=1)[:, :k].sum(axis=1)
        for x, k in zip(centred, num_treated, strict=True)
    )
    # The observed arrangement is one of all: without it p could be 0 (Phipson and Smyth, 2010).
    return float((1 + _reaches(np.asarray(shuffled), observed).sum()) / (1 + resamples))


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Correct p-values (n,) for their number, in the order given; NaN stays NaN and does not count.

    Of all tests whose corrected p is at most alpha, one or more is a false alarm with probability alpha at
    most, however they depend on each other. Source: Holm, Scandinavian Journal of Statistics 6 (1979) 65.
    """
    raw = np.asarray(p_values, dtype=float)
    corrected = np.full(len(raw), np.nan)
    order = np.argsort(raw, kind="stable")[: np.count_nonzero(~np.isnan(raw))]  # NaN is sorted last
    # Holm's steps: the guarantee of Bonferroni's, and never weaker.
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(raw[order] * factors))
    return corrected


@dataclass(frozen=True)
class Best:
    """Which of several treatments may be the best. means, lead and needed have the values' unit.

    lowest: index of the lowest mean; candidates: all that may be the best; needed: the lead that proves
    it. Without two blocks of two treatments needed is NaN, and all are candidates.
    """

    means: tuple[float, ...]
    lowest: int
    candidates: tuple[int, ...]
    lead: float
    needed: float


def best_of(values: np.ndarray, *, level: float = 0.05) -> Best:
    """Judge values (blocks, treatments), small is good, all finite, from randomised complete blocks.

    value = treatment + block + error. A treatment may be the best unless another's mean is lower by more than
    d s sqrt(2 / b), d being the one-sided many-to-one critical value (Hsu, 1984: MCB; Dunnett, 1955).
    """
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
    # Alone past the needed lead; the lowest mean is always a candidate.
    candidates = np.flatnonzero(means - means[order[0]] <= needed).tolist()
    return Best(tuple(means.tolist()), int(order[0]), tuple(candidates), lead, needed)


@lru_cache(maxsize=64)
def mcb_critical(num: int, free: int, level: float = 0.05) -> float:
    """One-sided critical value of the largest of num - 1 comparisons with one mean; free: error's df.

    By simulation with a fixed seed, to about 0.01.
    """
    random = np.random.default_rng(SEED)
    # All comparisons share one mean, which correlates them: one draw of it is in each.
    centre = random.standard_normal(DRAWS)
    largest = np.full(DRAWS, -np.inf)
    for _ in range(num - 1):
        np.maximum(largest, random.standard_normal(DRAWS) - centre, out=largest)
    scale = np.sqrt(random.chisquare(free, DRAWS) / free) * math.sqrt(2)
    return float(np.quantile(largest / scale, 1 - level))


def _resampled_medians(sample: np.ndarray, resamples: int, random: np.random.Generator) -> np.ndarray:
    ordered = np.sort(np.asarray(sample, dtype=float))
    n = len(ordered)
    lower = (n + 1) // 2
    position = random.beta(lower, n - lower + 1, resamples)
    medians: np.ndarray = ordered[_index(position, n)]
    if n % 2 == 0:
        above = position + (1 - position) * random.beta(1, n - lower, resamples)
        medians = (medians + ordered[_index(above, n)]) / 2
    return medians


def _index(position: np.ndarray, n: int) -> np.ndarray:
    return np.minimum((position * n).astype(np.int64), n - 1)


def _rows_of(blocks: np.ndarray) -> list[np.ndarray]:
    order = np.argsort(blocks, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1) if len(order) else []


def _reaches(sums: np.ndarray, observed: float) -> np.ndarray:
    # The observed arrangement must count, in whatever order its values were summed.
    reached: np.ndarray = np.abs(sums) >= observed * (1 - 1e-9)
    return reached


def _normal_p(observed: float, centred: list[np.ndarray], num_treated: list[int]) -> float:
    variance = sum(
        k * (len(x) - k) / len(x) * float(x.var(ddof=1)) for x, k in zip(centred, num_treated, strict=True)
    )
    return math.erfc(observed / math.sqrt(2 * variance)) if variance > 0 else 1.0
