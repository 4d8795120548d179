"""The tables of effects and causes over whole sweeps, and published medians."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from lab.rooms.sweep.gemm.beside import BY_BLOCK, BY_RANK, EFFECT, effect, effect_table, write_causes
from lab.rooms.sweep.gemm.data import read_sweep
from tests.rooms.sweep.gemm.made import instances
from tests.rooms.sweep.gemm.recorded import read, write_sweep


def test_the_files_hold_every_gemm_of_every_configuration(tmp_path):
    root = write_sweep(tmp_path)
    report = write_causes(read(root), tmp_path / "out")
    assert [path.name for path in report.files] == [
        "gemm_overlap_effect.csv",
        "gemm_overlap_slowdown.png",
    ]
    table = pd.read_csv(report.files[0])
    assert list(table) == EFFECT and table["threads"].tolist() == [256, 512]
    assert table["slowdown"].tolist() == pytest.approx([20 / 10.55] * 2, rel=0.01)
    assert table["same_rank_n"].tolist() == [1, 1]


def test_a_sweep_without_a_collective_has_rows_and_says_so(tmp_path):
    from tests.tracegen import TraceWriter

    writer = TraceWriter()
    for i in range(4):
        writer.gemm(4, 4, 4, 100 * i + 10, 10 + i)
    writer.write(tmp_path / "rank0/t.json")
    effects = effect_table(read(tmp_path))
    assert effects["note"].tolist() == ["no collective ever ran beside it"]


# Free -> overlapped medians in us, fills included, instances of each, of 256 threads 28 channels, all ranks.
GOLDEN = {
    (4096, 2048, 8192, "(8192, 1) (1, 8192)"): (165.1, 308.3, 12, 84),
    (4096, 8192, 2048, "(2048, 1) (1, 2048)"): (180.897, 227.6, 12, 84),
}


@pytest.mark.data
def test_the_h200_sweep_gives_its_golden_slowdowns(shared_data):
    effects = effect_table(read_sweep(shared_data / "sweep_h200", workers=2))
    table = effects[(effects["threads"] == 256) & (effects["channel"] == 28)]
    table = table.set_index(["M", "N", "K", "strides"])
    for shape, (free_us, beside_us, free_n, beside_n) in GOLDEN.items():
        row = table.loc[shape]
        assert row["free_median_us"] == pytest.approx(free_us, abs=0.051)
        assert row["overlapped_median_us"] == pytest.approx(beside_us, abs=0.051)
        assert (row["free_n"], row["overlapped_n"]) == (free_n, beside_n)
    at_42 = effects[(effects["threads"] == 256) & (effects["channel"] == 42)].set_index(
        ["M", "N", "K", "strides"]
    )
    row = at_42.loc[(4096, 8192, 2048, "(2048, 1) (1, 2048)")]
    assert (row["free_median_us"], row["overlapped_median_us"]) == pytest.approx((178.5, 262.0), abs=0.1)
    assert effects["ci_low"].min() > 1


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
