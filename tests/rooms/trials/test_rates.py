"""Golden numbers of rates, and what simulated matrices of trials show about the promises."""

from __future__ import annotations

import numpy as np
import pytest

from lab.rooms.trials.rates import (
    anytime_interval,
    e_path,
    exact_interval,
    fisher_less_p,
    fisher_p,
    stratified_p,
    trials_per_cell,
)
from lab.rooms.trials.sprt import BOUND, Until
from lab.stats.effects import holm

ONE_RATE = [
    ((0, 10), (0, 0.308497), (0, 0.376987)),
    ((0, 20), (0, 0.168433), (0, 0.224006)),
    ((0, 59), (0, 0.060609), (0, 0.090688)),
    ((0, 299), (0, 0.012262), (0, 0.021239)),
    ((1, 20), (0.001265, 0.248733), (0.000161, 0.330712)),
    ((5, 10), (0.187086, 0.812914), (0.117563, 0.882437)),
    ((8, 20), (0.191190, 0.639457), (0.125908, 0.728885)),
    ((2, 128), (0.001898, 0.055303), (0.000348, 0.083667)),
]


@pytest.mark.parametrize("seen, exact, anytime", ONE_RATE)
def test_intervals_of_one_rate_are_those_of_the_tables(seen, exact, anytime):
    assert exact_interval(*seen) == pytest.approx(exact, abs=1e-6)
    assert anytime_interval(*seen) == pytest.approx(anytime, abs=1e-6)


def test_intervals_reach_the_ends_and_without_trials_say_nothing():
    assert exact_interval(0, 0) == anytime_interval(0, 0) == (0.0, 1.0)
    assert exact_interval(10, 10) == pytest.approx((1 - 0.308497, 1.0), abs=1e-6)
    assert anytime_interval(10, 10) == pytest.approx((1 - 0.376987, 1.0), abs=1e-6)
    with pytest.raises(ValueError, match="11 failures of 10"):
        exact_interval(11, 10)


@pytest.mark.parametrize(
    "base, cell, two, one",
    [
        ((8, 20), (1, 20), 0.019656, 0.009828),
        ((8, 20), (2, 20), 0.064833, 0.032417),
        ((5, 10), (0, 10), 0.032508, 0.016254),
        ((4, 10), (0, 10), 0.086687, 0.043344),
        ((3, 3), (0, 3), 0.1, 0.05),
        ((7, 50), (1, 50), 0.059446, 0.029723),
        ((2, 128), (0, 128), 0.498039, 0.249020),
        ((4, 8), (0, 8), 0.076923, 0.038462),
    ],
)
def test_fisher_is_that_of_the_tables(base, cell, two, one):
    assert fisher_p(*cell, *base) == pytest.approx(two, abs=1e-6)
    assert fisher_less_p(*cell, *base) == pytest.approx(one, abs=1e-6)


def test_a_node_that_fails_is_not_a_cell_that_cures():
    assert fisher_p(1, 12, 9, 12) == pytest.approx(0.002759, abs=1e-6)
    assert stratified_p([(1, 2, 9, 10), (0, 10, 0, 2)]) == pytest.approx(0.318182, abs=1e-6)


@pytest.mark.parametrize(
    "base, cell, exact",
    [(0.41, 0.205, 71), (0.35, 0.175, 87), (0.25, 0.125, 134), (0.5, 0.1, 19), (0.2, 0.02, 43)],
)
def test_trials_per_cell_are_near_those_of_the_exact_power(base, cell, exact):
    assert exact <= trials_per_cell(base, cell) <= 1.1 * exact


@pytest.mark.parametrize("base, cell, exact", [(0.4, 0, 13), (0.05, 0, 134), (1, 0.5, 10)])
def test_trials_per_cell_at_the_edges_are_some_too_many_and_never_too_few(base, cell, exact):
    assert exact <= trials_per_cell(base, cell) <= 1.25 * exact


def test_trials_to_see_a_difference_where_there_is_no_answer():
    assert trials_per_cell(0.2, 0.2) is None and trials_per_cell(0.01, 0.009) is None


@pytest.mark.parametrize(
    "fixed, was, clean, fails", [(0.01, 0.1, 31, 2), (0.05, 0.3, 10, 2), (0.02, 0.2, 15, 2)]
)
def test_the_sequential_test_ends_where_the_tables_say(fixed, was, clean, fails):
    test = Until(was=was, fixed=fixed)
    assert round(BOUND, 6) == 2.944439
    assert [test.answer([False] * n) for n in (clean - 1, clean)] == ["undecided", "fixed"]
    assert [test.answer([True] * n) for n in (fails - 1, fails)] == ["undecided", "not fixed"]
    assert test.passes_left(0, 0) == clean and test.fails_left(0, 0) == fails
    assert [test.passes_left(0, n) for n in range(clean)] == list(range(clean, 0, -1))


def test_the_sequential_test_is_wrong_as_seldom_as_the_tables_say():
    test, random = Until(was=0.1, fixed=0.01), np.random.default_rng(1)
    wrong = {}
    for rate, right in ((0.01, "fixed"), (0.1, "not fixed")):
        answers = [test.answer(random.random(400) < rate) for _ in range(4000)]
        wrong[rate] = np.mean([one != right for one in answers])
    assert wrong[0.01] < 0.035 and wrong[0.1] < 0.06


RATES = (0.01, 0.1, 0.5)


def test_the_rate_is_inside_its_interval_in_95_of_100_matrices():
    random, n, matrices = np.random.default_rng(7), 40, 1000
    table = [exact_interval(k, n) for k in range(n + 1)]
    for rate in RATES:
        seen = [table[k] for k in random.binomial(n, rate, matrices)]
        assert np.mean([low <= rate <= high for low, high in seen]) >= 0.95


def test_the_anytime_interval_covers_at_every_look_and_the_fixed_one_does_not():
    random, n, matrices = np.random.default_rng(8), 200, 500
    anytime = {(k, m): anytime_interval(k, m) for m in range(1, n + 1, 13) for k in range(m + 1)}
    fixed = {(k, m): exact_interval(k, m) for k, m in anytime}
    for rate in RATES:
        sums = np.cumsum(random.random((matrices, n)) < rate, axis=1)

        def covered(table, sums=sums, rate=rate):
            looks = [[table[int(row[m - 1]), m] for m in range(1, n + 1, 13)] for row in sums]
            return np.mean([all(low <= rate <= high for low, high in row) for row in looks])

        assert covered(anytime) >= 0.95
    assert covered(fixed) < 0.9  # the rate of the last round, 0.5: looking often breaks the fixed interval


@pytest.mark.parametrize("drift", [False, True])
def test_false_cures_stay_below_5_of_100_matrices_with_stopping_on(drift):
    """300 matrices of a baseline and 4 cells that change nothing; a matrix stops at its first cure."""
    random, blocks, cells, matrices = np.random.default_rng(9), 40, 4, 300
    for rate in RATES:
        level = np.linspace(0, 2 * rate, blocks) if drift else np.full(blocks, rate)
        fails = random.random((matrices, cells + 1, blocks)) < level
        assert np.mean([_cured(one) for one in fails]) <= 0.05


def _cured(fails):
    """Whether any cell is called better than row 0 at any look, corrected for the cells."""
    best = [min(e_path(list(zip(fails[0], row, strict=True)))) for row in fails[1:]]
    return min(holm(best)) <= 0.05


def test_a_real_cure_is_found_and_found_early():
    random, needed = np.random.default_rng(10), []
    for _ in range(200):
        base, cell = random.random(60) < 0.4, np.zeros(60, dtype=bool)
        path = e_path(list(zip(base, cell, strict=True)))
        needed.append(next((n for n, p in enumerate(path, start=1) if p <= 0.05), 99))
    assert np.mean(np.array(needed) <= 40) > 0.95 and np.median(needed) < 25


@pytest.mark.parametrize("every", [2, 3])
def test_failures_that_follow_a_rhythm_cure_nothing(every):
    """Every second trial fails, whichever cell it is: one of a block fails, and chance says which."""
    random, found = np.random.default_rng(every), 0
    for _ in range(500):
        fails = (np.arange(120) + random.integers(every)) % every == 0
        blocks = random.permuted(fails.reshape(60, 2), axis=1).tolist()
        found += e_path([(base, cell) for base, cell in blocks])[-1] <= 0.05
    assert found <= 0.05 * 500


def test_the_evidence_is_the_mean_of_its_likelihood_ratios():
    shares = [0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.998]
    ratio = np.mean([(2 * q) ** 7 * (2 - 2 * q) ** 2 for q in shares])
    pairs = (
        [(True, False)] * 4
        + [(True, True), (False, True), (False, False), (False, True)]
        + [(True, False)] * 3
    )
    best = max(np.mean([(2 * q) ** a * (2 - 2 * q) ** b for q in shares]) for a, b in ((4, 0), (7, 2)))
    assert e_path(pairs)[-1] == pytest.approx(1 / best) and best >= ratio > 1


def test_a_cell_that_fails_more_often_is_no_cure():
    assert min(e_path([(False, True)] * 50)) == 1.0
