"""What a GEMM's variance is due to: causes put in by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.rooms.sweep.gemm.reading.data import read_sweep
from lab.rooms.sweep.gemm.variance.cause import pooled_by_setting
from lab.rooms.sweep.gemm.variance.shares import FACTORS, in_words, shares
from tests.rooms.sweep.gemm.made import instances


def test_shares_go_to_the_cause_that_was_put_in():
    random = np.random.default_rng(3)
    n = 4000
    beside, step = random.random(n) < 0.5, random.integers(0, 2, n)
    other, rank = random.random(n) < 0.5, random.integers(0, 4, n)
    dur_us = 100 + 8 * beside + 4 * step + 4 * other + 2 * (rank == 0) + random.normal(0, 2, n)
    found = shares(instances(dur_us, beside, rank=rank, other_share=other * 0.5, step=step))
    parts = {"overlap": 16, "step": 4, "other_kernels": 4, "rank": 0.75, "unexplained": 4}
    whole = sum(parts.values())
    for name, part in parts.items():
        assert found[f"{name}_share"] == pytest.approx(part / whole, abs=0.02), name
    assert math.isnan(found["clocks_share"])
    assert found["overlap_unique"] == pytest.approx(found["overlap_share"], abs=0.02)
    assert found["verdict"].split(", ")[0].endswith("a collective beside it")


def test_a_sampled_clock_is_a_factor_of_its_own():
    random = np.random.default_rng(5)
    n = 4000
    beside, rank = random.random(n) < 0.5, random.integers(0, 4, n)
    clock = random.choice([1980.0, 1400.0], n)
    dur_us = 100 + 4 * beside + 12 * (clock < 1500) + random.normal(0, 2, n)
    rows = instances(dur_us, beside, rank=rank).assign(clock_mhz=clock)
    found = shares(rows)
    assert found["clocks_share"] == pytest.approx(36 / 44, abs=0.02)
    assert "the clock of its GPU" in found["verdict"]
    rows.loc[0, "clock_mhz"] = np.nan
    assert math.isnan(shares(rows)["clocks_share"])


def test_a_clock_that_never_moved_explains_nothing():
    random = np.random.default_rng(6)
    rows = instances(100 + random.normal(0, 1, 200), random.random(200) < 0.5).assign(clock_mhz=1980.0)
    assert shares(rows)["clocks_share"] == pytest.approx(0, abs=1e-9)


def test_factors_that_go_together_share_and_are_said_not_to_be_told_apart():
    random = np.random.default_rng(4)
    rank = np.repeat(np.arange(4), 100)
    beside = rank > 0  # rank 0 never overlaps, the others always do
    found = shares(instances(100 + 50 * beside + random.normal(0, 1, 400), beside, rank=rank))
    assert found["overlap_share"] == pytest.approx(found["rank_share"], abs=0.01)
    assert found["overlap_unique"] == pytest.approx(0, abs=0.01) and found["shared_share"] > 0.9
    assert "overlap and rank cannot be told apart" in found["verdict"]


def test_too_few_instances_have_no_shares():
    found = shares(instances(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]), rank=np.arange(3)))
    assert math.isnan(found["overlap_share"]) and "too few" in found["verdict"]


# Overlap, rank, other kernels, step in %; unique overlap and rank; shared; beta and cells with both kinds.
GOLDEN = {
    (256, 28): ((49.4, 46.4, 3.3, 0.0), (2.3, 0.1), 94.1, 1.64, 42),
    (256, 42): ((73.8, 18.2, 2.0, 0.8), (54.2, 0.3), 36.4, 1.69, 97),
    (512, 28): ((63.5, 31.4, 2.1, 1.8), (29.8, 0.1), 63.8, 1.64, 85),
    (512, 42): ((48.7, 46.7, 3.5, 0.0), (1.4, 0.1), 95.3, 1.60, 44),
}


@pytest.mark.data
def test_the_h200_sweep_gives_its_golden_shares_and_slowdowns_within_cells(shared_data):
    data = read_sweep(shared_data / "sweep_h200", workers=2)
    found = {knobs[:2]: one for knobs, one in pooled_by_setting(data).items()}
    assert set(found) == set(GOLDEN)
    for setting, (shared, unique, both, ratio, cells) in GOLDEN.items():
        one = found[setting]
        assert [100 * one.shares.share[name] for name in FACTORS] == pytest.approx(shared, abs=0.8)
        assert [100 * one.shares.unique[name] for name in FACTORS[:2]] == pytest.approx(unique, abs=1.0)
        assert 100 * one.shares.shared == pytest.approx(both, abs=0.2)
        assert one.effect.ratio == pytest.approx(ratio, abs=0.01)  # the sheet leaves fills out
        assert (one.effect.cells, one.effect.num_cells) == (cells, 208)
        assert one.effect.low < one.effect.ratio < one.effect.high
        assert one.shares.low["overlap"] < one.shares.share["overlap"] < one.shares.high["overlap"]
    assert "cannot be told apart" in in_words(found[256, 28])
    assert "cannot be told apart" not in in_words(found[256, 42])
