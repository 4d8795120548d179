"""Order-free shares against all orders by plain fits, and an effect within cells against its truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lab.rooms.sweep.gemm.variance.attribution import attribution, effect_within, sums_of


def plain_r2(values, columns):
    design = np.column_stack([np.ones(len(values)), *columns])
    rest = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return 1 - (rest**2).sum() / ((values - values.mean()) ** 2).sum()


def plain_shares(values, factors):
    def columns(names):
        return [(factors[name][:, None] == np.unique(factors[name])[1:]).astype(float) for name in names]

    sums = dict.fromkeys(factors, 0.0)
    orders = list(itertools.permutations(factors))
    for order in orders:
        for at, name in enumerate(order):
            sums[name] += plain_r2(values, columns(order[: at + 1])) - plain_r2(values, columns(order[:at]))
    return {name: total / len(orders) for name, total in sums.items()}


def test_shares_are_the_mean_over_all_orders():
    random = np.random.default_rng(1)
    factors = {"a": random.integers(0, 2, 60), "b": random.integers(0, 3, 60), "c": random.integers(0, 4, 60)}
    factors["b"] = np.where(random.random(60) < 0.5, factors["a"], factors["b"])  # they go together
    values = 5.0 * factors["a"] + 2.0 * factors["b"] + random.normal(0, 1, 60)
    found = attribution([sums_of(values, factors, np.arange(60) % 6)], ["a", "b", "c"])
    assert found.share == pytest.approx(plain_shares(values, factors))
    assert sum(found.share.values()) + found.unexplained == pytest.approx(1)
    assert all(found.low[name] <= found.high[name] for name in factors)


def test_the_order_of_the_factors_changes_nothing():
    random = np.random.default_rng(2)
    factors = {name: random.integers(0, 2, 40) for name in "ab"}
    values = random.normal(0, 1, 40) + factors["a"]
    sums = [sums_of(values, factors, np.zeros(40, dtype=int))]
    one, other = attribution(sums, ["a", "b"]), attribution(sums, ["b", "a"])
    assert one.share == pytest.approx(other.share) and one.unique == pytest.approx(other.unique)
    assert all(math.isnan(edge) for edge in one.low.values())  # one cluster gives no interval


def test_two_names_of_one_thing_share_it_and_add_nothing_alone():
    a = np.arange(40) % 2
    found = attribution([sums_of(3.0 * a, {"a": a, "b": a}, a)], ["a", "b"])
    assert found.share == pytest.approx({"a": 0.5, "b": 0.5})
    assert found.unique == pytest.approx({"a": 0.0, "b": 0.0}, abs=1e-9) and found.shared == pytest.approx(1)


def test_no_spread_has_no_shares():
    found = attribution([sums_of(np.full(9, 5.0), {"a": np.arange(9) % 2}, np.arange(9))], ["a"])
    assert math.isnan(found.share["a"]) and math.isnan(found.unexplained)


def test_an_effect_within_cells_is_free_of_what_differs_between_them():
    random = np.random.default_rng(5)
    cells = np.repeat(np.arange(50), 8)
    x = random.random(400)
    values = np.exp(cells * 0.3 + 0.5 * x * (1 + 0 * cells) + random.normal(0, 0.02, 400))
    found = effect_within(values, x, cells, cells // 5)
    assert found.ratio == pytest.approx(math.exp(0.5), rel=0.01) and found.low < math.exp(0.5) < found.high
    assert (found.cells, found.num_cells) == (50, 50)


def test_cells_of_one_kind_show_no_effect():
    found = effect_within(np.array([1.0, 2.0, 3.0]), np.ones(3), np.arange(3), np.arange(3))
    assert math.isnan(found.ratio) and found.cells == 0 and found.num_cells == 3
