from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.stats import robust

VALUES = st.lists(st.floats(0.1, 1e6), min_size=2, max_size=30)


@given(VALUES)
def test_median_mad_and_cv_agree_with_the_standard_library(values):
    middle = statistics.median(values)
    assert robust.median(values) == pytest.approx(middle)
    assert robust.mad(values) == pytest.approx(statistics.median(abs(v - middle) for v in values), abs=1e-6)
    assert robust.cv(values) == pytest.approx(statistics.stdev(values) / statistics.mean(values), abs=1e-9)


def test_one_outlier_moves_the_cv_and_not_the_mad():
    calm = [10.0, 11.0, 9.0, 10.0, 10.5]
    assert robust.mad([*calm, 1000.0]) < 1
    assert robust.cv([*calm, 1000.0]) > 2


def test_no_values_give_nan_and_not_an_error():
    assert all(math.isnan(f([])) for f in (robust.median, robust.mad, robust.cv))
    assert math.isnan(robust.percentile([], 95))
    assert math.isnan(robust.bootstrap_ci([np.array([])], np.median)[0])


def test_a_percentile_interpolates():
    assert robust.percentile([0, 10], 95) == pytest.approx(9.5)


def test_the_bootstrap_repeats_exactly_with_its_seed_and_covers_the_ratio():
    random = np.random.default_rng(1)
    free, busy = random.normal(100, 5, 40), random.normal(150, 5, 40)

    def ratio(a, b):
        return np.median(b, axis=-1) / np.median(a, axis=-1)

    low, high = robust.bootstrap_ci([free, busy], ratio)
    assert (low, high) == robust.bootstrap_ci([free, busy], ratio)
    assert low < 1.5 < high and high - low < 0.2
    assert robust.bootstrap_ci([free, busy], ratio, seed=7) != (low, high)


def test_about_95_of_100_intervals_hold_the_truth():
    random = np.random.default_rng(3)
    draws = [random.normal(0, 1, 60) for _ in range(100)]
    intervals = [robust.bootstrap_ci([d], lambda x: x.mean(axis=-1), resamples=400) for d in draws]
    assert 85 <= sum(low <= 0 <= high for low, high in intervals) <= 100


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 1e4)), max_size=30))
def test_grouped_statistics_are_those_of_each_group_alone(rows):
    group = np.array([number for number, _ in rows], dtype=np.int64)
    values = np.array([value for _, value in rows])
    found = robust.grouped(values, group, 5, (5, 95))
    for number in range(5):
        mine = values[group == number]
        row = {name: column[number] for name, column in found.items()}
        assert row["count"] == len(mine) and row["sum"] == pytest.approx(mine.sum())
        plain = {
            "median": robust.median(mine),
            "mad": robust.mad(mine),
            "p5": robust.percentile(mine, 5),
            "p95": robust.percentile(mine, 95),
            "std": mine.std(ddof=1) if len(mine) > 1 else math.nan,
            "mean": mine.mean() if len(mine) else math.nan,
            "min": min(mine, default=math.nan),
            "max": max(mine, default=math.nan),
        }
        for name, value in plain.items():
            assert row[name] == pytest.approx(value, abs=1e-6, nan_ok=True), name
