"""Impossible times and counts of isolated kernels are refused with their factors."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.audit.check import OK, REFUSED
from lab.rooms.kernels.audit.kernels import (
    closure_of_time,
    dispatch_floor,
    forwards_in_counts,
    iterations_match,
)
from tests.rooms.kernels.audit.made import a_row


def test_a_window_that_is_too_short_for_its_runs_is_refused_with_the_factor():
    good = iterations_match([a_row()])
    bad = iterations_match([a_row(), a_row(runs=5_000_000)])
    assert good.verdict == OK
    assert (bad.verdict, bad.factors) == (REFUSED, {"rows": 1, "factor": 50})


def test_many_equal_times_are_the_hosts_dispatch():
    floor = dispatch_floor([a_row(4.0 + 0.001 * i) for i in range(8)] + [a_row(7.0)])
    spread = dispatch_floor([a_row(2.5 * 1.3**i) for i in range(8)])
    assert floor[0].verdict == REFUSED and floor[0].factors["alike"] == 8
    assert spread[0].verdict == OK


def test_forwards_are_counted_by_the_norms():
    assert (
        forwards_in_counts([("layer_norm_kernel<Half>", 50), ("layer_norm_kernel<Half>", 1200), ("gemm", 7)])
        == 25
    )
    assert forwards_in_counts([("layer_norm_kernel<Half>", 50)]) == 1
    assert forwards_in_counts([("gemm", 7)]) == 1


def test_two_faults_that_cancel_are_both_shown():
    check = closure_of_time([a_row(100.0, count=50)], 25, 5000.0)
    assert check.factors["published_pct"] == 0.0
    assert check.factors["per_forward_pct"] == -96.0
    assert check.verdict == REFUSED


@pytest.mark.parametrize(("model_us", "refused"), [(4600.0, False), (4400.0, True), (5600.0, True)])
def test_parts_that_miss_the_whole_by_more_than_ten_percent_are_refused(model_us, refused):
    check = closure_of_time([a_row(100.0, count=50)], 1, model_us)
    assert (check.verdict == REFUSED) == refused
