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
