"""Effects against brute force and known conditions; the best of several; Holm's correction."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.stats.effects import best_of, holm, mcb_critical, median_ratio_ci, permutation_p


@pytest.mark.parametrize(("n", "m"), [(12, 84), (11, 31), (2, 3), (40, 40)])
def test_the_interval_of_a_ratio_of_medians_is_that_of_plain_resampling(n, m):
    random = np.random.default_rng(7)
    base, changed = random.normal(165, 9, n), random.normal(300, 20, m)
    drawn = [np.median(random.choice(one, (40_000, len(one))), axis=1) for one in (base, changed)]
    plain = np.percentile(drawn[1] / drawn[0], [2.5, 97.5])
    assert median_ratio_ci(base, changed, resamples=40_000) == pytest.approx(tuple(plain), rel=0.01)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_medians_of_resamples_are_as_frequent_as_among_all_n_to_the_n_of_them(n):
    values = np.array([1.0, 3.0, 7.0, 20.0, 50.0])[:n]
    every = [np.median(drawn) for drawn in itertools.product(values, repeat=n)]
    for level in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95):
        inner, plain, outer = (
            np.quantile(every, [(1 - wide) / 2, (1 + wide) / 2], method="inverted_cdf").tolist()
            for wide in (level - 0.02, level, level + 0.02)
        )
        if inner == outer:  # elsewhere a draw more or less decides between two values
            found = median_ratio_ci(np.ones(2), values, level=level, resamples=40_000)
            assert found == pytest.approx(plain)


def test_an_interval_of_level_0_is_a_point_and_one_of_level_1_reaches_to_the_extremes():
    values = np.random.default_rng(6).normal(100, 5, 400)
    low, high = median_ratio_ci(values[:200], values[200:], level=0)
    assert low == high
    assert median_ratio_ci(np.ones(3), np.array([1.0, 2.0, 3.0]), level=1) == (1, 3)


def test_a_draw_at_the_very_end_is_the_largest_value(monkeypatch):
    class AtTheEnd:
        def beta(self, a, b, size):
            return np.full(size, 1.0)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: AtTheEnd())
    assert median_ratio_ci(np.ones(3), np.array([1.0, 2.0, 5.0])) == (5, 5)


def test_the_sum_of_two_middle_values_may_exceed_their_type():
    assert median_ratio_ci(np.full(2, 100, np.int8), np.full(2, 120, np.int8)) == pytest.approx((1.2, 1.2))


def test_the_seed_is_2025_unless_given():
    random = np.random.default_rng(8)
    base, changed = random.normal(165, 9, 40), random.normal(170, 9, 41)
    assert median_ratio_ci(base, changed) == median_ratio_ci(base, changed, seed=2025)
    assert median_ratio_ci(base, changed) != median_ratio_ci(base, changed, seed=1)
    values, treated, blocks = random.normal(0, 1, 60), np.arange(60) % 3 == 0, np.arange(60) // 30
    assert permutation_p(values, treated, blocks) == permutation_p(values, treated, blocks, seed=2025)
    assert permutation_p(values, treated, blocks) != permutation_p(values, treated, blocks, seed=1)


def test_one_value_has_no_interval():
    assert all(math.isnan(bound) for bound in median_ratio_ci(np.array([1.0]), np.array([1.0, 2.0])))


@settings(max_examples=40)
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


FOUR = np.array([0.0, 0.0, 2.0, 2.0])
NORMAL = math.erfc(2 / math.sqrt(2 * (2 * 2 / 4) * (4 / 3)))  # 2 treated of 4; the four vary by 4/3


@pytest.mark.parametrize(("most", "p"), [(4, 2 / 6), (3, NORMAL)])
def test_the_normal_limit_serves_more_values_than_are_permuted(monkeypatch, most, p):
    monkeypatch.setattr("lab.stats.effects.MOST_PERMUTED", most)
    assert permutation_p(FOUR, FOUR > 1, np.zeros(4, dtype=int)) == pytest.approx(p)
    assert permutation_p(FOUR / 100, FOUR > 1, np.zeros(4, dtype=int)) == pytest.approx(p)


def test_many_equal_values_show_no_effect():
    assert permutation_p(np.full(2001, 5.0), np.arange(2001) < 700, np.zeros(2001, dtype=int)) == 1


def test_as_many_arrangements_as_resamples_are_enumerated():
    def p(resamples):
        return permutation_p(FOUR, FOUR > 1, np.zeros(4, dtype=int), resamples=resamples)

    assert p(6) == pytest.approx(2 / 6)  # 2 of the 6 arrangements are as far apart
    assert p(5) * 6 == pytest.approx(round(p(5) * 6))  # drawn: a count of 5, and the observed one


def test_an_effect_that_no_shuffle_reaches_has_the_least_p():
    blocks = np.repeat([0, 1], 20)
    treated = np.arange(40) % 2 == 0
    assert permutation_p(1000.0 * treated + np.arange(40), treated, blocks) == 1 / 2001


def test_blocks_that_alternate_give_the_same_p_to_the_last_digit_as_blocks_in_turn():
    random = np.random.default_rng(9)
    values, treated = random.normal(0, 1, 600), random.random(600) < 0.5
    blocks = np.arange(600) % 3
    in_turn = np.concatenate([np.flatnonzero(blocks == block) for block in range(3)])
    assert permutation_p(values, treated, blocks) == permutation_p(
        values[in_turn], treated[in_turn], blocks[in_turn]
    )


def test_p_values_are_uniform_without_an_effect():
    random = np.random.default_rng(11)
    blocks = np.repeat(np.arange(4), 8)
    found = [
        permutation_p(random.normal(0, 1, 32), random.permuted(np.arange(32)) < 16, blocks, resamples=200)
        for _ in range(200)
    ]
    assert 0.02 <= np.mean(np.array(found) < 0.1) <= 0.18


@pytest.mark.parametrize(("free", "known"), [(14, 2.59), (21, 2.50), (28, 2.46)])
def test_critical_values_of_eight_treatments_are_the_tabled_ones(free, known):
    assert mcb_critical(8, free) == pytest.approx(known, abs=0.015)


def test_two_treatments_are_compared_by_students_t():
    assert mcb_critical(2, 10) == pytest.approx(1.812, abs=0.015)


def test_a_clear_best_stands_alone_though_blocks_differ_by_more():
    blocks = np.array([[0.0], [50.0], [100.0]])
    values = blocks + np.array([[10.0, 12.0, 12.1], [10.1, 12.1, 12.0], [9.9, 11.9, 12.1]])
    found = best_of(values)
    assert (found.lowest, found.candidates) == (0, (0,)) and found.lead == pytest.approx(2.0, abs=0.05)
    assert found.lead > found.needed > 0


def test_equal_treatments_are_rarely_told_apart():
    random = np.random.default_rng(3)
    alone = [len(best_of(random.normal(size=(4, 5))).candidates) == 1 for _ in range(400)]
    assert np.mean(alone) < 0.08


def test_one_block_proves_nothing():
    found = best_of(np.array([[1.0, 2.0, 3.0]]))
    assert found.candidates == (0, 1, 2) and math.isnan(found.needed) and found.lead == 1.0


def test_who_is_clearly_worse_is_no_candidate():
    values = np.array([[1.0, 1.02, 9.0], [1.02, 1.0, 9.1], [1.01, 1.02, 9.0]])
    assert best_of(values).candidates == (0, 1)


P_VALUES = st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), max_size=8)


def test_a_published_example():
    corrected = holm([0.0098, 0.0324, 0.0163, 0.2, 0.0494, 0.0020, 0.6])
    assert corrected == pytest.approx([0.0588, 0.1296, 0.0815, 0.4, 0.1482, 0.0140, 0.6], abs=1e-9)
    assert holm([]).tolist() == []


@given(P_VALUES)
def test_it_is_the_plain_definition(p_values: list[float]) -> None:
    known = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    reached, expected = 0.0, [float("nan")] * len(p_values)
    for place, (p, i) in enumerate(known):
        reached = max(reached, (len(known) - place) * p)
        expected[i] = min(1.0, reached)
    assert np.allclose(holm(p_values), expected, equal_nan=True)
