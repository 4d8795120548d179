"""What explains a spread, whatever the order of the factors; and an effect within cells.

Shares are those of Lindeman, Merenda and Gold (1980), the mean over all orders of what a factor adds to R
squared (Shapley). They split what factors share in equal parts, so they describe and prove no cause: unique
and shared parts stand beside them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 200


@dataclass(frozen=True)
class Sums:
    """Cross products of one group (a GEMM's instances) by cluster, from which every fit can be made.

    gram (clusters, k, k) is of the columns [1, dummies of each factor, value]; columns maps a factor to its.
    """

    gram: np.ndarray
    columns: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Attribution:
    """Shares of the spread within groups (0 to 1). share sums to 1 - unexplained over the factors.

    unique: what a factor adds to all others; low and high: 95 % of share by resampling clusters (NaN below
    three clusters). shared: for the two largest factors, what either explains and neither adds.
    """

    share: dict[str, float]
    unique: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    unexplained: float
    pair: tuple[str, str]
    shared: float


def sums_of(values: np.ndarray, factors: Mapping[str, np.ndarray], clusters: np.ndarray) -> Sums:
    """The cross products of values (n,) and the factors (n,): integer labels, or floats that count linearly.

    clusters (n,) from 0 must have the same numbers in every group that is attributed together.
    """
    columns: dict[str, np.ndarray] = {}
    parts = [np.ones((len(values), 1))]
    width = 1
    for name, labels in factors.items():
        values_of = np.asarray(labels)
        if values_of.dtype.kind == "f":
            added = values_of[:, None]
        else:
            added = (values_of[:, None] == np.unique(values_of)[1:]).astype(float)
        parts.append(added)
        columns[name] = np.arange(width, width + added.shape[1])
        width += added.shape[1]
    parts.append((values - values.mean())[:, None])
    design = np.hstack(parts)
    gram = np.zeros((int(clusters.max(initial=-1)) + 1, width + 1, width + 1))
    np.add.at(gram, clusters, design[:, :, None] * design[:, None, :])
    return Sums(gram, columns)


def attribution(groups: Sequence[Sums], names: Sequence[str], *, seed: int = 2025) -> Attribution:
    """The shares of all groups together, pooled by their sums of squares. All NaN without any spread."""
    num_clusters = max((len(group.gram) for group in groups), default=0)
    random = np.random.default_rng(seed)
    drawn = (
        random.multinomial(num_clusters, np.full(num_clusters, 1 / num_clusters), RESAMPLES)
        if num_clusters
        else np.zeros((0, 0))
    )
    weights = np.vstack([np.ones((1, num_clusters)), drawn])
    explained = {subset: np.zeros(len(weights)) for subset in _subsets(names)}
    spread = np.zeros(len(weights))
    for group in groups:
        padded = weights[:, : len(group.gram)]
        gram = np.tensordot(padded, group.gram, axes=1)
        spread += _spread(gram)
        for subset, sums in explained.items():
            if subset:
                sums += _explained(gram, np.concatenate([group.columns[name] for name in subset]))
    if not len(groups) or spread[0] <= 0:
        nothing = dict.fromkeys(names, math.nan)
        return Attribution(nothing, nothing, nothing, nothing, math.nan, (names[0], names[-1]), math.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        fit = {subset: np.clip(sums / spread, 0, 1) for subset, sums in explained.items()}
    shares = {name: _shapley(fit, names, name) for name in names}
    unique = {
        name: float(fit[tuple(names)][0] - fit[tuple(n for n in names if n != name)][0]) for name in names
    }
    low, high = {}, {}
    for name, values in shares.items():
        resampled = values[1:][~np.isnan(values[1:])]
        has_edges = num_clusters > 2 and len(resampled)
        edges = np.percentile(resampled, [2.5, 97.5]) if has_edges else (math.nan, math.nan)
        low[name], high[name] = float(edges[0]), float(edges[1])
    largest = sorted(names, key=lambda name: -shares[name][0])[:2]
    pair = tuple(name for name in names if name in largest)
    shared = float(sum(fit[(name,)][0] for name in pair) - fit[pair][0])
    return Attribution(
        share={name: float(values[0]) for name, values in shares.items()},
        unique=unique,
        low=low,
        high=high,
        unexplained=float(1 - fit[tuple(names)][0]),
        pair=(pair[0], pair[-1]),
        shared=shared,
    )


@dataclass(frozen=True)
class Effect:
    """exp(beta) of log(value) on x within cells, with 95 % by clusters; cells: those in which x varies."""

    ratio: float
    low: float
    high: float
    cells: int
    num_cells: int


def effect_within(values: np.ndarray, x: np.ndarray, cells: np.ndarray, clusters: np.ndarray) -> Effect:
    """How many times larger values (n,) are at x = 1 than at x = 0, cells (n,) held fixed.

    log(value) = cell + beta x + e, fitted by demeaning within cells; its error is clustered (Liang and Zeger,
    1986). NaN where no cell holds different x.
    """
    num_cells = int(cells.max(initial=-1)) + 1
    count = np.maximum(np.bincount(cells, minlength=num_cells), 1)

    def demeaned(of: np.ndarray) -> np.ndarray:
        centred: np.ndarray = of - (np.bincount(cells, weights=of, minlength=num_cells) / count)[cells]
        return centred

    y, z = demeaned(np.log(np.maximum(values, 1e-9))), demeaned(np.asarray(x, dtype=float))
    moving = np.bincount(cells, weights=z * z, minlength=num_cells) > 1e-12
    total = float((z * z).sum())
    if total <= 1e-12:
        return Effect(math.nan, math.nan, math.nan, 0, num_cells)
    beta = float((z * y).sum()) / total
    scores = np.bincount(clusters, weights=z * (y - beta * z))
    scores = scores[np.bincount(clusters[moving[cells]], minlength=len(scores)) > 0]
    num = len(scores)
    if num < 2:
        return Effect(math.exp(beta), math.nan, math.nan, int(moving.sum()), num_cells)
    error = math.sqrt(num / (num - 1) * float((scores**2).sum())) / total
    return Effect(
        math.exp(beta),
        math.exp(beta - 1.96 * error),
        math.exp(beta + 1.96 * error),
        int(moving.sum()),
        num_cells,
    )


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [subset for size in range(len(names) + 1) for subset in itertools.combinations(names, size)]


def _shapley(fit: Mapping[tuple[str, ...], np.ndarray], names: Sequence[str], name: str) -> np.ndarray:
    """Mean over all orders of what `name` adds."""
    share = np.zeros(len(next(iter(fit.values()))))
    remaining = [factor for factor in names if factor != name]
    for size in range(len(names)):
        weight = math.factorial(size) * math.factorial(len(names) - size - 1) / math.factorial(len(names))
        for subset in itertools.combinations(remaining, size):
            extended = tuple(factor for factor in names if factor in (*subset, name))
            share += weight * (fit[extended] - fit[subset])
    return share


def _spread(gram: np.ndarray) -> np.ndarray:
    """Sum of squares of the value around its mean, per resample."""
    n = np.maximum(gram[:, 0, 0], 1)
    spread: np.ndarray = np.maximum(gram[:, -1, -1] - gram[:, 0, -1] ** 2 / n, 0)
    return spread


def _explained(gram: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Sum of squares that the columns explain beyond the mean, per resample."""
    if not len(columns):
        return np.zeros(len(gram))
    n = np.maximum(gram[:, 0, 0], 1)
    mean = gram[:, 0, columns]
    inner = gram[:, columns[:, None], columns] - mean[:, :, None] * mean[:, None, :] / n[:, None, None]
    cross = gram[:, columns, -1] - mean * gram[:, [0], -1] / n[:, None]
    solved = np.einsum("rij,rj->ri", np.linalg.pinv(inner, rcond=1e-9, hermitian=True), cross)
    explained: np.ndarray = np.maximum((solved * cross).sum(axis=1), 0)
    return explained
