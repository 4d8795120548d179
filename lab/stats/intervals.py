"""Half-open time spans as arrays: union, subtraction, intersection, overlap.

Spans are int64 arrays of shape (n, 2), columns start and end, any order unless said otherwise.
A union is a span array that is sorted, disjoint and free of empty spans. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

NO_SPANS = np.empty((0, 2), dtype=np.int64)


def spans(start: np.ndarray, dur: np.ndarray) -> np.ndarray:
    """Starts (n,) and durations (n,) as spans (n, 2)."""
    return np.stack([start, start + dur], axis=1).astype(np.int64)


def union(spans: np.ndarray) -> np.ndarray:
    """Merge (n, 2) spans that overlap or touch; empty and negative ones vanish. Returns a union (m, 2)."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if len(spans) == 0:
        return NO_SPANS
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    opens = np.flatnonzero(spans[1:, 0] > reach[:-1]) + 1
    first = np.concatenate([[0], opens])
    last = np.concatenate([opens - 1, [len(spans) - 1]])
    return np.stack([spans[first, 0], reach[last]], axis=1)


def total(spans: np.ndarray) -> int:
    """Length covered by (n, 2) spans, each instant counted once."""
    merged = union(spans)
    return int((merged[:, 1] - merged[:, 0]).sum())


def subtract(spans: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The union of what lies in `spans` and not in `other`."""
    return _select(union(spans), union(other), lambda here, there: here & ~there)


def intersect(spans: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The union of what lies in both."""
    return _select(union(spans), union(other), lambda here, there: here & there)


def overlap(queries: np.ndarray, cover: np.ndarray) -> np.ndarray:
    """Length (n,) of each query (n, 2) that `cover` covers, each instant counted once."""
    cover = union(cover)
    covered: np.ndarray = _covered_before(cover, queries[:, 1]) - _covered_before(cover, queries[:, 0])
    return covered


def _covered_before(cover: np.ndarray, at: np.ndarray) -> np.ndarray:
    if len(cover) == 0:
        return np.zeros(len(at), dtype=np.int64)
    lengths = cover[:, 1] - cover[:, 0]
    before = np.concatenate([[0], np.cumsum(lengths)])
    index = np.searchsorted(cover[:, 0], at, side="right") - 1
    inside = np.clip(at - cover[index, 0], 0, lengths[index])
    return np.where(index < 0, 0, before[index] + inside)


def _select(a: np.ndarray, b: np.ndarray, rule: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    edges = np.unique(np.concatenate([a.ravel(), b.ravel()]))
    keep = rule(_inside(a, edges[:-1]), _inside(b, edges[:-1]))
    return union(np.stack([edges[:-1][keep], edges[1:][keep]], axis=1))


def _inside(cover: np.ndarray, at: np.ndarray) -> np.ndarray:
    if len(cover) == 0:
        return np.zeros(len(at), dtype=bool)
    index = np.searchsorted(cover[:, 0], at, side="right") - 1
    inside: np.ndarray = (index >= 0) & (at < cover[index, 1])
    return inside
