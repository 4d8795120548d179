"""Statistics that are robust to a few outliers, and bootstrap intervals for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def median(values: Sequence[float] | np.ndarray) -> float:
    """Middle value of (n,); NaN for none, and where one is NaN.

    The same as np.median, which loads numpy.ma for it (15 ms).
    """
    if not len(values):
        return float("nan")
    low, high = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(np.asarray(values, dtype=float), [low, high, len(values) - 1])  # NaN last
    if np.isnan(ordered[-1]):
        return float("nan")
    return float(ordered[low]) if low == high else (float(ordered[low]) + float(ordered[high])) / 2


def mad(values: Sequence[float] | np.ndarray) -> float:
    """Median absolute deviation from the median, unscaled; NaN for none."""
    if len(values) == 0:
        return float("nan")
    return median(np.abs(np.asarray(values, dtype=float) - median(values)))


def column_medians(values: np.ndarray) -> np.ndarray:
    """The median of each column (n, columns) without its NaN; NaN where a column has nothing else."""
    ordered = np.sort(values, axis=0)
    max_row = np.maximum((~np.isnan(values)).sum(axis=0) - 1, 0)
    columns = np.arange(values.shape[1])
    middle: np.ndarray = (ordered[max_row // 2, columns] + ordered[(max_row + 1) // 2, columns]) / 2
    return middle


def cv(values: Sequence[float] | np.ndarray) -> float:
    """Coefficient of variation: standard deviation (ddof 1) over the mean; NaN below 2 values or mean 0."""
    if len(values) < 2 or float(np.mean(values)) == 0:
        return float("nan")
    return float(np.std(values, ddof=1) / np.mean(values))


def percentile(values: Sequence[float] | np.ndarray, percent: float) -> float:
    """Linear-interpolated percentile, `percent` in 0..100; NaN for none.

    The same as np.percentile (of integers below 2^53), which loads numpy.ma for it (15 ms).
    """
    ordered = np.sort(np.asarray(values, dtype=float))  # NaN last
    if not len(ordered) or np.isnan(ordered[-1]):
        return float("nan")
    position = percent / 100 * (len(ordered) - 1)
    low = int(position)
    start, stop, share = float(ordered[low]), float(ordered[min(low + 1, len(ordered) - 1)]), position - low
    # From the nearer end, as numpy does it, so that both ends are exact.
    return start + (stop - start) * share if share < 0.5 else stop - (stop - start) * (1 - share)


def grouped(
    values: np.ndarray, group: np.ndarray, num_groups: int, percents: Sequence[float] = ()
) -> dict[str, np.ndarray]:
    """Statistics of `values` (n,) for each group 0..num_groups-1 (n,), by one sort: arrays (num_groups,).

    Keys: count, sum, mean, median, std (ddof 1, NaN below 2 values), cv (std over mean, NaN for mean 0), mad,
    min, max and `p5`, `p95` ... for `percents`. NaN where a group is empty.
    """
    order = np.lexsort((values, group))
    ordered, sorted_group = np.asarray(values, dtype=float)[order], group[order]
    count = np.bincount(group, minlength=num_groups)
    start = np.cumsum(count) - count

    def at_percent(of: np.ndarray, percent: float) -> np.ndarray:
        # Within the group: a fraction of a position in all values would depend on the groups before it.
        position = np.maximum(count - 1, 0) * (percent / 100)
        below = np.floor(position).astype(np.int64)
        low = np.minimum(start + below, len(of) - 1)
        high = np.minimum(low + 1, np.maximum(start + count - 1, 0))
        return np.where(count > 0, of[low] + (of[high] - of[low]) * (position - below), np.nan)

    if len(ordered) == 0:
        names = ["mean", "median", "std", "cv", "mad", "min", "max", *(f"p{p:g}" for p in percents)]
        nothing = dict.fromkeys(names, np.full(num_groups, np.nan))
        return {"count": count, "sum": np.zeros(num_groups), **nothing}
    sums = np.bincount(sorted_group, weights=ordered, minlength=num_groups)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums / count
        squares = np.bincount(sorted_group, weights=(ordered - mean[sorted_group]) ** 2, minlength=num_groups)
        std = np.sqrt(np.where(count > 1, squares / (count - 1), np.nan))
        spread = np.where(mean == 0, np.nan, std / mean)
    middle = at_percent(ordered, 50)
    deviation = np.abs(ordered - middle[sorted_group])
    return {
        "count": count,
        "sum": sums,
        "mean": mean,
        "median": middle,
        "std": std,
        "cv": spread,
        "mad": at_percent(deviation[np.lexsort((deviation, sorted_group))], 50),
        "min": at_percent(ordered, 0),
        "max": at_percent(ordered, 100),
        **{f"p{percent:g}": at_percent(ordered, percent) for percent in percents},
    }
