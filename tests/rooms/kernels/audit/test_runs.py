"""Audits of this room's own runs."""

from __future__ import annotations

import msgspec
import pytest

from lab.perfmodel.products import product_work
from lab.rooms.kernels.audit.check import OK, REFUSED
from lab.rooms.kernels.audit.runs import call_of, of_energy, of_replay
from lab.rooms.kernels.energy.joules import evaluate as evaluate_energy
from lab.rooms.kernels.replay.args import Arg, Signature, TensorArg
from lab.rooms.kernels.replay.proof.evaluate import evaluate
from tests.rooms.kernels.energy import made as energy
from tests.rooms.kernels.replay.made import GEMM, REDUCE, a_plan, a_raw

PEAK = "TFLOP/s below the board's peak"


def verdicts(checks):
    return {check.name: check.verdict for check in checks}


def test_an_impossible_gemm_and_another_gpu_are_refused():
    shape = TensorArg(dtype="float16", shape=(1000, 1000), stride=(1000, 1))
    args = (Arg(name="self", tensor=shape), Arg(name="mat2", tensor=shape))
    call = Signature(sig_id="a", op="aten::mm", overload="", args=args, launches=(GEMM, REDUCE))
    assert product_work(call_of(call)).flops == 2e9
    plan = a_plan()
    plan.signatures = (call, plan.signatures[1])
    assert verdicts(of_replay(evaluate(plan, a_raw()), plan))[PEAK] == OK
    fast = a_raw()
    fast.calls = tuple(
        msgspec.structs.replace(run, dur_us=tuple(tuple(us / 100 for us in times) for times in run.dur_us))
        for run in fast.calls
    )
    assert verdicts(of_replay(evaluate(plan, fast), plan))[PEAK] == REFUSED
    fast.device_name = "NVIDIA Unheard-of"
    checks = of_replay(evaluate(plan, fast), plan)
    assert checks[0].verdict == REFUSED  # not the recorded GPU
    assert "no data sheet of NVIDIA Unheard-of" in checks[-1].answer


def test_an_energy_run_is_audited_with_every_factor():
    raw = energy.a_raw()
    closure = {check.name: check for check in of_energy(evaluate_energy(energy.a_plan(), raw))}["closure"]
    assert closure.factors["idle_w"] == 100.0
    raw.facts_before = {"power_limit_w": 100.0}
    refused = of_energy(evaluate_energy(energy.a_plan(), raw))
    assert any(check.verdict == REFUSED and "limit" in check.answer for check in refused)


@pytest.mark.parametrize(("joules", "verdict"), [(592.5, OK), (590.0, REFUSED), (540.0, REFUSED)])
def test_a_closure_beyond_ten_percent_is_refused_net_of_idle_too(joules, verdict):
    window = energy.a_window(joules)
    raw = energy.a_raw(model=[msgspec.structs.replace(energy.a_raw().model[0], window=window)])
    assert verdicts(of_energy(evaluate_energy(energy.a_plan(), raw)))["closure"] == verdict
