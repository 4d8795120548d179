"""Every executed GEMM, with what ran beside it."""

from __future__ import annotations

import pytest

from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.rooms.sweep.gemm.rank import gemm_table
from lab.rooms.sweep.gemm.sheets.launches import launches
from lab.rooms.sweep.tables import NO_LAUNCH
from tests.conftest import SHARED
from tests.rooms.sweep.gemm.recorded import read, write_rank
from tests.tracegen import TraceWriter

MI300 = SHARED / "rocm"


@pytest.mark.data
def test_gemm_kernels_launched_before_the_window_are_instances_without_a_shape():
    found = launches(read_kineto(MI300 / "mi300_qwen1.5_0.5b.json.gz"))
    table = gemm_table(found, views.collective_instances(found.trace))
    lost = table.where(table.op == NO_LAUNCH)
    assert len(lost) == 74 and set(lost.M.tolist()) == {-1} and set(lost.family.tolist()) == {"hipBLASLt"}
    assert len(table) == 74 + 169


def test_instances_say_what_ran_beside_them(tmp_path):
    write_rank(tmp_path, 0)
    gemm = read(tmp_path).gemm
    assert gemm["overlap"].tolist() == ["free", "full", "full"] * 2
    assert gemm["dur_ns"].tolist() == [10_500, 20_000, 20_000, 10_600, 20_000, 20_000]
    assert gemm["cold"].tolist() == [True] * 3 + [False] * 3
    assert not gemm["unfinished"].any() and not gemm["other_ns"].any()


def test_a_kernel_on_another_stream_and_a_short_overlap_are_seen(tmp_path):
    writer = TraceWriter()
    writer.gemm(64, 32, 128, 100, 40)
    writer.kernel("other", 120, 50, stream=9)
    writer.all_reduce(1024, 130, 100)
    writer.write(tmp_path / "rank0" / "t.json")
    row = read(tmp_path).gemm.iloc[0]
    assert (row["other_ns"], row["comm_ns"], row["overlap"]) == (20_000, 10_000, "partial")
    assert row["comm_share"] == pytest.approx(0.25)


def test_a_last_step_with_fewer_gemms_is_unfinished(tmp_path):
    writer = TraceWriter()
    for number, count in ((1, 4), (2, 4), (3, 1)):
        writer.step(number, 1000 * number, 900)
        for i in range(count):
            writer.gemm(4, 4, 4, 1000 * number + 100 * i + 20, 10)
    writer.write(tmp_path / "rank0" / "t.json")
    gemm = read(tmp_path).gemm
    assert gemm["unfinished"].tolist() == [False] * 8 + [True]
