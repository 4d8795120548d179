"""What ran beside a GEMM: which collective, and whether it was waiting or moving data."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.rooms.sweep.gemm.beside import CONTROL, OVERLAP
from lab.rooms.sweep.gemm.variance import write_variance
from tests.rooms.sweep.gemm.recorded import read, write_sweep
from tests.tracegen import TraceWriter


def test_the_longest_instance_was_overlapped_and_the_shortest_was_not(tmp_path):
    report = write_variance(read(write_sweep(tmp_path)), tmp_path / "out")
    assert report.files[2].name == "top5_gemm_kernels_time_variance_with_collective_overlap.csv"
    table = pd.read_csv(report.files[2])
    assert list(table)[-len(OVERLAP + CONTROL) :] == [*OVERLAP, *CONTROL]
    row = table[table["rank"] == 0].iloc[0]
    assert row[OVERLAP].tolist() == [1, "allreduce", 100.0, "allreduce", pytest.approx(0.02)]
    assert row["min_instance_overlap_percentage"] == 0
    # Rank 0 enters at 200 and waits for rank 1 until 350: its GEMMs at 220 and 300 run beside the waiting.
    assert row[["waiting_percentage", "transfer_percentage"]].tolist() == [100, 0]
    alone = table[table["rank"] == 1].iloc[0]
    assert alone[["overlapping_collective_count", "max_overlap_percentage"]].tolist() == [0, 0]


def test_several_collectives_count_once_where_they_overlap_each_other(tmp_path):
    writer = TraceWriter()
    writer.gemm(4, 4, 4, 50, 5)
    writer.gemm(4, 4, 4, 100, 100)
    writer.all_reduce(1024, 90, 60)
    writer.all_reduce(2048, 140, 30)
    writer.write(tmp_path / "rank0/t.json")
    row = pd.read_csv(write_variance(read(tmp_path), tmp_path / "out").files[2]).iloc[0]
    assert row["overlapping_collective_names"] == "allreduce;allreduce"
    assert (row["max_overlap_percentage"], row["total_overlap_duration_ms"]) == (50, pytest.approx(0.07))
