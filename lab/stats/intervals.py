"""Half-open time spans as arrays: union, subtraction, intersection, overlap, pairs, nesting.

Spans are int64 arrays of shape (n, 2), columns start and end, any order unless said otherwise.
A union is a span array that is sorted, disjoint and free of empty spans. All functions are pure.
"""

from __future__ import annotations

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
    opening = np.concatenate([[0], opens])
    closing = np.concatenate([opens - 1, [len(spans) - 1]])
    return np.stack([spans[opening, 0], reach[closing]], axis=1)


def total(spans: np.ndarray) -> int:
    """Length covered by (n, 2) spans, each instant counted once."""
    merged = union(spans)
    return int((merged[:, 1] - merged[:, 0]).sum())


def subtract(spans: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Return the union of what lies in `spans` and not in `removed`."""
    limits = np.iinfo(np.int64)
    edges = np.concatenate([[limits.min], union(removed).ravel(), [limits.max]])
    return intersect(spans, edges.reshape(-1, 2))


def intersect(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the union of what lies in both."""
    left, right = union(left), union(right)
    i, j = meetings(left, right)
    starts, ends = np.maximum(left[i, 0], right[j, 0]), np.minimum(left[i, 1], right[j, 1])
    return union(np.stack([starts, ends], axis=1))


def overlap(queries: np.ndarray, cover: np.ndarray) -> np.ndarray:
    """Length (n,) of each query (n, 2) that `cover` covers, each instant counted once."""
    return load(queries, union(cover))


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
    candidate = np.searchsorted(reach, queries[:, 0], side="right")
    count = np.maximum(np.searchsorted(spans[order, 0], queries[:, 1], side="left") - candidate, 0)
    query = np.repeat(np.arange(len(queries)), count)
    index = np.arange(len(query)) - np.repeat(np.cumsum(count) - count, count) + candidate[query]
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
    covered_until = np.full(len(end), np.iinfo(np.int64).min)
    same = group[1:] == group[:-1]
    covered_until[1:][same] = reach[:-1][same]
    gained = np.maximum(end - np.maximum(start, covered_until), 0)
    covered = np.zeros(num_groups, dtype=np.int64)
    np.add.at(covered, group, gained)
    return covered


def enclosing(spans: np.ndarray) -> np.ndarray:
    """For spans (n, 2) by start, longest first: the nearest earlier one that ends no sooner (n,), or -1.

    For properly nested spans this is the parent. Candidates jump together, so the cost is n log n.
    """
    # Index -1 is the root, a parent that never ends.
    ends = np.append(spans[:, 1], np.iinfo(np.int64).max)
    parent = np.arange(len(spans) + 1) - 1
    parent[-1] = -1
    todo = np.arange(len(spans))
    while len(todo := todo[ends[parent[todo]] < ends[todo]]):
        parent[todo] = parent[parent[todo]]
    return parent[:-1]


def holding(starts: np.ndarray, ends: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Index (n,) of the span that each time lies in, -1 outside all; spans (m,) are disjoint and sorted."""
    index = np.searchsorted(starts, times, side="right") - 1
    # Index -1 is a span that ends before every time.
    return np.where(times < np.append(ends, np.iinfo(np.int64).min)[index], index, -1)


def _elapsed(edges: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Sum over the times `edges` (m,), sorted, of the time past each that lies in each query (n, 2)."""
    # Relative to the first edge: sums of unix times in ns overflow int64.
    origin = edges[0] if len(edges) else 0
    summed = np.concatenate([[0], np.cumsum(edges - origin)])

    def until(times: np.ndarray) -> np.ndarray:
        count = np.searchsorted(edges, times, side="left")
        elapsed: np.ndarray = count * (times - origin) - summed[count]
        return elapsed

    elapsed: np.ndarray = until(queries[:, 1]) - until(queries[:, 0])
    return elapsed
