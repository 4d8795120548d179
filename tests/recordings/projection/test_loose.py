"""Calls at the edges of ranges that stand in no path."""

from __future__ import annotations

import pytest

from lab.recordings.capture import START_END
from lab.recordings.projection import project
from tests.recordings.projection.made import call, kernel, made, named


@pytest.mark.parametrize(
    ("start", "end", "inside"),
    [
        (100, 200, True),
        (100, 150, True),
        (150, 200, True),
        (150, 150, True),
        (100, 100, True),
        (200, 200, True),
        (99, 150, False),
        (150, 201, False),
        (99, 99, False),
        (201, 201, False),
        (99, 201, False),
    ],
)
def test_a_loose_range_owns_calls_up_to_and_with_its_edges(start, end, inside):
    capture = made([named("load", 100, 200, kind=START_END)], [call(1, start, end)], [kernel(1)])
    projection = project(capture)
    assert projection.instances.num_ops.tolist() == [int(inside)]
    assert projection.loose.op.tolist() == projection.loose.range.tolist() == [0] * inside


CALLS = [call(1, 120, 130), call(2, 120, 130, tid=2), call(3, 120, 130, pid=2)]
OPS = [kernel(1), kernel(2), kernel(3, pid=2)]


@pytest.mark.parametrize(
    ("end_tid", "full", "nsys"), [(-1, [0], [0]), (1, [0], []), (2, [0, 1], []), (0, [0, 1], [])]
)
def test_the_thread_where_a_range_ends_decides_whose_calls_it_owns(end_tid, full, nsys):
    # nsys' own reports leave out every range of which the ending thread was recorded.
    capture = made([named("load", 100, 200, kind=START_END, end_tid=end_tid)], CALLS, OPS)
    assert sorted(project(capture).loose.op.tolist()) == full
    assert sorted(project(capture, "nsys").loose.op.tolist()) == nsys
