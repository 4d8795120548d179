"""Each fast interval function against its plain O(n^2) twin, instant by instant."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.stats import intervals

TIME = st.integers(0, 60)
SPANS = st.lists(st.tuples(TIME, TIME), max_size=12).map(
    lambda rows: np.array(rows, dtype=np.int64).reshape(-1, 2)
)


def plain_instants(spans: np.ndarray) -> set[int]:
    return {t for start, end in spans.tolist() for t in range(start, end)}


def plain_spans(instants: set[int]) -> list[list[int]]:
    starts = sorted(t for t in instants if t - 1 not in instants)
    ends = sorted(t + 1 for t in instants if t + 1 not in instants)
    return [list(span) for span in zip(starts, ends, strict=True)]


@given(SPANS)
def test_a_union_covers_the_same_instants_in_the_fewest_spans(spans):
    assert intervals.union(spans).tolist() == plain_spans(plain_instants(spans))


@given(SPANS)
def test_a_total_counts_each_instant_once(spans):
    assert intervals.total(spans) == len(plain_instants(spans))


@given(SPANS, SPANS)
def test_subtracting_leaves_the_instants_of_one_only(a, b):
    assert intervals.subtract(a, b).tolist() == plain_spans(plain_instants(a) - plain_instants(b))


@given(SPANS, SPANS)
def test_intersecting_leaves_the_instants_of_both(a, b):
    assert intervals.intersect(a, b).tolist() == plain_spans(plain_instants(a) & plain_instants(b))


@given(SPANS, SPANS)
def test_overlap_is_the_covered_length_of_each_query(queries, cover):
    queries = np.sort(queries, axis=1)
    covered = plain_instants(cover)
    plain = [len(covered & set(range(start, end))) for start, end in queries.tolist()]
    assert intervals.overlap(queries, cover).tolist() == plain


def test_times_of_this_century_in_nanoseconds_stay_exact():
    start = np.array([1_790_857_026_000_000_001], dtype=np.int64)
    assert intervals.total(intervals.spans(start, np.array([1]))) == 1


def test_lengths_are_whole_nanoseconds_even_where_nothing_is_there():
    query = np.array([[3, 9]], dtype=np.int64)
    for lengths in (
        intervals.overlap(query, intervals.NO_SPANS),
        intervals.load(query, intervals.NO_SPANS),
        intervals.totals(query, np.array([0]), 2),
    ):
        assert lengths.dtype == np.int64


FORWARD = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=14).map(
    lambda rows: np.array([(a, a + d) for a, d in rows], dtype=np.int64).reshape(-1, 2)
)


@given(FORWARD, FORWARD)
def test_load_counts_every_span_for_itself(queries, spans):
    plain = [sum(max(0, min(b, d) - max(a, c)) for c, d in spans) for a, b in queries]
    assert intervals.load(queries, spans).tolist() == plain


@given(FORWARD, FORWARD)
def test_meetings_are_the_pairs_that_share_time(queries, spans):
    plain = [
        (i, j) for i, (a, b) in enumerate(queries) for j, (c, d) in enumerate(spans) if max(a, c) < min(b, d)
    ]
    assert (
        sorted(zip(*(found.tolist() for found in intervals.meetings(queries, spans)), strict=True)) == plain
    )


def test_spans_that_start_together_meet_a_query_in_their_order():
    start = np.random.default_rng(1).integers(0, 3, 300)
    _, met = intervals.meetings(np.array([[0, 10]]), np.stack([start, start + 5], axis=1))
    assert met.tolist() == sorted(range(300), key=lambda row: (start[row], row))


@given(FORWARD, st.data())
def test_totals_are_one_union_a_group(spans, data):
    group = np.array(
        data.draw(st.lists(st.integers(0, 3), min_size=len(spans), max_size=len(spans))), dtype=int
    )
    plain = [intervals.total(spans[group == g]) for g in range(4)]
    assert intervals.totals(spans, group, 4).tolist() == plain


@given(FORWARD)
def test_the_enclosing_span_is_the_nearest_earlier_one_that_ends_no_sooner(spans):
    spans = spans[np.lexsort((-spans[:, 1], spans[:, 0]))]
    plain = [max((j for j in range(i) if spans[j, 1] >= spans[i, 1]), default=-1) for i in range(len(spans))]
    assert intervals.enclosing(spans).tolist() == plain


def test_a_time_is_held_by_the_span_that_it_lies_in_and_its_end_is_outside():
    starts, ends = np.array([0, 10, 20]), np.array([5, 20, 30])
    times = np.array([-1, 0, 4, 5, 10, 19, 20, 30])
    assert intervals.holding(starts, ends, times).tolist() == [-1, 0, 0, -1, 1, 1, 2, -1]
    assert intervals.holding(starts[:0], ends[:0], times).tolist() == [-1] * 8
