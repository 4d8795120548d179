"""The gate: what is proven, what is excluded, and that equal programs do not fail it."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import statistics

import numpy as np
import pytest

from lab.stats.gate import decide
from lab.stats.means import quantile, tail
from tests.conftest import SHARED

STEPS = SHARED / "serve" / "steps_h200.json.gz"


@pytest.mark.parametrize(
    ("freedom", "p", "expected"),  # printed tables of Student's t
    [
        (1, 0.975, 12.706),
        (2, 0.995, 9.925),
        (4, 0.975, 2.776),
        (10, 0.995, 3.169),
        (30, 0.95, 1.697),
        (1e6, 0.975, 1.960),
    ],
)
def test_quantiles_are_those_of_the_tables(freedom, p, expected):
    assert quantile(p, freedom) == pytest.approx(expected, abs=6e-4)
    assert tail(quantile(p, freedom), freedom) == pytest.approx(1 - p, abs=1e-9)


def test_one_degree_of_freedom_is_cauchys_distribution():
    for t in (0.1, 0.5, 1.0, 7.0, 300.0):
        assert tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-12)


def test_clear_cases_are_decided_and_unclear_ones_say_how_many_more():
    rng = np.random.default_rng(1)
    base, same, slow = (100 * shift * np.exp(rng.normal(0, 0.005, 6)) for shift in (1, 1, 1.1))
    assert decide(base, slow, 0.02).outcome == "regression"
    assert decide(base, same, 0.02).outcome == "excluded"
    assert decide(slow, base, 0.02).outcome == "excluded", "faster is not slower"
    noisy = [100 * np.exp(rng.normal(0, 0.05, 4)) for _ in range(2)]
    unclear = decide(*noisy, 0.02)
    assert unclear.outcome == "undecided" and unclear.further > 4 and unclear.detectable > 0.02


def test_the_number_of_further_processes_decides_if_the_change_stays():
    rng = np.random.default_rng(5)
    draws = rng.normal(0, 0.03, (2, 4000))
    base, head = (np.exp(draws[side] - draws[side][:5].mean()) * (1, 1.06)[side] for side in (0, 1))
    first = decide(base[:5], head[:5], 0.02)
    assert first.outcome == "undecided"
    k = 5 + first.further
    spread = [np.exp(np.log(side[:5]) - np.log(side[:5]).mean()).repeat(1) for side in (base, head)]
    again = [np.tile(side, -(-k // 5))[:k] * shift for side, shift in zip(spread, (1, 1.06), strict=True)]
    assert decide(*again, 0.02).outcome == "regression"


def test_fewer_than_three_processes_decide_nothing_however_many_steps_they_had():
    for n, m in ((1, 1), (2, 9), (1, 30)):
        found = decide([1.0] * n, [9.0] * m, 0.02)
        assert found.outcome == "undecided" and found.further == 3 - min(n, m) and found.low is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_times_and_limits_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match="positive and finite"):
        decide([1, 1, bad], [1, 1, 1], 0.02)
    if bad != 0.0:
        with pytest.raises(ValueError, match="allowed slowdown"):
            decide([1, 1, 1], [1, 1, 1], bad)


@pytest.mark.parametrize("allowed", [0.0, 0.02])
def test_of_equal_programs_at_most_one_in_a_hundred_is_called_slower(allowed):
    """Processes that differ by up to 9 %, with steps correlated by 0.8: equal runs on one GPU."""
    rng = np.random.default_rng(7)
    slower = 0
    pairs = 400
    for pair in range(pairs):
        spread, n = (0.005, 0.02, 0.05, 0.09)[pair % 4], (3, 5, 10)[pair % 3]
        noise = rng.normal(0, 0.03, (2 * n, 60))
        for at in range(1, 60):
            noise[:, at] += 0.8 * noise[:, at - 1]
        medians = np.exp(rng.normal(0, spread, 2 * n) + np.median(noise, axis=1))
        slower += decide(medians[:n], medians[n:], allowed).outcome == "regression"
    assert slower <= 0.01 * pairs


@pytest.mark.skipif(not STEPS.exists(), reason="the shared recordings are not here")
def test_seven_equal_runs_on_an_h200_never_fail():
    runs = json.loads(gzip.decompress(STEPS.read_bytes()))
    equal = [statistics.median(run["wall_ns"]) for run in runs.values() if run["variant"] == "base"]
    assert len(equal) >= 7
    for base in itertools.combinations(range(7), 3):
        head = [equal[at] for at in range(7) if at not in base]
        assert decide([equal[at] for at in base], head, 0.02).outcome != "regression"


def test_the_p_values_are_those_of_the_interval():
    rng = np.random.default_rng(9)
    for _ in range(60):
        base, head = np.exp(rng.normal(0, 0.01, 5)), np.exp(rng.normal(rng.uniform(-0.1, 0.1), 0.02, 7))
        for level in (0.9, 0.99, 0.9999):
            found = decide(base, head, 0.02, level=level)
            assert (found.p_slower < (1 - level) / 2) == (found.outcome == "regression")
            assert (found.p_faster < (1 - level) / 2) == (found.high < -0.02)
