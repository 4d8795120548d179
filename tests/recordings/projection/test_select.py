"""A part of a projected recording."""

from __future__ import annotations

import numpy as np
import pytest

from lab.errors import MissingError
from lab.recordings.load import load_capture
from lab.recordings.projection import Wanted, first_ns, project, select
from tests.recordings.projection.made import call, kernel, made, named
from tests.recordings.sqlgen import START_END, Export, training_step


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Steps at 20,000 and 30,000; in each forward (2 kernels), backward (5, 4 by a worker), optimizer (1)."""
    path = training_step(Export()).write(tmp_path_factory.mktemp("select") / "a.sqlite")
    return project(load_capture(path))


def names(projection):
    return projection.capture.text(projection.capture.ops.name_id).tolist()


def test_nothing_asked_for_is_the_projection_itself(trained):
    assert select(trained, Wanted()) is trained


def test_a_range_owns_what_its_thread_and_the_worker_launched(trained):
    found = select(trained, Wanted(range="backward"))
    assert names(found) == (["fill"] + ["gemm_backward"] * 4) * 3, "warm-up's, too"
    assert len(found.steps) == 2
    assert found.part.api.sum() == 15
    labels = found.capture.text(found.capture.ranges.name_id)
    assert set(labels[found.part.ranges]) == {"backward"}


def test_a_step_is_all_of_its_phases_and_no_other_step(trained):
    found = select(trained, Wanted(steps=frozenset([1])))
    assert len(names(found)) == 8 and len(found.steps) == 1
    assert found.capture.ops.start_ns.min() >= 30_000
    every = found.tree.num_ops[0]
    assert every == 8 and found.instances.num_ops[found.steps[0]] == 8
    assert found.coverage.num_ops.sum() == 8


def test_sums_of_a_part_are_those_of_its_operations_alone(trained):
    found = select(trained, Wanted(steps=frozenset([0]), range="forward|optimizer_step"))
    assert names(found) == ["gemm_forward"] * 2 + ["adam"]
    ranges = found.capture.text(found.capture.ranges.name_id)
    assert found.instances.num_ops[ranges == "backward"].sum() == 0
    assert found.instances.kernel_ns[found.steps[0]] == 250
    rows = np.flatnonzero((ranges == "step_0") | (ranges == "forward"))
    assert set(found.instances.num_ops[rows].tolist()) == {0, 2, 3}, (
        "warm-up's and step 1's forward have none"
    )


def test_a_window_keeps_what_begins_in_it_and_steps_that_lie_in_it(trained):
    found = select(trained, Wanted(start_ns=20_000, end_ns=29_000))
    assert len(names(found)) == 8 and len(found.steps) == 1
    cut = select(trained, Wanted(start_ns=20_000, end_ns=27_000))
    assert len(names(cut)) == 7 and len(cut.steps) == 0, "a step that is cut is no step"
    late = select(trained, Wanted(start_ns=20_000))
    assert len(late.steps) == 2 and len(names(late)) == 16


def test_a_kernel_that_runs_after_the_window_of_its_call_is_not_in_it():
    capture = made([named("a", 0, 50)], [call(1, 10, 20)], [kernel(1, 500, 600)])
    projection = project(capture)
    assert len(select(projection, Wanted(end_ns=100)).capture.ops) == 0
    assert len(select(projection, Wanted(start_ns=500)).capture.ops) == 1
    kept = select(projection, Wanted(start_ns=500))
    assert kept.ops.api.tolist() == [0], "its call is still known"
    assert not kept.part.api.any(), "and not counted"


def test_a_start_end_range_owns_its_operations(tmp_path):
    export = Export()
    export.range("copying", (1, 1), 0, 100, kind=START_END)
    export.launch("in", (1, 1), (10, 20), (30, 40))
    export.launch("out", (1, 1), (110, 120), (130, 140))
    projection = project(load_capture(export.write(tmp_path / "a.sqlite")))
    assert names(select(projection, Wanted(range="copying"))) == ["in"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(range="forwrad"), "no range is named 'forwrad'"),
        (Wanted(range="ward"), "there are backward, forward"),
        (Wanted(steps=frozenset([7])), "no measured step 7; the recording has 0, 1"),
        (Wanted(start_ns=10**9), "nothing was recorded in from"),
        (Wanted(range="("), "no range is named"),
    ],
)
def test_what_is_not_there_is_an_error_that_says_what_is(trained, wanted, words):
    with pytest.raises(MissingError, match=words):
        select(trained, wanted)


def test_the_recording_begins_with_its_first_event_of_any_kind(trained):
    assert first_ns(trained.capture) == 10_000
    assert first_ns(made()) == 0
