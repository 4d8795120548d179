"""The mean of few runs with its interval."""

from __future__ import annotations

import math

import pytest

from lab.stats.means import mean_interval


def test_the_interval_is_students():
    mean, low, high = mean_interval([10.0, 12.0, 14.0])
    assert mean == 12.0 and (high - mean, mean - low) == pytest.approx((4.303 * 2 / math.sqrt(3),) * 2)
    mean, low, high = mean_interval([1.0, 2.0])
    assert (low, high) == pytest.approx((1.5 - 12.706 * 0.5, 1.5 + 12.706 * 0.5))
    assert mean_interval([3.0] * 50) == (3.0, 3.0, 3.0)


def test_one_run_has_no_interval_and_none_no_mean():
    mean, low, high = mean_interval([5.0])
    assert mean == 5.0 and math.isnan(low) and math.isnan(high)
    assert all(math.isnan(value) for value in mean_interval([]))
