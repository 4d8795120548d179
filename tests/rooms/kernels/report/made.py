"""A replay's result, every figure known."""

from __future__ import annotations

import msgspec

from lab.rooms.kernels.replay.proof.result import Coverage, ForwardClosure, Row
from lab.rooms.kernels.replay.proof.result import Result as ReplayResult


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
