"""The tables of effects and causes over whole sweeps, and published medians."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.rooms.sweep.gemm.reading.data import read_sweep
from lab.rooms.sweep.gemm.variance.cause import EFFECT, effect_table, write_causes
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
