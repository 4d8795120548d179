"""Sheets and instances of single traces, against TraceLens' tables, plain loops and known traces."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import MissingError
from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm import families
from lab.rooms.sweep.gemm.columns import NO_LAUNCH
from lab.rooms.sweep.gemm.data import read_sweep
from lab.rooms.sweep.gemm.instances import gemm_table
from lab.rooms.sweep.gemm.naming import report_name
from lab.rooms.sweep.gemm.sheets.collectives import coll_analysis
from lab.rooms.sweep.gemm.sheets.gemms import gemm_sheet
from lab.rooms.sweep.gemm.sheets.launches import launches, parents
from lab.rooms.sweep.gemm.sheets.workbook import perf_sheets
from tests.conftest import SHARED
from tests.rooms.sweep.gemm.recorded import read, write_rank, write_sweep
from tests.tracegen import TraceWriter

MI300 = SHARED / "rocm"
REFERENCE = MI300 / "mi300_qwen1.5_0.5b_reference"
# TraceLens identifies an op by its index among all events, lab by its External id.
NOT_COMPARED = ("UID_first", "ex_UID")


@cache
def mi300() -> dict[str, pd.DataFrame]:
    found = launches(read_kineto(MI300 / "mi300_qwen1.5_0.5b.json.gz"))
    collectives = views.collective_instances(found.trace)
    groups = gemm_sheet(found, gemm_table(found, collectives))
    return perf_sheets(found, groups, coll_analysis(collectives, 0))


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    [
        "gpu_timeline",
        "ops_summary_by_category",
        "ops_summary",
        "ops_unique_args",
        "GEMM",
        "kernel_summary",
        "short_kernel_histogram",
        "short_kernels_summary",
    ],
)
def test_every_sheet_of_the_mi300_trace_agrees_with_tracelens_row_by_row(name):
    reference, ours = pd.read_csv(REFERENCE / f"{name}.csv"), mi300()[name]
    assert list(ours)[: reference.shape[1]] == list(reference)
    assert len(ours) == len(reference)
    numbers = [c for c in reference if pd.api.types.is_numeric_dtype(reference[c]) and c not in NOT_COMPARED]
    texts = [c for c in reference if c not in numbers and c not in NOT_COMPARED and "details" not in c]
    order = [*texts, *numbers[:1]]
    ours, reference = (
        frame.assign(**{c: frame[c].fillna("").astype(str) for c in texts}).sort_values(order, kind="stable")
        for frame in (ours[list(reference)], reference)
    )
    for column in texts:
        assert ours[column].tolist() == reference[column].tolist()
    for column in (c for c in numbers if "Cumulative" not in c):
        assert ours[column].to_numpy(float) == pytest.approx(
            reference[column].to_numpy(float), rel=1e-3, abs=1e-5, nan_ok=True
        )


@pytest.mark.data
def test_the_difference_to_tracelens_timeline_is_the_kernels_launched_before_the_window():
    timeline, kernels = mi300()["gpu_timeline"].set_index("type"), mi300()["kernel_summary"]
    unlinked = kernels[kernels["Parent cpu_op"] == ""]
    assert unlinked["Kernel duration (µs)_count"].sum() == 463
    more_ms = (timeline["time ms (all kernels)"] - timeline["time ms"])["computation_time"]
    assert more_ms == pytest.approx(unlinked["Kernel duration (µs)_sum"].sum() / 1000, rel=1e-6)
    assert unlinked.loc[unlinked["family"] != "", "Kernel duration (µs)_count"].sum() == 74


@pytest.mark.data
def test_gemm_kernels_launched_before_the_window_are_instances_without_a_shape():
    found = launches(read_kineto(MI300 / "mi300_qwen1.5_0.5b.json.gz"))
    table = gemm_table(found, views.collective_instances(found.trace))
    lost = table.where(table.op == NO_LAUNCH)
    assert len(lost) == 74 and set(lost.M.tolist()) == {-1} and set(lost.family.tolist()) == {"hipBLASLt"}
    assert len(table) == 74 + 169


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "nvjet"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT128x224x64", "hipBLASLt"),
        ("Cijk_Alik_Bljk_SB_MT64x64x16", "Tensile"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_tn>", "cutlass"),
        ("ampere_sgemm_128x64_tn", "cuBLAS"),
        ("void gemv2T_kernel_val<int, int, float>", "cuBLAS"),
        ("triton_tem_fused_mm_3", "Triton"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", ""),
        ("void at::native::vectorized_elementwise_kernel<4>", ""),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", ""),
        ("void cutlass::fmha_cutlassF_f16_aligned_64x64_rf_sm80", ""),
    ],
)
def test_gemm_families_are_told_by_their_kernel(kernel, family):
    assert families.family(kernel) == family


NESTED = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12
)


@given(NESTED)
def test_the_parent_is_the_op_around_that_began_last_on_the_same_thread(rows):
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    rows = [row for i, row in enumerate(rows) if not any(_crosses(row, other) for other in rows[:i])]
    tid, start, dur = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    ops = Table({"pid": np.zeros_like(tid), "tid": tid, "ts_ns": start, "dur_ns": dur})
    for row, parent in enumerate(parents(ops).tolist()):
        around = [
            i
            for i in range(row)
            if tid[i] == tid[row] and start[i] <= start[row] and start[i] + dur[i] >= start[row] + dur[row]
        ]
        assert parent == max(around, default=-1)


def _crosses(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    if one[0] != other[0]:
        return False
    (a, b), (c, d) = ((start, start + dur) for _, start, dur in (one, other))
    return a < c < b < d or c < a < d < b


def test_a_subtree_holds_the_kernels_of_the_ops_inside_once(tmp_path):
    writer = TraceWriter()
    outer = writer.op("outer", 0, 100)
    inner = writer.op("inner", 10, 20)
    writer.op("silent", 40, 50)
    deep = writer.op("deep", 50, 10)
    for op, start in ((outer, 200), (inner, 205), (deep, 300)):
        writer.kernel("k", start, 10, op=op)
    found = launches(read_kineto(writer.write(tmp_path / "t.json")))
    names = found.trace.text(found.ops.name_id).tolist()
    assert dict(zip(names, found.direct_us.tolist(), strict=True)) == {"outer": 10, "inner": 10, "deep": 10}
    assert dict(zip(names, found.subtree_us.tolist(), strict=True)) == {"outer": 25, "inner": 10, "deep": 10}


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
    data = read_sweep(one, cache=None, workers=1, workbooks=tmp_path / "out")
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


def test_two_workers_read_the_same_as_one(tmp_path):
    root = write_sweep(tmp_path, threads=(256,))
    two = read_sweep(root, cache=tmp_path / "cache", workers=2)
    pd.testing.assert_frame_equal(two.gemm, read(root).gemm)


def test_report_names_leave_out_what_nobody_said():
    assert report_name("individual", (256, 28, 1), "rank0") == Path(
        "256thread/individual_reports/perf_28ch_rank0.xlsx"
    )
    assert report_name("collective", (0, 0, 2), "") == Path("collective_reports/collective_repeat2.xlsx")
