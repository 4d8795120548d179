"""Audits of a replay run."""

from __future__ import annotations

import msgspec

from lab.perfmodel.products import product_work
from lab.rooms.kernels.audit.check import OK, REFUSED
from lab.rooms.kernels.audit.replays import call_of, of_replay
from lab.rooms.kernels.replay.args import Arg, Signature, TensorArg
from lab.rooms.kernels.replay.proof.evaluate import evaluate
from tests.rooms.kernels.replay.made import GEMM, REDUCE, a_plan, a_raw


def test_an_impossible_gemm_is_refused():
    shape = TensorArg(dtype="float16", shape=(1000, 1000), stride=(1000, 1))
    call = Signature(
        sig_id="a",
        op="aten::mm",
        overload="",
        args=(Arg(name="self", tensor=shape), Arg(name="mat2", tensor=shape)),
        launches=(GEMM, REDUCE),
    )
    assert product_work(call_of(call)).flops == 2e9
    plan = a_plan()
    plan.signatures = (call, plan.signatures[1])
    checks = {check.name: check for check in of_replay(evaluate(plan, a_raw()), plan)}
    assert checks["TFLOP/s below the board's peak"].verdict == OK
    fast = a_raw()
    fast.calls = tuple(
        msgspec.structs.replace(one, dur_us=tuple(tuple(us / 100 for us in row) for row in one.dur_us))
        for one in fast.calls
    )
    checks = {check.name: check for check in of_replay(evaluate(plan, fast), plan)}
    assert checks["TFLOP/s below the board's peak"].verdict == REFUSED


def test_a_replay_on_another_gpu_is_refused():
    raw = a_raw()
    raw.device_name = "NVIDIA A100"
    plan = a_plan()
    assert of_replay(evaluate(plan, raw), plan)[0].verdict == REFUSED
