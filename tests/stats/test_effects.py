"""Effects against brute force, and against conditions whose effect is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.stats.effects import explained_shares, median_ratio_ci, permutation_p
from lab.stats.robust import bootstrap_ci


@pytest.mark.parametrize(("n", "m"), [(12, 84), (11, 31), (2, 3), (40, 40)])
def test_the_interval_of_a_ratio_of_medians_is_that_of_plain_resampling(n, m):
    random = np.random.default_rng(7)
    base, changed = random.normal(165, 9, n), random.normal(300, 20, m)
    plain = bootstrap_ci(
        [base, changed], lambda a, b: np.median(b, -1) / np.median(a, -1), resamples=40_000, seed=1
    )
    assert median_ratio_ci(base, changed, resamples=40_000) == pytest.approx(plain, rel=0.01)


def test_one_value_has_no_interval():
    assert all(math.isnan(bound) for bound in median_ratio_ci(np.array([1.0]), np.array([1.0, 2.0])))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=2, max_size=8), st.data())
def test_a_small_block_is_enumerated(values, data):
    treated = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    x = np.array(values, dtype=float)
    if 0 < treated.sum() < len(x):
        centred = x - x.mean()
        seen = abs(centred[treated].sum())
        every = [abs(sum(c)) for c in itertools.combinations(centred, int(treated.sum()))]
        plain = np.mean([other >= seen - 1e-9 for other in every])
        assert permutation_p(x, treated, np.zeros(len(x), dtype=int)) == pytest.approx(plain)


def test_a_difference_between_blocks_is_no_effect_and_one_within_them_is():
    random = np.random.default_rng(3)
    blocks = np.repeat(np.arange(8), 12)
    treated = np.tile(np.arange(12) < 6, 8)
    level = 100.0 * blocks
    noise = random.normal(0, 1, 96)
    assert permutation_p(level + noise, treated, blocks) > 0.05
    assert permutation_p(level + noise + 3 * treated, treated, blocks) < 0.002


def test_where_the_condition_is_the_block_nothing_can_be_said():
    blocks = np.repeat([0, 1], 5)
    assert math.isnan(permutation_p(np.arange(10.0), blocks == 1, blocks))


def test_many_values_give_the_same_answer_as_shuffling_them(monkeypatch):
    random = np.random.default_rng(5)
    blocks, treated = np.repeat(np.arange(4), 100), random.random(400) < 0.4
    values = random.normal(0, 1, 400) + 0.2 * treated
    shuffled = permutation_p(values, treated, blocks, resamples=20_000)
    monkeypatch.setattr("lab.stats.effects.MOST_PERMUTED", 10)
    assert permutation_p(values, treated, blocks) == pytest.approx(shuffled, abs=0.01)


def test_p_values_are_uniform_without_an_effect():
    random = np.random.default_rng(11)
    blocks = np.repeat(np.arange(4), 8)
    found = [
        permutation_p(random.normal(0, 1, 32), random.permuted(np.arange(32)) < 16, blocks, resamples=200)
        for _ in range(200)
    ]
    assert 0.02 <= np.mean(np.array(found) < 0.1) <= 0.18


def test_shares_of_known_causes_add_up_to_one():
    random = np.random.default_rng(2)
    overlap, cold = random.integers(0, 2, 2000), random.integers(0, 2, 2000)
    values = 100 + 3 * overlap + 4 * cold + random.normal(0, 2, 2000)  # variances 2.25, 4 and 4
    shares = explained_shares(
        values, {"overlap": overlap, "cold": cold, "nothing": random.integers(0, 5, 2000)}
    )
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == pytest.approx(
        {"overlap": 2.25 / 10.25, "cold": 4 / 10.25, "nothing": 0, "unexplained": 4 / 10.25}, abs=0.03
    )


def test_a_label_of_its_own_for_every_value_explains_nothing():
    values = np.random.default_rng(4).normal(0, 1, 12)
    assert explained_shares(values, {"id": np.arange(12)}) == {"id": 0.0, "unexplained": 1.0}


def test_no_spread_has_no_shares():
    shares = explained_shares(np.full(9, 5.0), {"overlap": np.arange(9) % 2})
    assert all(math.isnan(share) for share in shares.values())
