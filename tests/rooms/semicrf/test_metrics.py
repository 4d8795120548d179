"""Metrics against their plain definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.rooms.semicrf import metrics

WORDS = st.lists(st.integers(0, 3), max_size=9)
PLACES = st.lists(st.integers(0, 14), max_size=7, unique=True).map(sorted)


def plain_distance(a, b):
    """Levenshtein by its recursive definition."""
    if not a or not b:
        return len(a) + len(b)
    return min(
        plain_distance(a[:-1], b) + 1,
        plain_distance(a, b[:-1]) + 1,
        plain_distance(a[:-1], b[:-1]) + (a[-1] != b[-1]),
    )


@given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), max_size=5))
def test_edit_distance_is_that_of_the_definition(a, b):
    assert metrics.edit_distance(a, b) == plain_distance(a, b)


@given(WORDS, WORDS, WORDS)
def test_edit_distance_is_a_metric(a, b, c):
    d = metrics.edit_distance
    assert d(a, a) == 0 and d(a, b) == d(b, a) and d(a, c) <= d(a, b) + d(b, c)


def most_pairs(left, right, tolerance):
    """The largest one-to-one matching, by trying every order."""
    best = 0
    for chosen in itertools.permutations(right):
        best = max(best, sum(abs(a - b) <= tolerance for a, b in zip(left, chosen, strict=False)))
    for chosen in itertools.permutations(left):
        best = max(best, sum(abs(a - b) <= tolerance for a, b in zip(chosen, right, strict=False)))
    return best


@given(PLACES.map(lambda p: p[:5]), PLACES.map(lambda p: p[:5]), st.integers(0, 3))
def test_two_pointers_find_the_most_pairs(left, right, tolerance):
    assert metrics.matched(left, right, tolerance) == most_pairs(left, right, tolerance)


def test_one_boundary_cannot_serve_two():
    assert metrics.matched([10, 12], [11], 2) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_segments_of_labels_tile_them(labels):
    found = metrics.segments_of(labels)
    assert [label for start, end, label in found for _ in range(start, end)] == labels
    assert all(a[2] != b[2] for a, b in itertools.pairwise(found))


def test_a_perfect_prediction_scores_perfectly_and_an_empty_one_not_at_all():
    truth = [[(0, 3, 0), (3, 5, 1), (5, 9, 0)]]
    found = metrics.score(truth, truth, ["a", "b"], 8)
    assert found["phone_error_rate"] == 0 and found["boundary_f1"] == found["segment_f1"] == 1
    assert found["duration_kl"] == 0
    none = metrics.score(truth, [[(0, 9, 0)]], ["a", "b"], 8)
    assert none["phone_error_rate"] == pytest.approx(2 / 3) and none["boundary_f1"] == none["segment_f1"] == 0


def test_a_shifted_boundary_counts_within_its_tolerance_only():
    truth, shifted = [[(0, 4, 0), (4, 9, 1)]], [[(0, 6, 0), (6, 9, 1)]]
    found = metrics.score(truth, shifted, ["a", "b"], 8)["boundary_f1_tolerances"]
    assert found == {"0": 0.0, "1": 0.0, "2": 1.0}


def test_a_phone_never_predicted_has_no_mean_duration():
    stats = metrics.duration_stats([[(0, 4, 0), (4, 9, 1)]], [[(0, 9, 0)]], ["a", "b"])
    assert stats["per_phone"]["b"]["pred_mean"] is None and stats["per_phone"]["b"]["mae"] is None
    assert stats["per_phone"]["a"]["mae"] == 5 and stats["overall"]["mean_absolute_error"] == 5


def test_duration_kl_is_that_of_the_smoothed_histograms():
    ref, got = [[(0, 2, 0), (2, 4, 0)]], [[(0, 1, 0), (1, 4, 0)]]
    p = np.array([0.5, 2.5, 0.5, 0.5]) / 4
    q = np.array([1.5, 0.5, 1.5, 0.5]) / 4
    assert metrics.duration_kl(ref, got, 3) == pytest.approx(float((p * np.log(p / q)).sum()))
    assert math.isfinite(metrics.duration_kl(ref, [[(0, 99, 0)]], 3))


def test_equal_neighbours_count_as_one_phone():
    assert metrics.collapsed([(0, 2, 1), (2, 4, 1), (4, 5, 0)]) == [1, 0]
    assert metrics.merged([(0, 2, 1), (2, 4, 1), (4, 5, 0)]) == [(0, 4, 1), (4, 5, 0)]
