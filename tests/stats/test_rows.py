"""Distinct rows are those of np.unique, whatever the columns hold."""

from __future__ import annotations

import numpy as np
import pytest

from lab.stats.columns import distinct, distinct_rows

HUGE = 2**62


@pytest.mark.parametrize("seed", range(40))
def test_rows_and_their_numbers_are_those_of_numpy(seed):
    draw = np.random.default_rng(seed)
    spans = draw.choice([1, 2, 7, 1000, 2**31 + 5, HUGE], size=draw.integers(1, 7))
    columns = [draw.integers(-span, span, draw.integers(1, 30))[:, None] for span in spans]
    rows = int(draw.integers(1, 400))
    keys = np.concatenate([column[draw.integers(0, len(column), rows)] for column in columns], axis=1)
    distinct, which = distinct_rows(keys)
    expected, numbers = np.unique(keys, axis=0, return_inverse=True)
    assert distinct.tolist() == expected.tolist() and which.tolist() == numbers.reshape(-1).tolist()


@pytest.mark.parametrize("values", [[], [3], [3, 3, 3], [2, -1, 2, HUGE, -HUGE], [[4, 1], [1, 4]]])
def test_distinct_values_are_those_of_numpy(values):
    given = np.array(values, dtype=np.int64)
    found, expected = distinct(given), np.unique(given)
    assert found.dtype == expected.dtype and found.tolist() == expected.tolist()


def test_extremes_of_int64_do_not_wrap():
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    keys = np.array([[high, 1], [low, 2], [0, 3], [low, 2], [high, 0]])
    distinct, which = distinct_rows(keys)
    assert distinct.tolist() == [[low, 2], [0, 3], [high, 0], [high, 1]] and which.tolist() == [3, 0, 1, 0, 2]


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint8, bool])
def test_small_kinds_keep_their_kind(kind):
    keys = np.array([[1, 0], [0, 1], [1, 0]], dtype=kind)
    distinct, which = distinct_rows(keys)
    assert distinct.dtype == kind and distinct.tolist() == [[0, 1], [1, 0]] and which.tolist() == [1, 0, 1]


def test_the_whole_range_of_a_small_kind_does_not_wrap():
    keys = np.array([[127], [-128], [0]], dtype=np.int8)
    assert distinct_rows(keys)[1].tolist() == [2, 0, 1]


def test_no_rows_are_no_rows():
    distinct, which = distinct_rows(np.empty((0, 3), dtype=np.int64))
    assert distinct.shape == (0, 3) and which.shape == (0,)
