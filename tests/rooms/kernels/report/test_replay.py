"""The replay section."""

from __future__ import annotations

import msgspec

from lab.rooms.kernels.replay.proof.rows import OP_ONLY, Coverage, ForwardClosure, Row
from lab.rooms.kernels.replay.proof.rows import Result as ReplayResult
from lab.rooms.kernels.report.sections import replay_section


def test_the_replay_section_tells_same_kernels_from_others():
    (section,) = replay_section(replayed())
    chart = next(block for block in section.blocks if block.kind == "chart")
    assert [series.name for series in chart.series] == [
        "same kernel",
        "other kernel or none",
    ] and chart.diagonal


def test_an_op_replay_on_a_cpu_shows_no_share_of_same_kernels_and_no_sums():
    one = replayed()
    one.device, one.device_name = "cpu", "x86_64"
    one.rows = [msgspec.structs.replace(row, same_kernel=OP_ONLY, err_pct=None) for row in one.rows]
    one.closure[0].compared_us = one.closure[0].replay_sum_us = 0.0
    (section,) = replay_section(one)
    tables = [block for block in section.blocks if block.kind == "table"]
    assert section.title == "Op replay"
    assert [table.caption for table in tables] == ["Coverage"]
    assert tables[0].frame["same_kernel"].tolist() == ["not looked at (CPU)"]
    assert "same_of_time_percent" not in tables[0].frame
    charts = [block for block in section.blocks if block.kind == "chart"]
    assert [[series.name for series in chart.series] for chart in charts] == [["op on the CPU, no kernel"]]


def replayed() -> ReplayResult:
    row = Row(
        sig_id="a",
        position=0,
        op="aten::mm",
        overload="",
        kernel="nvjet_gemm",
        class_="gemm",
        kind="kernel",
        mode="in-order",
        count=2,
        trace_sum_us=20.0,
        trace_median_us=10.0,
        time_share=0.5,
        n_ran=20,
        us={"median": 10.2, "ci": [10.0, 10.4]},
        same_kernel="exact",
        err_pct=2.0,
        arg_src="recorded",
        origin="execution_trace",
        launched="",
        flags=[],
        name="nvjet_gemm",
    )
    other = msgspec.structs.replace(
        row, sig_id="b", same_kernel="other kernel", us={"median": 30.0, "ci": [29.0, 31.0]}
    )
    coverage = Coverage(
        launches=4, rebuilt_launches=4, same_launches=2, time_us=40.0, rebuilt_time_us=40.0, same_time_us=20.0
    )
    closure = ForwardClosure(
        name="prefill",
        phase="prefill",
        wall_us=100.0,
        busy_us=40.0,
        trace_sum_us=40.0,
        compared_us=20.0,
        replay_sum_us=20.4,
    )
    return ReplayResult(
        mode="in-order",
        repeats=10,
        device="cuda",
        device_name="H200",
        trace_device_name="H200",
        same_gpu=True,
        coverage={"kernel": coverage},
        error={"median": 2.0},
        closure=[closure],
        rows=[row, other],
        uncovered=[],
        sources={},
        versions={},
        notes=["a note"],
        bars={"98 % of time": False, "closure": True},
    )
