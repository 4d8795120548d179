"""Questions to a projection: owners, the nearest wanted range, measured steps."""

from __future__ import annotations

import numpy as np

from lab.recordings.projection import project
from tests.recordings.projection.made import call, kernel, made, named

NESTED = made(
    [named("step_0", 0, 100), named("forward", 10, 50), named("block", 20, 40)],
    [call(1, 25, 30), call(2, 45, 48), call(3, 60, 70), call(4, 200, 210)],
    [kernel(corr) for corr in (1, 2, 3, 4)],
)


def test_an_owner_is_the_innermost_asked_range_even_in_the_first_row():
    projection = project(NESTED)
    assert projection.owners(np.array([0])).tolist() == [0, 0, 0, -1]
    assert projection.owners(np.array([2, 0])).tolist() == [0, 1, 1, -1]
    assert projection.owners(np.array([], dtype=int)).tolist() == [-1] * 4


def test_the_nearest_range_is_the_innermost_wanted_one_on_the_own_thread():
    projection = project(NESTED)
    assert projection.nearest(np.array([True, False, False])).tolist() == [0, 0, 0, -1]
    assert projection.nearest(np.array([True, True, False])).tolist() == [1, 1, 0, -1]
    assert projection.nearest(np.array([False, False, True])).tolist() == [2, -1, -1, -1]


def test_steps_far_below_a_warm_up_or_a_step_are_not_measured():
    ranges = [
        named("warmup", 0, 100),
        named("block", 10, 90),
        named("block", 20, 80),
        named("step_0", 30, 70),
        named("step_1", 200, 300),
        named("block", 210, 290),
        named("iter_1", 220, 280),
        named(None, 400, 500),
        named("step_2", 410, 490),
    ]
    assert project(made(ranges)).steps.tolist() == [4, 8]


def test_steps_that_begin_together_keep_the_order_of_their_rows():
    start = np.random.default_rng(1).integers(0, 3, 200)
    ranges = [named(f"step_{i}", int(at), int(at) + 5, tid=i) for i, at in enumerate(start)]
    assert project(made(ranges)).steps.tolist() == sorted(range(200), key=lambda row: (start[row], row))
