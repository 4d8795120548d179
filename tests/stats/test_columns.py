"""Columns, groups and distinct rows against pandas and numpy, which make them the same way."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lab.stats.columns import (
    column,
    columns_of_rows,
    distinct,
    distinct_rows,
    grouped_rows,
    in_order_of_appearance,
    objects,
)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, -3], "i"),
        ([2**63 - 1, -(2**63)], "i"),
        ([2**63, 1], "O"),
        ([1, 2.5], "f"),
        ([1, None], "f"),
        ([np.float32(0.5), 1], "f"),
        ([None, None], "O"),
        ([], "O"),
        ([True, False], "b"),
        ([True, 1], "O"),
        ([True, None], "O"),
        (["a", None], "O"),
        ([[1, 2], [3]], "O"),
        ([(1, 2), (3, 4)], "O"),
    ],
)
def test_a_list_becomes_the_column_that_pandas_makes_of_it(values, kind):
    found = column(values)
    assert found.shape == (len(values),) and found.dtype.kind == kind
    if kind != "O":
        np.testing.assert_array_equal(found, pd.Series(values).to_numpy())
    else:
        assert found.tolist() == values


def test_texts_of_numpy_become_objects_and_other_arrays_stay():
    assert column(np.array(["a", "bc"])).tolist() == ["a", "bc"] and column(np.array(["a"])).dtype == object
    narrow = np.array([1, 2], dtype=np.int32)
    assert column(narrow) is narrow


def test_what_a_row_does_not_have_is_missing():
    found = columns_of_rows([{"n": 1, "name": "a"}, {"name": "b"}], ["name", "n", "never"])
    assert list(found) == ["name", "n", "never"] and found["never"].tolist() == [None, None]
    assert found["n"][0] == 1 and np.isnan(found["n"][1])


@pytest.mark.parametrize("n", [0, 1, 500])
def test_groups_are_those_of_pandas_in_both_orders(n):
    random = np.random.default_rng(n)
    columns = {
        "name": objects([["b", "", "aten::mm", "\u00e9"][at] for at in random.integers(0, 4, n)]),
        "size": random.choice([-(2**62), 0, 7, 2**62], n),
        "bias": random.integers(0, 2, n).astype(bool),
    }
    frame = pd.DataFrame(columns)
    first, group = grouped_rows(list(columns.values()))
    assert group.tolist() == frame.groupby(list(columns), sort=True).ngroup().tolist()
    assert first.tolist() == [int(np.flatnonzero(group == one)[0]) for one in range(len(first))]
    first, group = in_order_of_appearance(first, group)
    assert group.tolist() == frame.groupby(list(columns), sort=False).ngroup().tolist()
    assert sorted(first.tolist()) == first.tolist()


def test_rows_are_grouped_by_fractions_too():
    first, group = grouped_rows([np.array([1.7, 1.5, 1.7])])
    assert first.tolist() == [1, 0] and group.tolist() == [1, 0, 1]


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
