"""Where verdicts of a diff turn: each figure doubled, halved or trebled is noticed here."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from lab.compare.diff.causes import common_factor
from lab.compare.diff.comparison import _slowest, compare_pair
from lab.compare.diff.groups import NO_PHASE, limits
from lab.compare.diff.judge import _of_steps
from lab.compare.diff.split import split
from tests.compare.made import NOTHING, Plant, Program


def sums(*durations_us):
    keys = [("aten::op", "", "", f"k{index}") for index in range(len(durations_us))]
    return {key: (1.0, 1000 * us) for key, us in zip(keys, durations_us, strict=True)}


@pytest.mark.parametrize(("apart", "alike"), [(0.014, 4), (0.016, 3)])
def test_of_a_small_factor_kernels_may_be_one_and_a_half_percent_apart(apart, alike):
    rows = split(sums(50, 40, 30, 20), sums(50 * 1.035, 40 * 1.035, 30 * 1.035, 20 * (1.035 + apart)))
    assert common_factor(rows, 140e3).rows == alike


@pytest.mark.parametrize(("others", "is_factor"), [((11,), True), ((11, 12), False)])
def test_three_quarters_of_the_kernels_have_to_share_a_factor(others, is_factor):
    alike = (100, 60, 40)
    rows = split(sums(*alike, *others), sums(*(1.08 * us for us in alike), *(1.5 * us for us in others)))
    assert (common_factor(rows, 1e3 * sum(alike + others)) is not None) == is_factor


@pytest.mark.parametrize(("slower", "kind"), [(1.5, "factor"), (2.3, "same_kernel_duration")])
def test_a_factor_has_to_be_half_of_the_change_of_the_whole(tmp_path, slower, kind):
    """All kernels 2 % longer: of +3.3 % that is the cause, of +5.3 % it is not."""
    rng = np.random.default_rng(9)
    program = Program(tmp_path)
    plant = Plant(factor=1.02, kernels=((2, slower),))
    sides = [[program.draw(rng, p, own=0.0, each=0.001) for _ in range(4)] for p in (NOTHING, plant)]
    comparison = compare_pair(sides[0][0], sides[1][0], sides[0][1:], sides[1][1:]).comparison
    assert comparison.findings[0].kind == kind


@pytest.mark.parametrize(
    ("spans", "waits", "slowest"),
    [
        ((100.0, 99.5), (20.0, 0.0), 1),  # as long as the longest: own time decides
        ((100.0, 98.5), (20.0, 0.0), 0),  # 1.5 % shorter: it waited for nothing
        ((100.0, 100.0), (0.0, 0.6), None),  # own times as long: no rank stands out
        ((100.0, 100.0), (0.0, 1.5), 0),
    ],
)
def test_the_rank_that_the_others_wait_for_has_one_percent_more_own_time(spans, waits, slowest):
    times = {
        rank: {"span_ns": span, "exposed_comm_ns": wait}
        for rank, (span, wait) in enumerate(zip(spans, waits, strict=True))
    }
    assert _slowest(times) == slowest


@pytest.mark.parametrize(("unknown_ns", "is_said"), [(9.0, False), (11.0, True)])
def test_a_tenth_of_the_kernel_time_without_a_phase_is_said(unknown_ns, is_said):
    phases = {"forward": (1.0, 100.0 - unknown_ns), NO_PHASE: (1.0, unknown_ns)}
    side = SimpleNamespace(by_phase=lambda: phases, source="recorded")
    texts = limits(side, side)
    assert any("in no phase that is known" in text for text in texts) == is_said


def test_steps_that_drift_are_worth_a_nineteenth_of_as_many():
    """Neighbours' correlation counts up to 0.9, where n steps are worth n / 19."""
    ramp_ns = np.arange(1000.0)
    sample = _of_steps(ramp_ns)
    assert sample.sd == pytest.approx(ramp_ns.std(ddof=1) * 19**0.5)
