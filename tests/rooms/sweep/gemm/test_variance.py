"""Which GEMMs vary most, and which instance was the extreme one."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.errors import MissingError
from lab.rooms.sweep.gemm import variance as rules
from lab.rooms.sweep.gemm.data import read_sweep
from lab.rooms.sweep.gemm.variance import FIRST, OURS, STAMPS, groups, write_variance
from tests.rooms.sweep.gemm.recorded import read, two_shapes, write_sweep
from tests.tracegen import BASE_NS, TraceWriter


def test_the_known_columns_come_first_then_the_sheets_sorted_then_ours(tmp_path):
    report = write_variance(read(two_shapes(tmp_path)), tmp_path / "out")
    names = list(pd.read_csv(report.files[0]))
    assert report.files[0].name == "top5_gemm_kernels_time_variance.csv"
    of_sheet = [name for name in names if name.startswith("col_")]
    assert names[: len(FIRST)] == FIRST and of_sheet == sorted(of_sheet)
    assert names[len(FIRST) : len(FIRST) + len(of_sheet)] == of_sheet
    assert names[len(FIRST) + len(of_sheet) :][: len(OURS)] == OURS
    assert {"col_param: M", "col_Kernel Time (µs)_max", "col_name_count"} <= set(of_sheet)


def test_the_extreme_instance_is_known_exactly(tmp_path):
    root = two_shapes(tmp_path)
    row = groups(read(root)).set_index("M").loc[8]
    assert (row["step"], row["max_ts_ns"] - BASE_NS) == (2, 22_400_000)
    stamped = pd.read_csv(write_variance(read(root), tmp_path / "out").files[1])
    assert list(stamped)[-len(STAMPS) :] == STAMPS
    first = stamped.iloc[0]
    assert (first["max_duration_timestamp_ms"], first["max_duration_found_us"]) == (22.4, 90)
    assert first["time_between_min_max_ms"] == pytest.approx(22.4 - first["min_duration_timestamp_ms"])


def test_the_list_holds_k_rows_a_trace_from_the_largest_difference_down(tmp_path):
    root = two_shapes(write_sweep(tmp_path))  # takes rank 0 of 256 threads
    top = pd.read_csv(write_variance(read(root), tmp_path / "out", top_k=1).files[0])
    assert len(top) == 4 and top["time_diff_us"].is_monotonic_decreasing
    assert top.loc[0, ["threads", "rank", "M"]].tolist() == [256, 0, 8]


def test_a_gemm_that_ran_once_varies_not_at_all(tmp_path):
    writer = TraceWriter()
    writer.gemm(4, 4, 4, 100, 10)
    writer.write(tmp_path / "rank0/t.json")
    table = groups(read(tmp_path))
    assert len(table) == 1 and rules.top_rows(table, 5).empty
    report = write_variance(read(tmp_path), tmp_path / "out")
    assert pd.read_csv(report.files[0]).empty and report.findings == []


def test_a_trace_without_shapes_says_what_to_record(tmp_path):
    writer = TraceWriter(vendor="amd")
    writer.kernel("Cijk_Ailk_MT16", 10, 5)
    writer.write(tmp_path / "rank0/t.json")
    with pytest.raises(MissingError, match="no GEMM in these traces"):
        write_variance(read(tmp_path), tmp_path / "out")


def test_every_instance_is_kept(tmp_path):
    report = write_variance(read(two_shapes(tmp_path)), tmp_path / "out")
    kept = pd.read_parquet(report.files[4])
    assert len(kept) == 16 and kept["correlation"].is_unique


@pytest.mark.data
def test_the_h200_list_is_read_by_header_and_finds_its_instances(shared_data):
    data = read_sweep(shared_data / "sweep_h200", workers=2)
    top = rules.top_rows(groups(data), 5)
    assert len(top) == 5 * 32 and top["time_diff_us"].is_monotonic_decreasing
    assert (top["n"] == top["col_name_count"]).all()
    assert top["kernel_time_max_us"].tolist() == pytest.approx(top["col_Kernel Time (µs)_max"].tolist())
    key = ["threads", "channel", "rank", "correlation"]
    found = top.rename(columns={"max_correlation": "correlation"}).merge(data.gemm, on=key)
    assert len(found) == len(top)
    assert (found["dur_ns"] / 1000).tolist() == pytest.approx(found["kernel_time_max_us"].tolist())


def test_shapes_are_told_apart_though_their_kernels_have_one_name(tmp_path):
    table = groups(read(two_shapes(tmp_path))).set_index("M")
    assert table["time_diff_us"].to_dict() == {4: 3.0, 8: 60.0}
    assert table["n"].tolist() == [8, 8]
    assert (table["col_param: M"] == table.index).all() and (table["col_name_count"] == 8).all()
    assert table["col_Kernel Time (µs)_max"].tolist() == table["kernel_time_max_us"].tolist()
