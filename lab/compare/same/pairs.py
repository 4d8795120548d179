"""Which row of B stands for which row of A, and how far apart they are: relative, and by an op's own error.

What cannot be paired for certain is listed, never forced.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import zip_longest
from statistics import median
from typing import NamedTuple

from lab.compare.same.places import Key
from lab.workload.recorder.format import Row

EPS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
FLOATS = tuple(EPS)
LEAST = 6e-8  # half an ulp of float32, the least that a floor can be
NAMED = ("op", "module")  # rows whose module and op say what they are
# From the strictest on: the same op; then, across versions and vendors, the same place and shape.
KEYS: tuple[Callable[[Row], Key], ...] = (
    lambda row: (row.step, row.kind, row.module, row.phase, row.op, row.out, row.shape),
    lambda row: (row.step, row.kind, row.module, row.phase, row.shape) if row.kind in NAMED else (),
)


def _in_order(row: Row) -> Key:
    """What a row shares with its partner in a model whose modules have other names."""
    return (row.step, row.kind, row.phase, row.op if row.kind in NAMED else "", row.out, row.shape)


class Pairs(NamedTuple):
    """Row numbers of A and B, in A's order, and those without a partner."""

    matched: list[tuple[int, int]]
    only_a: list[int]
    only_b: list[int]


def pair(a: Sequence[Row], b: Sequence[Row]) -> Pairs:
    """Equal sequences pair by position, also where modules and weights alone have other names; otherwise the
    n-th of a key with the n-th, if both have as many."""
    for key_of in (KEYS[0], _in_order):
        if len(a) == len(b) and all(key_of(x) == key_of(y) for x, y in zip(a, b, strict=True)):
            return Pairs([(index, index) for index in range(len(a))], [], [])
    partners: dict[int, int] = {}
    left_a, left_b = list(range(len(a))), list(range(len(b)))
    for key_of in KEYS:
        groups_a, groups_b = _groups(a, left_a, key_of), _groups(b, left_b, key_of)
        for key, rows in groups_a.items():
            if key and len(rows) == len(groups_b.get(key, ())):
                partners.update(zip(rows, groups_b[key], strict=True))
        left_a = [index for index in left_a if index not in partners]
        left_b = sorted({*left_b} - {*partners.values()})
    return Pairs(sorted(partners.items()), left_a, left_b)


def _groups(rows: Sequence[Row], indices: list[int], key_of: Callable[[Row], Key]) -> dict[Key, list[int]]:
    groups: dict[Key, list[int]] = defaultdict(list)
    for index in indices:
        groups[key_of(rows[index])].append(index)
    return groups


def relative(a: Sequence[float | None], b: Sequence[float | None]) -> float:
    """L2 of the difference over L2 of a; None (not finite) in both is equal, in one infinite."""
    if len(a) != len(b) or None in a or None in b:
        if [x is None for x in a] != [y is None for y in b]:
            return math.inf
        a, b = floats(a), floats(b)
    return _over(math.dist(a, b), math.hypot(*a))  # type: ignore[arg-type]


def moved(a: Row, b: Row) -> float:
    """The L2 norm of b - a over that of a, over all elements: the RMS of the changes of k sums under random
    signs estimates it, whatever elements changed. NaN where not both have such sums, or a norm is not finite.
    """
    if a.l2 is None or b.l2 is None or not a.signed or len(a.signed) != len(b.signed):
        return math.nan
    if None in a.signed or None in b.signed:
        return math.nan
    return _over(math.dist(a.signed, b.signed) / math.sqrt(len(a.signed)), a.l2)  # type: ignore[arg-type]


def floats(values: Sequence[float | None], fallback: float = 0.0) -> list[float]:
    """Numbers, with `fallback` for those that are not finite."""
    return [fallback if value is None else value for value in values]


def _over(part: float, total: float) -> float:
    """part / whole; 0 / 0 is 0, and something over 0 infinite."""
    return part / total if total else math.inf if part else 0.0


def own_ratios(rows: Sequence[Row], peers: Sequence[Row], partners: Sequence[Row] = ()) -> list[float]:
    """Each row's own error over the median own error of `peers` with the same op and output; 0 without one.

    An op that `peers` lack is compared with the rows themselves. Where the `partner` of a row is as far off,
    its inputs cancel, and neither run is at fault.
    """
    errors: dict[Key, list[float]] = {}
    for side in (rows, peers):
        of_side: dict[Key, list[float]] = defaultdict(list)
        for row in side:
            if row.local_rel is not None:
                of_side[row.op, row.out].append(row.local_rel)
        errors.update(of_side)
    typical = {key: median(values) for key, values in errors.items()}
    ratios = []
    for row, partner in zip_longest(rows, partners):
        beside = (partner.local_rel or 0.0) if partner else 0.0
        floor = max(typical.get((row.op, row.out), 0.0), beside, EPS.get(row.dtype, LEAST))
        ratios.append((row.local_rel or 0.0) / floor)
    return ratios
