"""Ops really called again, on this machine's CPU."""

from __future__ import annotations

import os
import subprocess

import msgspec
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.replay.args import Arg, Signature  # noqa: E402
from lab.rooms.kernels.replay.calls.source import read_plan  # noqa: E402
from lab.rooms.kernels.workload.replay.build import bind  # noqa: E402
from lab.rooms.kernels.workload.replay.main import run  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.rooms.kernels.workload.replay.made import CPU, spec  # noqa: E402
from tests.rooms.kernels.workload.replay.recorded import replay_recorded  # noqa: E402


def replayed(folder, tmp_path, *, execution_trace=True, mode="in-order"):
    plan = read_plan(folder / "trace.json", folder / "et.json" if execution_trace else None)
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    return plan, run(tmp_path / "plan.json", tmp_path, mode=mode, repeats=2, device=CPU)


def test_every_op_of_a_real_recording_runs_again_with_the_recorded_result_shapes(recording, tmp_path):
    plan, raw = replayed(recording, tmp_path)
    assert {one.status for one in raw.signatures} == {"ran"}
    assert {one.shapes_equal for one in raw.signatures} == {True}
    assert [call.place for call in raw.calls] == list(range(len(plan.calls)))
    assert all(len(call.dur_us) == 2 for call in raw.calls)


def test_without_the_execution_trace_losses_are_reported_and_the_rest_runs(recording, tmp_path):
    plan, raw = replayed(recording, tmp_path, execution_trace=False)
    bad = {
        signature.op
        for signature, one in zip(plan.signatures, raw.signatures, strict=True)
        if one.status != "ran"
    }
    assert bad <= {"aten::index"}
    assert all(one.reason for one in raw.signatures if one.status != "ran")


def test_a_call_that_cannot_run_is_a_row_with_its_reason(recording, tmp_path):
    plan = read_plan(recording / "trace.json", recording / "et.json")
    bad = Signature(sig_id="bad", op="nowhere::op", overload="", args=())
    broken = msgspec.structs.replace(plan, signatures=(bad, *plan.signatures[1:]))
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(broken))
    raw = run(tmp_path / "plan.json", tmp_path, mode="hot", repeats=1, device=CPU)
    assert (raw.signatures[0].status, raw.signatures[1].status) == ("unresolved", "ran")
    assert "nowhere::op" in raw.signatures[0].reason


def test_the_recorder_alone_is_enough_without_an_execution_trace(tmp_path):
    plan, raw = replay_recorded(tmp_path)
    by_op = {signature.op: signature for signature in plan.signatures}
    assert by_op["aten::index"].origin == "recorder"
    assert [one.high for one in by_op["aten::index"].args[1].tensors if one] == [3]
    assert by_op["aten::embedding"].args[1].src == "ranged"  # the recorder knows no op below it
    assert {one.status for one in raw.signatures} == {"ran"}
    assert False not in {one.shapes_equal for one in raw.signatures}


def test_an_op_in_place_gets_its_data_back_before_each_repetition():
    from lab.rooms.kernels.workload.replay.main import refresher

    args = [Arg(name="self", type="Tensor", tensor=spec()), Arg(name="other", type="Tensor", tensor=spec())]
    bound = bind("aten::mul_", "Tensor", args, CPU)
    before, fresh = bound.args[0].clone(), refresher("aten::mul_", bound)
    bound()
    assert not torch.equal(bound.args[0], before)
    fresh()
    assert torch.equal(bound.args[0], before)


def test_under_torch_1_12_the_recorders_calls_replay(tmp_path):
    python = os.environ.get("LAB_PYTHON_TORCH112")
    if not python:
        pytest.skip("LAB_PYTHON_TORCH112 names no Python with torch 1.12")
    command = [python, "-m", "tests.rooms.kernels.workload.replay.recorded", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    rows = [line.split("|") for line in found.stdout.splitlines() if line.count("|") == 4]
    assert all(row[0].startswith("1.12") for row in rows)
    mine = [row for row in rows if row[2] == "recorder"]
    assert {row[1] for row in mine} >= {"aten::embedding", "aten::addmm", "aten::index", "aten::gelu"}
    assert all(row[3:] == ["ran", "True"] for row in mine)
