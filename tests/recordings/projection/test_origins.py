"""Which forward range a backward operation comes from."""

from __future__ import annotations

import pytest

from lab.recordings.projection import project
from tests.recordings.projection.made import call, kernel, made, named


def origins(*forward, back=200, inner=None):
    """The origin of one kernel launched below a backward operator with number 7 on thread 2."""
    ranges = [named("Backward0", back, back + 50, tid=2, seq=7), *forward]
    calls = [call(1, back + 10, back + 20, tid=2)]
    calls += [call(2 + i, row["start_ns"], row["start_ns"], tid=row["tid"]) for i, row in enumerate(forward)]
    ops = [kernel(1), *(kernel(2 + i) for i in range(len(forward)))]
    projection = project(made(ranges, calls, ops))
    origin = int(projection.ops.origin[0])
    return "/".join(projection.path(origin)) if origin >= 0 else None


@pytest.mark.parametrize(("start", "origin"), [(199, "block"), (200, "block"), (201, None)])
def test_a_forward_operator_begins_no_later_than_the_backward_one(start, origin):
    block = named("block", start - 5, start + 80)
    assert origins(block, named("aten::mm", start, start + 8, seq=7)) == origin


def test_with_forward_operators_on_two_threads_no_origin_is_named():
    forward = [
        row
        for tid in (1, 3)
        for row in (named("block", 0, 90, tid=tid), named("aten::mm", 10, 20, tid=tid, seq=7))
    ]
    assert origins(*forward[:2]) == "block"
    assert origins(*forward) is None


def test_an_operator_without_kernels_below_it_needs_no_origin():
    capture = made(
        [named("aten::empty", 0, 10, seq=3), named("block", 20, 40)], [call(1, 25, 30)], [kernel(1)]
    )
    assert project(capture).ops.origin.tolist() == [-1]
