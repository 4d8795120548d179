"""A sweep in memory: whole, in parts, broken, and read by several processes."""

from __future__ import annotations

import pytest

from lab.errors import MissingError
from lab.rooms.sweep.gemm.data import read_sweep
from tests.rooms.sweep.gemm.recorded import read, write_rank, write_sweep
from tests.tracegen import TraceWriter


def test_a_broken_trace_and_a_missing_rank_are_named_and_the_rest_is_analysed(tmp_path):
    write_sweep(tmp_path, ranks=3)
    folder = tmp_path / "256thread/nccl_28channels/torch_profiler"
    (folder / "rank2/trace_step6.json.gz").write_bytes(b"\x1f\x8bbroken")
    found = read(tmp_path)
    assert len(found.missing) == 1 and "256 threads, 28 channels" in found.missing[0]
    assert "missing ranks: 2" in found.missing[0] and any("rank 2" in text for text in found.problems)
    counts = found.gemm.groupby(["threads", "rank"]).size()
    assert counts.to_dict() == {(256, 0): 6, (256, 1): 6, (512, 0): 6, (512, 1): 6, (512, 2): 6}


def test_one_trace_and_a_folder_of_ranks_can_be_read_too(tmp_path):
    one = write_rank(tmp_path / "a", 3, ranks=4)
    data = read_sweep(one, workers=1, workbooks=tmp_path / "out")
    assert set(data.gemm["rank"]) == {3} and data.files == [
        tmp_path / "out/individual_reports/perf_rank3.xlsx"
    ]
    assert len(read(tmp_path / "a" / "torch_profiler").gemm) == 6
    with pytest.raises(MissingError):
        read(tmp_path / "nowhere")


def test_a_cpu_sweep_has_instances_and_no_collective_without_gloo(tmp_path):
    from tests.tracegen import cpu_step

    writer = TraceWriter(world_size=2, vendor="none")
    cpu_step(writer, 1, 1000)
    writer.write(tmp_path / "rank0" / "t.json")
    found = read(tmp_path)
    row = found.gemm.iloc[0]
    assert (len(found.gemm), row["op"], row["overlap"], row["comm_ns"]) == (1, "aten::mm", "partial", 2000)
    assert len(found.groups) == 1
