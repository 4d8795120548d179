"""The reports over ranks and settings: names as TraceLens' users know them, figures as published."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.errors import BadDataError
from lab.rooms.sweep.gemm.data import read_sweep
from lab.rooms.sweep.gemm.steps import write_reports
from lab.rooms.sweep.gemm.variance import groups
from tests.rooms.sweep.gemm.recorded import write_rank, write_sweep
from tests.tracegen import TraceWriter, cpu_step

PG = ["Process Group Name", "Process Group Ranks", "Collective name", "Group size", "dtype"]
BANDWIDTHS = ["comm_latency", "skew in start time", "skew in end time", "algo bw (GB/s)", "bus bw (GB/s)"]
# The leading columns of TraceLens' sheets, in order; those of single ranks are held against its own tables.
COLL_ANALYSIS = [
    "rank",
    *PG,
    *("In msg nelems", "Out msg nelems", "In split size", "Out split size", "stream"),
    *("In msg size (MB)_first", "Out msg size (MB)_first"),
    *("dur_sum", "dur_mean", "dur_std", "dur_min", "dur_max", "operation_count"),
]
RANKS = [f"rank_{rank}_{name}" for rank in (0, 1) for name in ("ts", "dur")]
COLLECTIVE = {
    "nccl_summary_long": [*COLL_ANALYSIS, "node_id", "node_span"],
    "nccl_long": [
        *("collective_id", "index_in_group", "rank", *PG),
        *("In msg nelems", "In msg size (MB)", "Out msg nelems", "Out msg size (MB)"),
        *("In split size", "Out split size", "stream", "ts", "dur", "node_id", "node_span"),
    ],
    "nccl_implicit_sync": [
        *("collective_id", *PG, "In msg nelems", "Out msg nelems", "In msg size (MB)", "Out msg size (MB)"),
        *("Full msg size (MB)", "comm_latency", "skew in start time", "earliest arrival rank"),
        *("avg_wait_time", "skew in end time", "algo bw (GB/s)", "bus bw (GB/s)"),
        *(*RANKS, "rank_0_wait_time", "rank_1_wait_time", "node_span"),
    ],
    "nccl_summary_implicit_sync": [
        *("Collective name", "dtype", "In msg nelems", "Process Group Name", "Group size"),
        "Full msg size (MB)",
        *(f"{what}_{how}" for what in BANDWIDTHS for how in ("mean", "median", "min", "max")),
        *("count", "Total comm latency (ms)"),
    ],
    "straggler_summary": [
        *("rank", "total_wait_time_us", "mean_wait_time_us", "times_arrived_last", "times_arrived_first"),
        *("pct_arrived_last", "num_collectives", "total_nccl_dur_us", "node_id"),
    ],
}


@pytest.fixture
def report(tmp_path):
    root = write_sweep(tmp_path / "sweep")
    out = root / "tracelens_analysis"
    return out, reported(root, out, workers=1)


def reported(sweep, out, *, workers=1):
    data = read_sweep(sweep, workers=workers, workbooks=out)
    return write_reports(data, out)


def opened(path):
    return pd.read_excel(path, sheet_name=None)


def test_workbooks_have_the_known_sheets_and_columns_first(report):
    book = opened(report[0] / "512thread/collective_reports/collective_28ch.xlsx")
    assert list(book) == list(COLLECTIVE)
    for sheet, columns in COLLECTIVE.items():
        assert list(book[sheet])[: len(columns)] == columns, sheet
    rank = opened(report[0] / "256thread/individual_reports/perf_28ch_rank1.xlsx")
    assert list(rank["coll_analysis"]) == COLL_ANALYSIS


def test_csv_files_have_the_columns_that_users_ask_for(report):
    out, found = report
    assert not found.missing and not found.problems
    for name, columns in {
        "timeline": "threads,channel,rank,computation_time_ms,exposed_comm_time_ms,exposed_memcpy_time_ms,"
        "busy_time_ms,idle_time_ms,total_time_ms,total_comm_time_ms,total_memcpy_time_ms",
        "effective": "threads,channel,rank,collective,requested_channels,effective_channels,"
        "requested_threads,effective_threads,count",
        "stragglers": "threads,channel,rank,num_collectives,times_arrived_last,pct_arrived_last,"
        "total_wait_time_us,verdict",
        "collectives": "threads,channel,collective_id",
    }.items():
        assert (out / f"{name}.csv").read_text().startswith(columns + ","), name
    assert set(found.files) == {path for path in out.rglob("*") if path.suffix in (".csv", ".xlsx")}


def test_the_late_rank_is_named_and_its_wait_is_on_the_others_rows(report):
    table = pd.read_csv(report[0] / "stragglers.csv")
    late, waits = table[table["rank"] == 1], table[table["rank"] == 0]
    assert late["times_arrived_last"].tolist() == [2, 2] and late["total_wait_time_us"].tolist() == [0, 0]
    assert waits["total_wait_time_us"].tolist() == [300, 300]
    assert late["caused_wait_time_us"].tolist() == [300, 300]
    # 0.15 ms late is below what names a straggler (0.5 ms): no word on either.
    assert table["verdict"].isna().all()


def test_bandwidth_is_bytes_over_the_shortest_time_with_nccl_tests_factor(report):
    sheet = opened(report[0] / "256thread/collective_reports/collective_28ch.xlsx")["nccl_implicit_sync"]
    assert sheet["comm_latency"].tolist() == [50, 50]
    assert sheet["algo bw (GB/s)"].tolist() == pytest.approx([4096 / 50e-6 / 1e9] * 2)
    assert sheet["bus bw (GB/s)"].tolist() == pytest.approx(sheet["algo bw (GB/s)"].tolist())  # 2 (n-1)/n


def test_comparisons_put_thread_counts_side_by_side(report):
    book = opened(report[0] / "comparisons/compare_28ch_rank0_across_threads.xlsx")
    assert list(book) == ["gpu_timeline", "ops_summary"]
    timeline = book["gpu_timeline"]
    assert {"time ms 256thread", "time ms 512thread", "time ms diff 512thread"} <= set(timeline)
    assert timeline["time ms diff 512thread"].abs().max() < 1e-9


def test_a_missing_rank_leaves_incomplete_collectives_and_is_said(tmp_path):
    write_rank(tmp_path / "256thread/nccl_28channels", 1, ranks=2)
    found = reported(tmp_path, tmp_path / "out", workers=1)
    assert any("missing ranks: 0" in text for text in found.missing)
    table = pd.read_csv(tmp_path / "out/collectives.csv")
    assert not table["complete"].any() and set(table["missing_ranks"]) == {0}
    assert pd.read_csv(tmp_path / "out/stragglers.csv")["num_collectives"].tolist() == [0]


@pytest.mark.data
def test_the_h200_sweep_gives_its_golden_stragglers(shared_data, tmp_path):
    sweep = shared_data / "sweep_h200"
    found = reported(sweep, tmp_path, workers=2)
    assert not found.missing and len(found.files) == 32 + 4 + 16 + 4
    late = pd.read_csv(tmp_path / "stragglers.csv")
    last = late[late["times_arrived_last"] > 0]
    assert {
        setting: dict(zip(rows["rank"], rows["times_arrived_last"], strict=True))
        for setting, rows in last.groupby(["threads", "channel"])
    } == {
        (256, 28): {1: 48},
        (256, 42): {2: 21, 5: 14, 7: 13},
        (512, 28): {0: 16, 5: 22, 6: 10},
        (512, 42): {0: 48},
    }
    assert last["verdict"].str.contains("its host launches late").all()
    others = late.drop(last.index).dropna(subset=["verdict"])
    assert list(zip(others["threads"], others["channel"], others["rank"], strict=True)) == [
        (512, 42, 6),
        (512, 42, 7),
    ]
    assert others["verdict"].str.contains("enters the recording late").all()
    assert others["verdict"].str.contains("costs nothing until rank 0 is repaired").all()
    skew = pd.read_csv(tmp_path / "collectives.csv").groupby(["threads", "channel"])["start_skew_us"]
    assert skew.mean().tolist() == pytest.approx([2790.6, 2270.4, 2355.4, 2634.6], abs=0.05)
    assert skew.max().tolist() == pytest.approx([6916.6, 6917.4, 6877.9, 7243.6], abs=0.05)
    sheet = opened(tmp_path / "256thread/collective_reports/collective_28ch.xlsx")[
        "nccl_summary_implicit_sync"
    ]
    sizes = sheet.set_index("Full msg size (MB)").sort_index()
    assert sizes["comm_latency_median"].iloc[-2:].tolist() == pytest.approx([286, 570], abs=0.6)
    assert sizes["algo bw (GB/s)_median"].iloc[-2:].tolist() == pytest.approx([352, 353], abs=0.6)


def test_a_recording_without_collectives_still_has_its_reports(tmp_path):
    writer = TraceWriter()
    writer.gemm(4, 4, 4, 100, 10)
    writer.write(tmp_path / "rank0/t.json")
    found = reported(tmp_path, tmp_path / "out", workers=1)
    assert not found.missing
    book = opened(tmp_path / "out/collective_reports/collective.xlsx")
    assert list(book) == list(COLLECTIVE) and all(book[name].empty for name in list(book)[:4])
    assert pd.read_csv(tmp_path / "out/collectives.csv").empty


def test_a_cpu_recording_has_reports_with_gloos_collectives(tmp_path):
    for rank in range(2):
        writer = TraceWriter(rank=rank, world_size=2, vendor="none")
        cpu_step(writer, 1, 1000 + rank)
        writer.write(tmp_path / f"256thread/nccl_28channels/torch_profiler/rank{rank}/t.json")
    found = reported(tmp_path, tmp_path / "out", workers=1)
    assert not found.missing and len(found.files) == 2 + 1 + 4
    book = opened(tmp_path / "out/256thread/individual_reports/perf_28ch_rank0.xlsx")
    assert book["GEMM"]["name"].tolist() == ["aten::mm"] and book["kernel_summary"].empty


def test_collectives_without_a_length_are_known_to_the_report(tmp_path):
    for rank in range(2):
        writer = TraceWriter(rank=rank, world_size=2)
        writer.step(1, 0, 900)
        writer.gemm(4, 4, 4, 100, 10)
        writer.all_reduce(1024, 200, 50 * rank)
        writer.write(tmp_path / f"256thread/nccl_28channels/torch_profiler/rank{rank}/t.json")
    (lack,) = reported(tmp_path, tmp_path / "out", workers=1).missing
    assert "rank 0: 1 of 1 collective is 0 ns long" in lack


def test_a_sweep_of_which_no_trace_can_be_read_is_an_error_with_the_first_reason(tmp_path):
    place = tmp_path / "256thread/nccl_28channels/torch_profiler/rank0/trace_step1.json"
    place.parent.mkdir(parents=True)
    place.write_text('{"traceEvents": [{"ph": "X"')
    with pytest.raises(BadDataError, match="none of 1 trace can be read: the trace is truncated"):
        read_sweep(tmp_path, workers=1, workbooks=tmp_path / "out")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_gemms_that_took_no_time_cost_nobody_the_report(tmp_path):
    writer = TraceWriter()
    writer.step(1, 0, 900)
    for start in (100, 200, 300):
        writer.gemm(4, 4, 4, start, 0)
    writer.gemm(4, 4, 4, 500, 10)
    writer.gemm(2**70, 4, 4, 600, 10)  # larger than any tensor: of unknown size
    writer.gemm(8, 8, 8, 700, 0)
    writer.all_reduce(1024, 490, 50)
    path = writer.write(tmp_path / "256thread/nccl_28channels/torch_profiler/rank0/trace_step9.json")
    data = read_sweep(path, workers=1, workbooks=tmp_path / "out")
    assert data.missing == [] and data.files
    assert sorted(data.gemm["M"]) == [-1, 4, 4, 4, 4, 8]
    rates = data.groups.set_index("param: M")["TFLOPS/s_median"]
    assert rates[4] == pytest.approx(2 * 4**3 / 10e-6 / 1e12) and rates[8] != rates[8]
    found = groups(data)
    found = found[found["M"] == 4]
    assert found["n"].tolist() == [4] and found["free_median_us"].tolist() == [0]
    assert found["overlapped_median_us"].tolist() == [10] and found["slowdown"].isna().all()
