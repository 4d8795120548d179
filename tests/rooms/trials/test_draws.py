"""Tests over distinct draws: cells that share seeds, cells with their own, and what a run may state."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numpy")
import numpy as np

from bench.trials_rates import DESIGNS, false_statements
from lab.rooms.trials import draws
from lab.rooms.trials.config import Trial
from lab.rooms.trials.decide import Confounds, decide
from lab.rooms.trials.draws import groups_of, two_sided_p, worst_of_p
from tests import conftest

SEEDS = conftest.SHARED / "cases" / "compare" / "seeds.json"


def decided(sequences, *, own_seeds=False):
    """Cells of these sequences of 1 (fail) and 0, all under the same seeds or each under its own."""
    trials = [
        Trial(
            cell=f"c{cell}",
            trial=block,
            verdict="fail" if digit == "1" else "pass",
            order=block * len(sequences) + cell,
            seed=block + (100 * cell if own_seeds else 0),
        )
        for cell, text in enumerate(sequences)
        for block, digit in enumerate(text)
    ]
    return decide(trials, [f"c{n}" for n in range(len(sequences))], "c0", stop=False, until=None).confounds


@pytest.mark.skipif(not SEEDS.exists(), reason=f"the shared cases are not here ({SEEDS})")
@pytest.mark.parametrize("name", ["alternate", "cluster", "drift"])
def test_one_sequence_in_five_cells_is_one_sequence_and_states_nothing(name):
    confounds = decided(json.loads(SEEDS.read_text())[name])
    assert confounds.draws == 20
    assert not any(confounds.shows(test) for test in ("order", "dependence"))


@pytest.mark.skipif(not SEEDS.exists(), reason=f"the shared cases are not here ({SEEDS})")
def test_failures_in_one_block_are_named_in_both_designs():
    sequences = json.loads(SEEDS.read_text())
    half = decided(sequences["half"])
    assert half.draws == 20 and half.shows("order") and half.shows("dependence") and half.clusters
    own = decided(sequences["clusters"], own_seeds=True)
    assert own.draws == 100 and own.shows("dependence") and own.clusters
    independent = decided(sequences["independent"], own_seeds=True)
    assert not any(independent.shows(test) for test in ("order", "dependence"))


def test_failures_that_alternate_are_said_to():
    confounds = decided(["01" * 10])
    assert confounds.shows("dependence") and not confounds.clusters and not confounds.shows("order")


def test_cells_are_grouped_by_the_seeds_that_they_share_and_a_seed_counts_once():
    def row(cell, trial, seed, verdict="pass"):
        return Trial(cell=cell, trial=trial, verdict=verdict, seed=seed)

    shared = [row(cell, n, n) for cell in "ab" for n in range(3)]
    apart = [row("c", n, 100 + n) for n in range(3)]
    shifted = [row("d", n, 2 + n) for n in range(3)]  # its first trial has a seed of a and b
    groups = groups_of([*shared, *apart, *shifted])
    assert [group.rows.shape for group in groups] == [(3, 2), (3, 1), (2, 1)]
    assert [group.draws for group in groups] == [3, 3, 2]
    unknown = [Trial(cell=cell, trial=n, verdict="pass") for cell in "ab" for n in range(3)]
    assert [group.rows.shape for group in groups_of(unknown)] == [(3, 2)]  # by block, where no seed is known
    (errors,) = groups_of([row("a", 0, 0), row("a", 1, 1, "error"), row("a", 2, 2, "fail")])
    assert errors.draws == 2 and errors.residuals[:, 0].tolist() == [-0.5, 0.0, 0.5]


def test_blocks_of_cells_that_ended_early_are_shuffled_apart():
    rows = [Trial(cell="a", trial=n, verdict="pass", seed=n) for n in range(4)]
    rows += [Trial(cell="b", trial=n, verdict="not run" if n > 1 else "fail", seed=n) for n in range(4)]
    (group,) = groups_of(rows)
    assert group.strata[0] == group.strata[1] != group.strata[2] == group.strata[3]


def test_p_values_count_the_observed_order_and_both_sides():
    drawn = np.arange(99.0)
    assert two_sided_p(98.0, drawn) == pytest.approx(2 * 2 / 100)
    assert two_sided_p(-1.0, drawn) == pytest.approx(2 / 100)
    assert two_sided_p(49.0, drawn) == 1.0
    assert two_sided_p(1.0, np.full(99, 1.0)) is None


def test_of_several_places_the_largest_is_judged_among_the_largest_of_the_shuffles():
    random = np.random.default_rng(0)
    drawn = random.normal(size=(999, 5))
    p, each = worst_of_p(np.array([9.0, 0, 0, 0, 0]), drawn)
    assert p == each[0] == pytest.approx(1 / 1000) and (each[1:] > 0.5).all()
    assert worst_of_p(np.zeros(2), np.zeros((9, 2))) == (None, pytest.approx(np.ones(2)))
    assert worst_of_p(np.zeros(1), random.normal(size=(9, 1)))[0] is None  # one place: nothing to compare


@pytest.mark.parametrize("share", DESIGNS.values(), ids=DESIGNS.keys())
def test_of_100_equal_matrices_at_most_5_percent_get_a_false_statement(share):
    """`python -m bench trials_rates` does 500."""
    assert false_statements(100, share, seed=7)["any"] <= 5


@pytest.mark.parametrize(("p", "shown"), [(0.015, True), (0.03, False), (0.05, False)])
def test_what_goes_with_failures_is_stated_below_two_percent(p, shown):
    assert Confounds(p={"order": p}).shows("order") == shown
    assert not Confounds().shows("order")


def test_shuffles_in_parts_are_those_in_one_go(monkeypatch):
    trials = [
        Trial(cell="c", trial=n, verdict="fail" if n < 9 else "pass", order=n, seed=n) for n in range(20)
    ]
    columns = np.arange(20.0)[:, None]
    observed, drawn = draws.shuffled(groups_of(trials), columns)
    assert drawn.shape == (draws.RESAMPLES, 2) and observed[0] < drawn[:, 0].min()
    monkeypatch.setattr(draws, "CHUNK_VALUES", 100)
    assert draws.shuffled(groups_of(trials), columns)[1] == pytest.approx(drawn)
