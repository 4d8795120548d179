"""Which treatment may be the best, from blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.stats.effects import best_of, mcb_critical


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
