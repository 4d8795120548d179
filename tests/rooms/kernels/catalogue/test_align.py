"""Recorded calls onto a trace's ops: a longest common subsequence, beside its plain twin; forwards apart."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.recordings.capture import RANGE_COLUMNS
from lab.recordings.tables import Table
from lab.rooms.kernels.catalogue.align import (
    align,
    common,
    in_order,
    segments_of_ops,
    segments_of_records,
    working_ops,
)
from lab.rooms.kernels.schema import RecordedOp

WORDS = st.lists(st.sampled_from("abcd"), max_size=12)


def length_of(a: list[str], b: list[str]) -> int:
    """The length of a longest common subsequence, by its definition."""

    @cache
    def best(i: int, j: int) -> int:
        if i == len(a) or j == len(b):
            return 0
        return max(best(i + 1, j), best(i, j + 1), best(i + 1, j + 1) + 1 if a[i] == b[j] else 0)

    return best(0, 0)


@given(WORDS, WORDS)
def test_the_common_subsequence_is_one_and_as_long_as_the_plain_one(a, b):
    mine, theirs = common(a, b)
    assert [a[i] for i in mine] == [b[j] for j in theirs]
    assert (np.diff(mine) > 0).all() and (np.diff(theirs) > 0).all()
    assert len(mine) == length_of(a, b)


def ops_of(rows: list[tuple[str, int, int]], with_ids: bool = True) -> tuple[Table, np.ndarray]:
    """Ops (name, start, duration) of one thread, ids in the order given."""
    columns = {name: np.full(len(rows), -1, dtype=kind) for name, kind in RANGE_COLUMNS.items()}
    columns["start_ns"] = np.array([start for _, start, _ in rows], dtype=np.int64)
    columns["end_ns"] = np.array([start + dur for _, start, dur in rows], dtype=np.int64)
    if with_ids:
        columns["external_id"] = np.arange(len(rows), dtype=np.int64)
    columns["pid"] = columns["tid"] = np.ones(len(rows), dtype=np.int64)
    return Table(columns), np.array([name for name, _, _ in rows], dtype=object)


def calls(*names: str, forward: int = -1) -> list[RecordedOp]:
    return [RecordedOp(index=at, name=name, forward=forward) for at, name in enumerate(names)]


NO_MARKS = np.empty((0, 2), dtype=np.int64)


def test_composites_are_decomposed_and_calls_inside_an_op_are_skipped():
    ops, names = ops_of(
        [("linear", 0, 100), ("t", 1, 5), ("addmm", 10, 80), ("copy_", 20, 10), ("copy_", 200, 10)]
    )
    found = align(ops, names, NO_MARKS, calls("t", "addmm", "copy_"))
    assert found.tolist() == [-1, 0, 1, -1, 2], "the copy of addmm's bias is not the recorded copy"


def test_an_op_on_a_dtensor_leaves_its_place_to_the_local_ops_inside():
    ops, names = ops_of([("addmm", 0, 100), ("PythonSubclass", 10, 80), ("div", 20, 5), ("addmm", 30, 50)])
    assert align(ops, names, NO_MARKS, calls("div", "addmm")).tolist() == [-1, -1, 0, 1]


def test_an_overload_that_calls_another_of_its_name_hides_nothing():
    ops, names = ops_of([("where", 0, 100), ("scalar_tensor", 10, 10), ("where", 30, 50)])
    found = align(ops, names, NO_MARKS, calls("scalar_tensor", "where"))
    assert found[1] == 0 and found[2] == 1


def test_neighbours_of_one_whole_microsecond_are_not_taken_for_nested():
    ops, names = ops_of([("aten::view", 10, 0), ("aten::mul", 10, 0), ("aten::add", 10, 0)])
    assert align(ops, names, NO_MARKS, calls("aten::view", "aten::mul", "aten::add")).tolist() == [0, 1, 2]


def test_a_neighbour_that_begins_in_the_microsecond_in_which_one_ends_is_not_hidden_in_it():
    """Three reads of a number, as torch 1.12 recorded them: the last begins where the second ends."""
    rows = [
        ("item", 38, 0),
        ("dense", 38, 0),
        ("item", 39, 1),
        ("dense", 39, 1),
        ("item", 40, 0),
        ("dense", 40, 0),
    ]
    ops, names = ops_of(rows)
    assert align(ops, names, NO_MARKS, calls("dense", "dense", "dense")).tolist() == [-1, 0, -1, 1, -1, 2]
    # Nor in what is inside the one that ends.
    ops, names = ops_of([("to", 10, 2), ("copy", 11, 1), ("mul", 12, 0), ("add", 13, 1)])
    assert align(ops, names, NO_MARKS, calls("to", "mul", "add")).tolist() == [0, -1, 1, 2]


def test_a_short_op_before_a_longer_one_of_the_same_microsecond_is_not_taken_for_its_inside():
    rows = [("item", 20, 0), ("dense", 20, 0), ("item", 20, 1), ("dense", 20, 1)]
    ops, names = ops_of(rows)
    assert in_order(ops)[1].tolist() == [-1, 0, -1, 2]
    assert align(ops, names, NO_MARKS, calls("dense", "dense")).tolist() == [-1, 0, -1, 1]


def test_without_ids_the_longer_op_of_one_start_is_around_the_other():
    ops, _ = ops_of([("inner", 20, 1), ("outer", 20, 5)], with_ids=False)
    assert in_order(ops)[1].tolist() == [1, -1]


def test_a_difference_in_one_forward_does_not_spoil_the_next():
    ops, names = ops_of([("mm", 0, 5), ("add", 10, 5), ("mm", 100, 5), ("add", 110, 5)])
    marks = np.array([[0, 50], [100, 150]])
    recorded = [*calls("tanh", "add", forward=0), *calls("mm", "add", forward=1)]
    assert align(ops, names, marks, recorded).tolist() == [-1, 1, 2, 3]


def test_gaps_between_forwards_have_numbers_of_their_own():
    marks = np.array([[10, 20], [30, 40]])
    assert segments_of_ops(np.array([5, 10, 19, 20, 29, 35, 40]), marks).tolist() == [0, 1, 1, 2, 2, 3, 4]
    recorded = [op for forward in (-1, 0, -1, 1, -1) for op in calls("a", forward=forward)]
    assert segments_of_records(recorded) == [0, 1, 2, 3, 4]


NAMES = "aten::linear aten::t aten::addmm aten::copy_ aten::to aten::_to_copy aten::copy_ aten::view"


def test_on_a_cpu_ops_that_own_work_stand_in_for_launches():
    names = np.array(NAMES.split(), dtype=object)
    parent = np.array([-1, 0, 0, 2, -1, 4, 5, -1])
    rows = working_ops(names, parent, np.arange(8))
    assert names[rows].tolist() == ["aten::addmm", "aten::copy_"] and rows.tolist() == [2, 6]
