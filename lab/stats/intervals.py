"""Half-open time spans as arrays: union, subtraction, intersection, overlap, pairs, nesting.

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


def load(queries: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Length (n,) of `spans` (m, 2) inside each query (n, 2), overlapping spans counted separately."""
    starts, ends = np.sort(spans[:, 0]), np.sort(spans[:, 1])
    loaded: np.ndarray = _elapsed(starts, queries) - _elapsed(ends, queries)
    return loaded


def meetings(queries: np.ndarray, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of a query (n, 2) and a span (m, 2) that share time: indices (k,) and (k,), by query.

    Cost is linear in the pairs plus the spans that lie below a longer one which reaches the query.
    """
    order = np.argsort(spans[:, 0], kind="stable")
    reach = np.maximum.accumulate(spans[order, 1])
    first = np.searchsorted(reach, queries[:, 0], side="right")
    count = np.maximum(np.searchsorted(spans[order, 0], queries[:, 1], side="left") - first, 0)
    query = np.repeat(np.arange(len(queries)), count)
    index = np.arange(len(query)) - np.repeat(np.cumsum(count) - count, count) + first[query]
    span = order[index]
    shared = np.minimum(queries[query, 1], spans[span, 1]) > np.maximum(queries[query, 0], spans[span, 0])
    return query[shared], span[shared]


def totals(spans: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """Length (num_groups,) covered by the spans (n, 2) of each group 0..num_groups-1, each instant once."""
    order = np.lexsort((spans[:, 0], group))
    start, end, group = spans[order, 0], spans[order, 1], group[order]
    # The running maximum must not leak into the next group: ends are compared by rank, groups come first.
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(len(end), dtype=np.int64)
    rank[by_end] = np.arange(len(end))
    furthest = np.maximum.accumulate(group.astype(np.int64) * (len(end) + 1) + rank)
    reach = end[by_end[furthest % (len(end) + 1)]]
    before = np.full(len(end), np.iinfo(np.int64).min)
    same = group[1:] == group[:-1]
    before[1:][same] = reach[:-1][same]
    gained = np.maximum(end - np.maximum(start, before), 0)
    covered = np.zeros(num_groups, dtype=np.int64)
    np.add.at(covered, group, gained)
    return covered


def enclosing(spans: np.ndarray) -> np.ndarray:
    """For spans (n, 2) by start, longest first: the nearest earlier one that ends no sooner (n,), or -1.

    For properly nested spans this is the parent. Candidates jump together, so the cost is n log n.
    """
    ends = np.append(
        spans[:, 1], np.iinfo(np.int64).max
    )  # index -1 is the last one: a parent that never ends
    parent = np.arange(len(spans) + 1) - 1
    parent[-1] = -1
    todo = np.arange(len(spans))
    while len(todo := todo[ends[parent[todo]] < ends[todo]]):
        parent[todo] = parent[parent[todo]]
    return parent[:-1]


def _elapsed(since: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Sum over `since` (m,), sorted, of the time from it that lies in each query (n, 2)."""
    summed = np.concatenate([[0], np.cumsum(since - since[0])]) if len(since) else np.zeros(1, dtype=np.int64)
    origin = since[0] if len(since) else 0

    def until(at: np.ndarray) -> np.ndarray:
        count = np.searchsorted(since, at, side="left")
        result: np.ndarray = count * (at - origin) - summed[count]
        return result

    elapsed: np.ndarray = until(queries[:, 1]) - until(queries[:, 0])
    return elapsed


def _covered_before(cover: np.ndarray, at: np.ndarray) -> np.ndarray:
    if len(cover) == 0:
        return np.zeros(len(at), dtype=np.int64)
    lengths = cover[:, 1] - cover[:, 0]
    before = np.concatenate([[0], np.cumsum(lengths)])
    index = np.searchsorted(cover[:, 0], at, side="right") - 1
    inside = np.clip(at - cover[index, 0], 0, lengths[index])
    return np.where(index < 0, 0, before[index] + inside)


def _select(a: np.ndarray, b: np.ndarray, rule: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    # Edges may repeat: what lies between two equal ones is empty, and `union` drops it.
    edges = np.sort(np.concatenate([a.ravel(), b.ravel()]))
    keep = rule(_inside(a, edges[:-1]), _inside(b, edges[:-1]))
    return union(np.stack([edges[:-1][keep], edges[1:][keep]], axis=1))


def _inside(cover: np.ndarray, at: np.ndarray) -> np.ndarray:
    if len(cover) == 0:
        return np.zeros(len(at), dtype=bool)
    index = np.searchsorted(cover[:, 0], at, side="right") - 1
    inside: np.ndarray = (index >= 0) & (at < cover[index, 1])
    return inside
