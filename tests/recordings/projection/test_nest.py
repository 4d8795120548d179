"""Trees of ranges, whatever the order of their rows."""

from __future__ import annotations

import numpy as np

from lab.recordings.projection.nest import RangeForest, nearest_ancestor
from tests.recordings.projection.made import made, named


def test_levels_count_the_ranges_around_whichever_row_comes_first():
    for first in range(9):
        depths = [first, *(depth for depth in range(9) if depth != first)]
        forest = RangeForest(made([named("a", depth, 100 - depth) for depth in depths]))
        assert (forest.level.tolist(), forest.level.dtype.kind) == (depths, "i")


def test_ranges_that_cross_inside_another_one_are_found():
    forest = RangeForest(made([named("outer", 0, 100), named("a", 10, 60), named("b", 40, 90)]))
    assert (forest.crossing, forest.loose.tolist()) == (1, [2])
    assert forest.parent.tolist() == [-1, 0, -1]


def test_crossing_ranges_of_all_threads_are_counted():
    rows = [named("a", 0, 50, tid=tid) for tid in (1, 2, 3)]
    rows += [named("b", 40, 90, tid=1), named("b", 40, 90, tid=2)]
    assert RangeForest(made(rows)).crossing == 2


def test_a_range_that_begins_when_the_one_before_ends_does_not_cross_it():
    forest = RangeForest(made([named("a", 0, 50), named("b", 50, 100), named("c", 99, 120)]))
    assert forest.loose.tolist() == [2]
    assert forest.level.tolist() == [0, 0, -1]


def test_the_climb_leaves_the_first_row_when_it_is_not_wanted():
    parent, start = np.array([2, 0, -1]), np.array([0, 1, 2, -1])
    assert nearest_ancestor(parent, start, np.array([False, False, True])).tolist() == [2, 2, 2, -1]
    assert nearest_ancestor(parent, start, np.array([True, False, False])).tolist() == [0, 0, -1, -1]
