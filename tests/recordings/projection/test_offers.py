"""Kernels under a range of another thread that no list calls a phase."""

from __future__ import annotations

import re

import pytest

from lab.recordings.projection import PhaseNames, offers, project
from tests.recordings.projection.made import call, kernel, made, named


def backward(name="bwd", *, kernels=4, step=True, worker_range=None):
    """`name` on thread 1, under which thread 2 launches kernels of 10 ns each."""
    ranges = [named(name, 100, 900)]
    ranges += [named("step_0", 0, 1000)] if step else []
    ranges += [named(worker_range, 100, 900, tid=2)] if worker_range else []
    calls = [call(i, 200 + i, 201 + i, tid=2) for i in range(kernels)]
    return made(ranges, calls, [kernel(i, 300 + 20 * i, 310 + 20 * i) for i in range(kernels)])


@pytest.mark.parametrize("step", [True, False])
def test_kernels_under_an_unknown_range_are_offered_with_the_flag_that_claims_them(step):
    (offer,) = offers(project(backward(kernels=374, step=step)))
    assert offer.sentence == "374 kernels ran under `bwd`: --phase bwd"
    assert offer.kernel_ms == pytest.approx(374 * 10 / 1e6)
    claimed = PhaseNames((("", re.compile(offer.pattern)),)).pattern
    projection = project(backward(kernels=374, step=step), "full", claimed)
    assert offers(projection, claimed) == ()
    assert {projection.path(path)[-1] for path in projection.ops.path.tolist()} == {"bwd"}


def test_a_known_phase_is_owned_and_not_offered():
    assert offers(project(backward("backward"))) == ()


def test_operators_of_the_worker_do_not_hide_the_offer():
    assert [one.name for one in offers(project(backward(worker_range="aten::mm")))] == ["bwd"]


def test_the_innermost_range_is_offered_and_numbers_are_one_offer():
    ranges = [named("train", 0, 1000), named("bwd_0", 100, 400), named("bwd_1", 500, 900)]
    calls = [call(0, 200, 201, tid=2), call(1, 600, 601, tid=2)]
    (offer,) = offers(project(made(ranges, calls, [kernel(0), kernel(1)])))
    assert (offer.name, offer.pattern, offer.kernels) == ("bwd_0 and the like", r"bwd_\d+", 2)


def test_ranges_of_two_threads_at_once_are_no_offer_and_libraries_are_none():
    two = [named("a", 0, 900), named("b", 0, 900, tid=3)]
    assert offers(project(made(two, [call(0, 200, 201, tid=2)], [kernel(0)]))) == ()
    library = [named("cuBLAS::x", 0, 900)]
    assert offers(project(made(library, [call(0, 200, 201, tid=2)], [kernel(0)]))) == ()


def test_a_range_of_another_process_is_no_offer():
    ranges = [named("bwd", 0, 900, pid=2)]
    assert offers(project(made(ranges, [call(0, 200, 201, tid=2)], [kernel(0)]))) == ()


def test_a_name_with_signs_of_the_shell_and_of_expressions_is_quoted():
    (offer,) = offers(project(backward("bwd (x); rm")))
    assert offer.sentence.endswith("--phase 'bwd \\(x\\); rm'")
    assert re.fullmatch(offer.pattern, "bwd (x); rm")


def test_by_nsys_own_rule_nothing_is_offered():
    assert offers(project(backward(), "nsys")) == ()
