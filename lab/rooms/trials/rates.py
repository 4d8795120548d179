"""Rates of failure, `fail` of `n` trials: intervals, comparisons and numbers of trials, exact at any n.

Fisher's test is in integers: importing scipy.stats for it takes 0.9 s of CPU, and has no strata.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from lab.rooms.trials.config import ALPHA
from lab.stats.means import beta_cdf, turning_point

POWER = 0.8
MOST_TRIALS = 400  # `trials_per_cell` says None beyond
# log of the factor of a block in which one failed; rows: shares of the baseline, columns: it or the cell.
_SHARES = np.log(2 * np.array([[share, 1 - share] for share in (*(np.arange(11, 20) / 20), 0.998)]))


def exact_interval(fail: int, n: int) -> tuple[float, float]:
    """Two-sided 95 % interval of a rate (Clopper-Pearson), the number of trials fixed beforehand.

    Source: Clopper and Pearson, Biometrika 26 (1934) 404-413.
    """
    _check(fail, n)
    tail = ALPHA / 2
    low, high = 0.0, 1.0
    if fail > 0:
        low = turning_point(lambda p: beta_cdf(p, fail, n - fail + 1) < tail, 0.0, fail / n)
    if fail < n:
        high = turning_point(lambda p: beta_cdf(1 - p, n - fail, fail + 1) >= tail, fail / n, 1.0)
    return low, high


def anytime_interval(fail: int, n: int) -> tuple[float, float]:
    """An interval (95 %) that covers the rate at every look at once, so that trials may stop at any time.

    It holds each p whose likelihood is not 1 / ALPHA times below Robbins' mixture with a Beta(1/2, 1/2)
    prior. Source: Robbins, Annals of Mathematical Statistics 41 (1970) 1397-1409; Ville's inequality.
    """
    _check(fail, n)
    if n == 0:
        return 0.0, 1.0
    limit = _log_beta(fail + 0.5, n - fail + 0.5) - _log_beta(0.5, 0.5) + math.log(ALPHA)

    def holds(p: float) -> bool:
        passed = (n - fail) * math.log1p(-p) if fail < n else 0.0
        return limit < passed + (fail * math.log(p) if fail else 0.0)

    rate = fail / n
    low = 0.0 if fail == 0 else turning_point(lambda p: not holds(p), 0.0, rate)
    return low, 1.0 if fail == n else turning_point(holds, rate, 1.0)


def fisher_p(fail: int, n: int, base_fail: int, base_n: int) -> float:
    """Two-sided exact p-value that two rates are equal, in integers. Source: Fisher (1935), conditional."""
    return stratified_p([(fail, n, base_fail, base_n)])


def fisher_less_p(fail: int, n: int, base_fail: int, base_n: int) -> float:
    """One-sided: how likely `fail` or fewer are in the first cell if its rate is not lower."""
    weights, lowest = _table(fail, n, base_fail, base_n)
    return float(Fraction(sum(weights[: fail - lowest + 1]), sum(weights)))


def stratified_p(tables: Sequence[tuple[int, int, int, int]]) -> float:
    """Two-sided exact p-value over strata (fail, n, base_fail, base_n), such as one per node.

    The sum of the first cell's failures, given each stratum's margins: a convolution of hypergeometric
    distributions. Source: Gart, Review of the ISI 39 (1971) 148-169.
    """
    weights, rank = np.array([1], dtype=object), 0
    for fail, n, base_fail, base_n in tables:
        stratum, lowest = _table(fail, n, base_fail, base_n)
        weights, rank = np.convolve(weights, np.array(stratum, dtype=object)), rank + fail - lowest
    return float(Fraction(sum(weights[weights <= weights[rank]]), sum(weights)))


@lru_cache(maxsize=1 << 16)
def discordant_e(base_only: int, cell_only: int) -> float:
    """Log e-value that a cell fails less than its baseline, from the blocks in which one of the two failed.

    Any rule may stop: if the cell fails no less often, a running maximum reaches log(1 / alpha) with
    probability alpha at most. In a block of random order either is as likely to be the one that fails,
    however failures depend on time and on earlier trials of any cell. That does not hold where a cell keeps a
    state of its own from trial to trial, such as a cache that only it uses. The likelihood of a share above
    1/2 is divided by that of 1/2 and averaged over a grid of shares. Source: McNemar, Psychometrika 12 (1947)
    153-157; Robbins, Annals of Mathematical Statistics 41 (1970) 1397-1409.
    """
    logs = _SHARES @ np.array([base_only, cell_only], dtype=float)
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).mean()))


def e_path(pairs: Sequence[tuple[bool, bool]]) -> list[float]:
    """An anytime p-value after each block (baseline failed, cell failed), from the most evidence so far."""
    base_only, cell_only, path, best = 0, 0, [], 0.0
    for base, cell in pairs:
        base_only, cell_only = base_only + (base > cell), cell_only + (cell > base)
        best = max(best, discordant_e(base_only, cell_only))
        path.append(math.exp(-best))
    return path


def trials_per_cell(base: float, cell: float) -> int | None:
    """About how many trials of each cell a one-sided Fisher test needs to see `cell` below `base` in 80 %.

    None where it is more than MOST_TRIALS, or where `cell` is not below `base`. Source: Casagrande, Pike and
    Smith, Biometrics 34 (1978) 483-486: the normal limit, corrected for counts being whole.
    """
    if not 0 <= cell < base <= 1:
        return None
    za, zb = NormalDist().inv_cdf(1 - ALPHA), NormalDist().inv_cdf(POWER)
    mean, apart = (base + cell) / 2, base - cell
    spread = za * math.sqrt(2 * mean * (1 - mean)) + zb * math.sqrt(base * (1 - base) + cell * (1 - cell))
    n = math.ceil((spread * (1 + math.sqrt(1 + 4 * apart / spread**2)) / (2 * apart)) ** 2)
    return n if n <= MOST_TRIALS else None


def _check(fail: int, n: int) -> None:
    if not 0 <= fail <= n:
        raise ValueError(f"{fail} failures of {n} trials is not a rate")


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _table(fail: int, n: int, base_fail: int, base_n: int) -> tuple[list[int], int]:
    """Integer weights of every possible number of failures in the first cell, and the lowest of them."""
    _check(fail, n)
    _check(base_fail, base_n)
    failed = fail + base_fail
    lowest, highest = max(0, failed - base_n), min(n, failed)
    return [math.comb(n, k) * math.comb(base_n, failed - k) for k in range(lowest, highest + 1)], lowest
