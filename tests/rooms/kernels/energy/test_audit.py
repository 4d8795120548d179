"""Numbers that cannot be are refused by name; sound ones pass."""

from __future__ import annotations

import json

import msgspec
import pytest

from lab.errors import BadDataError, MissingError
from lab.rooms.kernels.energy.audit import (
    OK,
    REFUSED,
    audit,
    closure_of_time,
    dispatch_floor,
    flop,
    forwards_in_counts,
    is_runtime_call,
    iterations_match,
    no_runtime_calls,
    of_energy,
    of_energy_report,
    of_power_log,
    of_replay,
    readable_by_others,
)
from lab.rooms.kernels.energy.joules import judge as judge_energy
from lab.rooms.kernels.replay.args import Arg, Signature, TensorArg
from lab.rooms.kernels.replay.proof import judge as judge_replay
from tests.rooms.kernels.energy import test_joules as test_energy
from tests.rooms.kernels.replay import test_proof as test_replay


def a_row(single_us=4.0, runs=100_000, window_s=0.4, count=1, tier=3, name="k"):
    return {
        "name": name,
        "single_time_us": single_us,
        "benchmark_runs": runs,
        "invocation_count": count,
        "tier": tier,
        "start_timestamp": "2026-02-06 18:32:35.000000",
        "end_timestamp": f"2026-02-06 18:32:35.{int(window_s * 1e6):06d}",
    }


def test_a_window_that_is_too_short_for_its_runs_is_refused_with_the_factor():
    good = iterations_match([a_row()])
    bad = iterations_match([a_row(), a_row(runs=5_000_000)])
    assert good.verdict == OK
    assert (bad.verdict, bad.factors) == (REFUSED, {"rows": 1, "factor": 50})


def test_many_equal_times_are_the_hosts_dispatch():
    floor = dispatch_floor([a_row(4.0 + 0.001 * i) for i in range(8)] + [a_row(7.0)])
    spread = dispatch_floor([a_row(2.5 * 1.3**i) for i in range(8)])
    assert floor[0].verdict == REFUSED and floor[0].factors["alike"] == 8
    assert spread[0].verdict == OK


@pytest.mark.parametrize(
    ("name", "is_call"),
    [
        ("cudaLaunchKernel", True),
        ("hipMemcpyAsync", True),
        ("cuLaunchKernel", True),
        ("cutlass::Kernel2<x>", False),
        ("void cunn_SoftMaxForward<4>", False),
        ("Memcpy DtoD (Device -> Device)", False),
    ],
)
def test_runtime_calls_are_told_from_kernels(name, is_call):
    assert is_runtime_call(name) is is_call


def test_runtime_calls_among_counts_are_refused():
    check = no_runtime_calls([("cudaLaunchKernel", 60), ("void gemv<1>", 40)])
    assert (check.verdict, check.factors["launches"]) == (REFUSED, 40)
    assert no_runtime_calls([("void gemv<1>", 40)]).verdict == OK


def test_forwards_are_counted_by_the_norms():
    assert (
        forwards_in_counts([("layer_norm_kernel<Half>", 50), ("layer_norm_kernel<Half>", 1200), ("gemm", 7)])
        == 25
    )
    assert forwards_in_counts([("layer_norm_kernel<Half>", 50)]) == 1
    assert forwards_in_counts([("gemm", 7)]) == 1


def test_two_faults_that_cancel_are_both_shown():
    check = closure_of_time([a_row(100.0, count=50)], 25, 5000.0)
    assert check.factors["published_pct"] == 0.0
    assert check.factors["per_forward_pct"] == -96.0
    assert check.verdict == REFUSED


def test_quotes_escaped_by_a_backslash_are_no_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('name,json\nk,"{\\"a\\":1}"\n')
    assert readable_by_others(path).verdict == REFUSED
    path.write_text('name,json\nk,"{""a"":1}"\n')
    assert readable_by_others(path).verdict == OK


def test_one_sample_and_zero_joules_are_refused():
    report = {
        "num_power_samples": 1,
        "energy_joules": {"total": 0.0},
        "power_watts": {"min": 101.0, "peak": 101.0},
    }
    assert [check.verdict for check in of_energy_report("r", report, None)] == [REFUSED, REFUSED, REFUSED]
    good = {
        "num_power_samples": 90,
        "energy_joules": {"total": 10.0},
        "power_watts": {"min": 90.0, "peak": 101.0},
    }
    assert [check.verdict for check in of_energy_report("r", good, 250.0)] == [OK]
    assert of_energy_report("r", good, 80.0)[-1].verdict == REFUSED


def test_a_power_log_with_no_readings_or_of_another_hour_is_refused(tmp_path):
    path = tmp_path / "power.csv"
    path.write_text(
        "timestamp,gpu,power_w\n"
        + "".join(f"2026-02-06 17:00:0{i}.0,0,{w}\n" for i, w in enumerate(("0", "N/A", "100", "120")))
    )
    checks = of_power_log(path, [("the run", 2e9, 2e9 + 5)], 110.0)
    assert [check.verdict for check in checks] == [REFUSED, REFUSED, OK, REFUSED]
    assert checks[0].factors["none"] == 2
    assert "cannot have measured it" in checks[-1].what


def test_a_folder_without_numbers_and_a_broken_file_are_errors_in_words(tmp_path):
    with pytest.raises(MissingError, match="nothing here"):
        audit(tmp_path)
    (tmp_path / "x_power.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadDataError, match="no column"):
        audit(tmp_path)
    (tmp_path / "x_power.csv").unlink()
    (tmp_path / "isolated_kernels_timing.json").write_text("{")
    with pytest.raises(BadDataError, match="not JSON"):
        audit(tmp_path)


def test_an_impossible_gemm_is_refused():
    shape = TensorArg(dtype="float16", shape=(1000, 1000), stride=(1000, 1))
    call = Signature(
        sig_id="a",
        op="aten::mm",
        overload="",
        args=(Arg(name="self", tensor=shape), Arg(name="mat2", tensor=shape)),
        launches=(test_replay.GEMM, test_replay.REDUCE),
    )
    assert flop(call) == 2e9
    plan = test_replay.a_plan()
    plan.signatures = (call, plan.signatures[1])
    checks = {check.name: check for check in of_replay(judge_replay(plan, test_replay.a_raw()), plan)}
    assert checks["TFLOP/s below the board's peak"].verdict == OK
    fast = test_replay.a_raw()
    fast.calls = tuple(
        msgspec.structs.replace(one, dur_us=tuple(tuple(us / 100 for us in row) for row in one.dur_us))
        for one in fast.calls
    )
    checks = {check.name: check for check in of_replay(judge_replay(plan, fast), plan)}
    assert checks["TFLOP/s below the board's peak"].verdict == REFUSED


def test_a_replay_on_another_gpu_is_refused():
    raw = test_replay.a_raw()
    raw.device_name = "NVIDIA A100"
    plan = test_replay.a_plan()
    assert of_replay(judge_replay(plan, raw), plan)[0].verdict == REFUSED


def test_an_energy_run_is_audited_with_every_factor():
    raw = test_energy.a_raw()
    checks = {check.name: check for check in of_energy(judge_energy(test_energy.a_plan(), raw), raw)}
    assert checks["closure"].verdict == OK or checks["closure"].factors["idle_w"] == 100.0
    assert checks["sensor updates"].verdict == OK
    raw.facts_before = {"power_limit_w": 100.0}
    refused = of_energy(judge_energy(test_energy.a_plan(), raw), raw)
    assert any(check.verdict == REFUSED and "limit" in check.what for check in refused)


@pytest.mark.data
def test_the_published_measurement_is_refused_for_its_known_faults(shared_data):
    checks = audit(shared_data / "energy_gtx1080ti", board_limit_w=250.0)
    refused = {check.name: check for check in checks if check.verdict == REFUSED}
    assert refused["counts are of kernels"].factors == {
        "counted": 38714,
        "runtime_calls": 21528,
        "launches": 17186,
    }
    assert refused["iterations counted are those divided by"].factors == {"rows": 53, "factor": 50}
    assert refused["launches divide into forwards"].factors == {"forwards": 25}
    whole = refused["parts add up to the whole"].factors
    assert (whole["published_pct"], whole["per_forward_pct"]) == (594.2, -72.2)
    assert json.dumps(msgspec.to_builtins(checks))
