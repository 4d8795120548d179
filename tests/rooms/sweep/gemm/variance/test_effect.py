"""The same GEMM with and without a collective beside it: effects put in by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from lab.rooms.sweep.gemm.variance.cause import BY_BLOCK, BY_RANK, effect
from tests.rooms.sweep.gemm.made import instances


def test_an_effect_within_ranks_and_steps_is_found_with_its_size():
    random = np.random.default_rng(1)
    beside = random.random(80) < 0.5
    found = effect(instances(100 * (1 + 0.5 * beside) + random.normal(0, 2, 80), beside))
    assert found["slowdown"] == pytest.approx(1.5, abs=0.03)
    assert 1.4 < found["ci_low"] < 1.5 < found["ci_high"] < 1.6
    assert found["p_value"] < 0.001 and found["test"] == BY_BLOCK and found["note"] == ""
    assert found["excess_time_us"] == pytest.approx(50 * beside.sum(), rel=0.05)


def test_a_gemm_whose_free_instances_took_no_time_has_no_ratio():
    rows = instances(np.array([0.0, 0.0, 0.0, 5.0, 6.0, 7.0]), np.array([False] * 3 + [True] * 3))
    found = effect(rows)
    assert found["overlapped_median_us"] == 6.0 and math.isnan(found["slowdown"])
    assert math.isnan(found["ci_low"]) and math.isnan(found["ci_high"])
    assert math.isnan(found["same_rank_slowdown"]) and found["excess_time_us"] == 18.0


def test_no_effect_is_no_finding():
    random = np.random.default_rng(2)
    found = effect(instances(random.normal(100, 2, 80), random.random(80) < 0.5))
    assert found["ci_low"] < 1 < found["ci_high"] and found["p_value"] > 0.05


def test_one_free_rank_among_eight_is_one_unit_and_no_proof():
    rows = pd.concat(
        [
            instances(np.full(12, 165.0 if rank == 1 else 308.0 + rank), np.full(12, rank != 1), rank=rank)
            for rank in range(8)
        ]
    )
    found = effect(rows)
    assert (found["free_n"], found["overlapped_n"], found["same_rank_n"]) == (12, 84, 0)
    assert (found["p_value"], found["test"]) == (0.125, BY_RANK)
    assert "free only on rank 1," in found["note"]


@pytest.mark.parametrize(
    ("beside", "note"),
    [
        ([True] * 8, "no control"),
        ([False] * 8, "no collective ever"),
        ([True] * 6 + [False] * 2, "only 2 free instances"),
    ],
)
def test_too_little_to_compare_is_said(beside, note):
    found = effect(instances(np.linspace(10, 11, 8), beside))
    assert note in found["note"]
    assert math.isnan(found["slowdown"]) == (len(set(beside)) == 1)
