"""Which row of B stands for which row of A. What cannot be paired for certain is listed, never forced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lab.workload.recorder.format import Row

NAMED = ("op", "module")  # rows whose module and op say what they are
# From the strictest on: the same op; then, across versions and vendors, the same place and shape.
KEYS: tuple[Callable[[Row], tuple[object, ...]], ...] = (
    lambda row: (row.step, row.kind, row.module, row.phase, row.op, row.out, row.shape),
    lambda row: (row.step, row.kind, row.module, row.phase, row.shape) if row.kind in NAMED else (),
)


def _in_order(row: Row) -> tuple[object, ...]:
    """What a row shares with its partner in a model whose modules have other names."""
    return (row.step, row.kind, row.phase, row.op if row.kind in NAMED else "", row.out, row.shape)


class Pairs(NamedTuple):
    """Row numbers of A and B, in A's order (n,), and those without a partner."""

    a: np.ndarray
    b: np.ndarray
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]


def pair(a: Sequence[Row], b: Sequence[Row]) -> Pairs:
    """Equal sequences pair by position, also where modules and weights alone have other names; otherwise the
    n-th of a key with the n-th, if both have as many."""
    for key_of in (KEYS[0], _in_order):
        if len(a) == len(b) and all(key_of(x) == key_of(y) for x, y in zip(a, b, strict=True)):
            order = np.arange(len(a))
            return Pairs(order, order, (), ())
    paired: list[tuple[int, int]] = []
    left_a, left_b = list(range(len(a))), list(range(len(b)))
    for key in KEYS:
        groups_a, groups_b = _groups(a, left_a, key), _groups(b, left_b, key)
        for name, rows in groups_a.items():
            if name and len(rows) == len(groups_b.get(name, ())):
                paired += zip(rows, groups_b[name], strict=True)
        paired_a, paired_b = {x for x, _ in paired}, {y for _, y in paired}
        left_a = [index for index in left_a if index not in paired_a]
        left_b = [index for index in left_b if index not in paired_b]
    paired.sort()
    numbers = np.array(paired, dtype=np.int64).reshape(-1, 2)
    return Pairs(numbers[:, 0], numbers[:, 1], tuple(left_a), tuple(left_b))


def _groups(
    rows: Sequence[Row], indices: list[int], key: Callable[[Row], tuple[object, ...]]
) -> dict[tuple[object, ...], list[int]]:
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index in indices:
        groups[key(rows[index])].append(index)
    return groups
