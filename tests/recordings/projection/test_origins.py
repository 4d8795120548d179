"""Which forward range a backward operation comes from."""

from __future__ import annotations

import pytest

from lab.recordings.capture import OP
from lab.recordings.projection import project
from tests.recordings.projection.made import call, kernel, made, named


def origins(*forward, back=200, seq=7, turned=False):
    """The origin of a kernel launched below a backward operator on thread 2; None for none."""
    ranges = [*forward, named("Backward0", back, back + 50, tid=2, seq=seq)]
    calls = [call(i, row["start_ns"], row["start_ns"], tid=row["tid"]) for i, row in enumerate(ranges)]
    if turned:
        ranges.reverse()
    projection = project(made(ranges, calls, [kernel(i) for i in range(len(ranges))]))
    origin = int(projection.ops.origin[-1])
    return None if origin == -1 else "/".join(projection.path(origin))


@pytest.mark.parametrize("seq", [0, 1, 2**40])
def test_any_number_from_0_links_backward_to_forward(seq):
    forward = [named("block", 0, 90), named("aten::mm", 10, 20, seq=seq)]
    assert origins(*forward, seq=seq) == origins(*forward, seq=seq, turned=True) == "block"
    assert origins(*forward, seq=seq + 1) is None


@pytest.mark.parametrize(
    "around",
    [
        named("aten::linear", 5, 80),
        named("block", 5, 80, kind=OP),
        named(None, 5, 80),
    ],
)
def test_an_origin_is_a_range_that_the_program_named(around):
    mm = named("aten::mm", 10, 20, seq=7)
    assert origins(around, mm) is None
    assert origins(named("outer", 0, 90), around, mm) == "outer"


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
