"""Whether a condition changes a duration, by how much, and what share of the variance it explains.

All randomness is seeded, so that a number is the same on every run.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

RESAMPLES = 2000
# Above this many values the permutation distribution is practically normal, with known moments.
MOST_PERMUTED = 2000


def median_ratio_ci(
    base: np.ndarray,
    changed: np.ndarray,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 2025,
) -> tuple[float, float]:
    """Percentile bootstrap interval of median(changed) / median(base), for (n,) and (m,) positive values.

    (NaN, NaN) below two values on either side, or where a base of zeros leaves no ratio. The cost does not
    grow with n beyond one sort: the median of a resample is an order statistic, whose position in the sorted
    sample follows a beta distribution.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; David and Nagaraja,
    Order Statistics (2003), section 2.3.
    """
    if min(len(base), len(changed)) < 2:
        return math.nan, math.nan
    random = np.random.default_rng(seed)
    above, below = (_resampled_medians(one, resamples, random) for one in (changed, base))
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
    return float((1 + _reaches(np.asarray(shuffled), observed).sum()) / (1 + resamples))


def _resampled_medians(sample: np.ndarray, resamples: int, random: np.random.Generator) -> np.ndarray:
    ordered = np.sort(np.asarray(sample, dtype=float))
    n = len(ordered)
    lower = (n + 1) // 2
    at = random.beta(lower, n - lower + 1, resamples)
    if n % 2:
        result: np.ndarray = ordered[_index(at, n)]
        return result
    above = at + (1 - at) * random.beta(1, n - lower, resamples)
    middle: np.ndarray = (ordered[_index(at, n)] + ordered[_index(above, n)]) / 2
    return middle


def _index(at: np.ndarray, n: int) -> np.ndarray:
    return np.minimum((at * n).astype(np.int64), n - 1)


def _rows_of(blocks: np.ndarray) -> list[np.ndarray]:
    order = np.argsort(blocks, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1) if len(order) else []


def _reaches(sums: np.ndarray, observed: float) -> np.ndarray:
    # The observed arrangement must count, in whatever order its values were summed.
    result: np.ndarray = np.abs(sums) >= observed * (1 - 1e-9)
    return result


def _normal_p(observed: float, centred: list[np.ndarray], num_treated: list[int]) -> float:
    variance = sum(
        k * (len(x) - k) / len(x) * float(x.var(ddof=1)) for x, k in zip(centred, num_treated, strict=True)
    )
    return math.erfc(observed / math.sqrt(2 * variance)) if variance > 0 else 1.0
