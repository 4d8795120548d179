"""Means and their standard errors."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from lab.stats.means import Sample, difference_ci, mean_interval, student_t


@pytest.mark.parametrize("df", [1.0, 1.1, 1.5, 1.9, 2.0, 2.5, 7.3])
def test_between_whole_degrees_of_freedom_quantiles_never_rise(df):
    assert student_t(0.05, df) >= student_t(0.05, df + 0.05) > 1.96


def test_the_interval_of_a_textbook_pair_is_welchs():
    """Unequal spread and n: se^2 = 4/10 + 9/5 = 2.2, df = 2.2^2 / (0.16/9 + 3.24/4) = 5.847, t = 2.4625."""
    found = difference_ci(Sample(20, 2, 10), Sample(15, 3, 5))
    half = 2.4625 * math.sqrt(2.2)
    assert found == (pytest.approx(5 - half, abs=2e-3), pytest.approx(5 + half, abs=2e-3))


def test_one_value_has_no_interval_and_equal_values_have_an_empty_one():
    assert all(map(math.isnan, difference_ci(Sample(1, 0, 1), Sample(2, 1, 5))))
    assert difference_ci(Sample(3, 0, 4), Sample(2, 0, 4)) == (1, 1)


def test_the_interval_covers_the_true_difference_as_often_as_it_says():
    draw = random.Random(7)
    covered = 0
    for _ in range(1500):
        a = [draw.gauss(10, 1) for _ in range(4)]
        b = [draw.gauss(9, 3) for _ in range(6)]
        samples = [Sample(statistics.mean(one), statistics.stdev(one), len(one)) for one in (a, b)]
        low, high = difference_ci(*samples)
        covered += low <= 1 <= high
    assert 0.93 <= covered / 1500 <= 0.97


def test_the_interval_of_few_runs_is_students():
    mean, low, high = mean_interval([10.0, 12.0, 14.0])
    assert mean == 12.0 and high - mean == pytest.approx(4.303 * 2 / math.sqrt(3), abs=0.01)
    assert mean - low == pytest.approx(high - mean)
    assert mean_interval([3.0] * 50) == (3.0, 3.0, 3.0)


def test_one_run_has_no_interval_and_none_no_mean():
    mean, low, high = mean_interval([5.0])
    assert mean == 5.0 and math.isnan(low) and math.isnan(high)
    assert all(math.isnan(value) for value in mean_interval([]))
