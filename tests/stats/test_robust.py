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


@pytest.mark.filterwarnings("error")
def test_no_values_give_nan_and_neither_an_error_nor_a_warning():
    assert all(math.isnan(f([])) for f in (robust.median, robust.mad, robust.cv))
    assert math.isnan(robust.percentile([], 95))


@pytest.mark.filterwarnings("error")
def test_one_value_or_a_mean_of_0_has_no_cv():
    assert math.isnan(robust.cv([5.0])) and math.isnan(robust.cv([-1.0, 1.0]))


def test_deviations_of_small_types_are_exact():
    # 2**25 - 1 does not fit the 24 bits of a float32.
    assert robust.mad(np.array([1, 2**25, 2**26], dtype=np.float32)) == 2**25 - 1


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
            "cv": robust.cv(mine),
            "min": min(mine, default=math.nan),
            "max": max(mine, default=math.nan),
        }
        for name, value in plain.items():
            assert row[name] == pytest.approx(value, abs=1e-6, nan_ok=True), name


@pytest.mark.filterwarnings("error")
def test_empty_groups_and_single_values_are_nan_without_a_warning():
    found = robust.grouped(np.array([4.0, 2.0, 6.0]), np.array([0, 2, 2]), 4)
    expected = {
        "count": [1, 0, 2, 0],
        "mean": [4, math.nan, 4, math.nan],
        "std": [math.nan, math.nan, math.sqrt(8), math.nan],
    }
    for name, column in expected.items():
        assert found[name].tolist() == pytest.approx(column, nan_ok=True), name


@pytest.mark.filterwarnings("error")
def test_a_group_of_mean_0_has_no_cv_and_gives_no_warning():
    assert math.isnan(robust.grouped(np.zeros(3), np.zeros(3, dtype=np.int64), 1)["cv"][0])


def test_a_small_value_after_a_group_of_huge_ones_stays_exact():
    found = robust.grouped(np.array([1e20, 1.0]), np.array([0, 1]), 2)
    assert found["max"].tolist() == found["median"].tolist() == [1e20, 1.0]


def test_groups_of_a_small_type_do_not_overflow():
    found = robust.grouped(np.array([-100, 100], dtype=np.int8), np.array([0, 0]), 1)
    assert (found["median"][0], found["mad"][0], found["max"][0]) == (0, 100, 100)


def test_the_figures_of_a_group_do_not_depend_on_the_groups_around_it():
    random = np.random.default_rng(5)
    own = random.lognormal(4, 1, 137)
    others = random.lognormal(4, 1, 50_000)
    alone = robust.grouped(own, np.zeros(137, dtype=np.int64), 1, [5, 95])
    values = np.concatenate([others, own])
    group = np.concatenate([np.arange(50_000) % 900, np.full(137, 900)])
    among = robust.grouped(values, group, 901, [5, 95])
    assert {name: among[name][900] for name in alone} == {name: alone[name][0] for name in alone}


def test_column_medians_leave_nan_out_as_numpy_does():
    values = np.array([[1.0, np.nan, 3.0], [2.0, 5.0, np.nan], [9.0, 4.0, np.nan], [np.nan, 8.0, 1.0]])
    assert robust.column_medians(values).tolist() == np.nanmedian(values, axis=0).tolist() == [2.0, 5.0, 2.0]
    assert np.isnan(robust.column_medians(np.full((3, 1), np.nan))).all()


@pytest.mark.parametrize("seed", range(60))
def test_medians_and_percentiles_are_numpys_to_the_last_bit(seed):
    draw = np.random.default_rng(seed)
    values = draw.normal(size=draw.integers(1, 40)) * 10.0 ** draw.integers(-3, 9)
    if seed % 3 == 0:
        values = draw.integers(-(2**50), 2**50, size=len(values))
    if seed % 10 == 7:
        values = np.append(values, np.nan)
    middle = float(np.median(values))
    assert robust.median(values) == middle or np.isnan([robust.median(values), middle]).all()
    for percent in (0, 5, 33.3, 50, 90, 95, 97.5, 100):
        found, expected = robust.percentile(values, percent), float(np.percentile(values, percent))
        assert found == expected or np.isnan([found, expected]).all()
