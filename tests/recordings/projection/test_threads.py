"""Which phase of another thread an operation inherits."""

from __future__ import annotations

import pytest

from lab.recordings.projection import project
from tests.recordings.projection.figures import paths, rules
from tests.recordings.projection.made import call, kernel, made, named

LAUNCH = [call(1, 50, 60, tid=2)], [kernel(1)]


@pytest.mark.parametrize("turned", [False, True])
def test_of_phases_that_begin_together_the_shorter_one_is_inherited(turned):
    ranges = [named("forward", 0, 100), named("loss", 0, 80)]
    projection = project(made(ranges[::-1] if turned else ranges, *LAUNCH))
    assert paths(projection) == ["forward/loss"]


@pytest.mark.parametrize("name", ["forward", "step_0"])
def test_a_thread_in_a_phase_or_step_of_its_own_inherits_nothing_whichever_row_that_is(name):
    ranges = [named(name, 0, 100, tid=2), named("backward", 0, 100)]
    for rows in (ranges, ranges[::-1]):
        projection = project(made(rows, *LAUNCH))
        assert (rules(projection), paths(projection)) == (["same"], [name])


def test_a_range_without_a_name_is_neither_a_phase_nor_a_step():
    ranges = [named(None, 0, 100, tid=2), named("backward", 0, 100)]
    assert rules(project(made(ranges, *LAUNCH))) == ["cross"]
    elsewhere = project(made([named(None, 0, 100), named("a", 0, 1)], *LAUNCH))
    assert rules(elsewhere) == ["outside"]
    assert elsewhere.steps.tolist() == []
