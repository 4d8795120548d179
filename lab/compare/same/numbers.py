"""Differences of paired outputs: relative, in ULPs, and an op's own error against its peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from lab.workload.recorder.format import MAX_SAMPLES, Row

EPS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
FLOATS = tuple(EPS)
LEAST = 6e-8  # half an ulp of float32, the least that a floor can be


def samples_of(rows: Sequence[Row]) -> np.ndarray:
    """Sampled elements (rows, MAX_SAMPLES) in float64, NaN where absent."""
    samples = np.full((len(rows), MAX_SAMPLES), np.nan)
    for index, row in enumerate(rows):
        samples[index, : len(row.sample)] = [np.nan if value is None else value for value in row.sample]
    return samples


def relative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """L2 of the difference over L2 of a, per row of samples (n, k); NaN in both is equal, in one infinite."""
    absent = np.isnan(a) & np.isnan(b)
    off = np.where(absent, 0.0, b - a)
    size = np.sqrt(np.nansum(np.square(a), axis=1))
    ratio = _over(np.sqrt(np.square(off).sum(axis=1)), size)
    return np.where(np.isnan(ratio), np.inf, ratio)


def moved(a: Sequence[Row], b: Sequence[Row]) -> np.ndarray:
    """The L2 norm of b - a over that of a, over all elements (n,): the RMS of the changes of k sums under
    random signs estimates it, whatever elements changed. NaN where not both have such sums, or a norm is not
    finite.
    """
    estimates = np.full(len(a), np.nan)
    for index, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.l2 is None or y.l2 is None or not x.signed or len(x.signed) != len(y.signed):
            continue
        if None not in x.signed and None not in y.signed:
            off = np.subtract(np.array(y.signed, dtype=float), np.array(x.signed, dtype=float))
            size = float(np.sqrt(np.square(off).mean()))
            estimates[index] = 0.0 if size == 0 else size / x.l2 if x.l2 else np.inf
    return estimates


def change(a: Sequence[float | None], b: Sequence[float | None]) -> np.ndarray:
    """|b - a| / |a| of two columns of norms (n,); None (not finite) on one side alone is infinite."""
    x, y = (np.array([np.nan if one is None else one for one in column]) for column in (a, b))
    ratio = _over(np.abs(y - x), np.abs(x))
    ratio = np.where(np.isnan(x) & np.isnan(y), 0.0, ratio)
    return np.where(np.isnan(ratio), np.inf, ratio)


def _over(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """part / whole; 0 / 0 is 0, and something over 0 infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(part == 0, 0.0, np.where(total == 0, np.inf, part / total))


def ulps(a: np.ndarray, b: np.ndarray, dtype: str) -> float:
    """The largest distance of two rows of samples in steps of `dtype`; NaN for a dtype without ULPs."""
    if dtype not in EPS:
        return float("nan")
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.any():
        return 0.0
    (below_a, size_a), (below_b, size_b) = _steps(a[finite], dtype), _steps(b[finite], dtype)
    across = size_a.astype(np.float64) + size_b.astype(np.float64)  # two int64 could overflow
    return float(np.where(below_a == below_b, np.abs(size_a - size_b), across).max())


def _steps(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Whether each number is below zero, and its steps from zero (int64)."""
    if dtype == "float64":
        bits, mask = values.astype(np.float64).view(np.int64), 2**63 - 1
    elif dtype == "float16":
        bits, mask = values.astype(np.float16).view(np.int16).astype(np.int64), 2**15 - 1
    else:
        bits, mask = values.astype(np.float32).view(np.int32).astype(np.int64), 2**31 - 1
    size = bits & np.int64(mask)
    return bits < 0, size >> 16 if dtype == "bfloat16" else size


def local_ratio(rows: Sequence[Row], peers: Sequence[Row], partners: Sequence[Row] = ()) -> np.ndarray:
    """Each row's own error over the median own error of `peers` with the same op and output (n,).

    NaN where the row has none. An op that `peers` lack is compared with the rows themselves. Where the
    `partner` of a row is as far off, its inputs cancel, and neither run is at fault.
    """
    typical = {**_typical(rows), **_typical(peers)}
    ratios = np.full(len(rows), np.nan)
    for index, row in enumerate(rows):
        if row.local_rel is not None:
            beside = (partners[index].local_rel or 0.0) if partners else 0.0
            floor = max(typical[row.op, row.out], beside, EPS.get(row.dtype, LEAST))
            ratios[index] = row.local_rel / floor
    return ratios


def _typical(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.local_rel is not None:
            errors[row.op, row.out].append(row.local_rel)
    return {key: float(np.median(error)) for key, error in errors.items()}
