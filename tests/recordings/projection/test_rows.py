"""Hand-made rows: trees, inherited phases, loose ranges, sums, paths, questions to a projection, origins."""

from __future__ import annotations

import numpy as np
import pytest

from lab.recordings.capture import MEMCPY, OP, START_END
from lab.recordings.projection import RULES, project
from tests.recordings.projection.made import call, kernel, made, named, paths, rules

LAUNCH = [call(1, 50, 60, tid=2)], [kernel(1)]


@pytest.mark.parametrize("turned", [False, True])
def test_of_phases_that_begin_together_the_shorter_one_is_inherited(turned):
    ranges = [named("forward", 0, 100), named("loss", 0, 80)]
    projection = project(made(ranges[::-1] if turned else ranges, *LAUNCH))
    assert paths(projection) == ["forward/loss"]


def test_a_range_without_a_name_is_neither_a_phase_nor_a_step():
    ranges = [named(None, 0, 100, tid=2), named("backward", 0, 100)]
    assert rules(project(made(ranges, *LAUNCH))) == ["cross"]
    elsewhere = project(made([named(None, 0, 100), named("a", 0, 1)], *LAUNCH))
    assert rules(elsewhere) == ["outside"]
    assert elsewhere.steps.tolist() == []


@pytest.mark.parametrize(
    ("start", "end", "inside"),
    [
        (100, 200, True),
        (100, 100, True),
        (200, 200, True),
        (99, 150, False),
        (150, 201, False),
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


def test_a_copy_is_an_operation_and_no_kernel():
    capture = made(
        [named("outer", 0, 100), named("inner", 10, 50), named("idle", 60, 70)],
        [call(1, 20, 30), call(2, 80, 90)],
        [kernel(1, 300, 307, kind=MEMCPY), kernel(2, 200, 220)],
    )
    projection = project(capture)
    expected = {
        "num_ops": [2, 1, 0],
        "num_kernels": [1, 0, 0],
        "op_ns": [27, 7, 0],
        "kernel_ns": [20, 0, 0],
        "first_ns": [200, 300, -1],
        "last_ns": [307, 307, -1],
    }
    for name, column in expected.items():
        found = getattr(projection.instances, name)
        assert (found.tolist(), found.dtype) == (column, np.int64), name
    same = RULES.index("same")
    assert {name: int(column[same]) for name, column in projection.coverage.as_dict().items()} == {
        "num_ops": 2,
        "num_kernels": 1,
        "op_ns": 27,
        "kernel_ns": 20,
    }


def test_the_tree_has_a_row_per_path_with_operations_and_its_depth():
    capture = made(
        [
            named("step", 0, 100),
            named("forward", 10, 50),
            named("idle", 20, 30),
            named("step", 200, 300),
            named("forward", 210, 250),
        ],
        [call(1, 35, 40), call(2, 240, 245), call(3, 260, 270), call(4, 400, 410)],
        [kernel(1, 0, 7), kernel(2, 10, 30), kernel(3, 40, 45, kind=MEMCPY), kernel(4, 50, 51)],
    )
    projection = project(capture)
    tree = projection.tree
    assert [projection.path(i) for i in range(len(tree))] == [(), ("step",), ("step", "forward")]
    expected = {
        "parent": [-1, 0, 1],
        "name_id": [-1, capture.strings.index("step"), capture.strings.index("forward")],
        "depth": [0, 1, 2],
        "self_ops": [1, 1, 2],
        "self_kernels": [1, 0, 2],
        "self_op_ns": [1, 5, 27],
        "self_kernel_ns": [1, 0, 27],
        "num_ops": [4, 3, 2],
        "num_kernels": [3, 2, 2],
        "op_ns": [33, 32, 27],
        "kernel_ns": [28, 27, 27],
    }
    assert {name: column.tolist() for name, column in tree.as_dict().items()} == expected
    assert {name: column.dtype for name, column in tree.as_dict().items()} == {
        name: np.int32 if name == "name_id" else np.int64 for name in expected
    }
    assert projection.instances.path.tolist() == [1, 2, -1, 1, 2]


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
