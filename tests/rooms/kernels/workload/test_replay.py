"""Ops really called again, on this machine's CPU."""

from __future__ import annotations

import os
import subprocess

import msgspec
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.replay.args import Arg, Signature, TensorArg  # noqa: E402
from lab.rooms.kernels.replay.resolve import Unresolved  # noqa: E402
from lab.rooms.kernels.replay.source import read_plan  # noqa: E402
from lab.rooms.kernels.workload.replay import run  # noqa: E402
from lab.rooms.kernels.workload.replay_build import bind, first_call, make, overload_of, pattern, schemas_of  # noqa: E402
from lab.rooms.kernels.workload.replay_order import Memory  # noqa: E402
from lab.rooms.kernels.workload.torch_switches import read_switches, restored  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

CPU = torch.device("cpu")


def spec(dtype="float32", shape=(2, 3), stride=(3, 1), **more):
    return TensorArg(dtype=dtype, shape=shape, stride=stride, **more)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A small network under torch's own profiler, with its execution trace."""
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function

    folder = tmp_path_factory.mktemp("recording")
    net = torch.nn.Sequential(
        torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.GELU("tanh")
    )
    ids = torch.arange(6).view(1, 6)

    def forward():
        x = net(ids)
        return (
            torch.cat([x.transpose(1, 2) * 0.5, x.transpose(1, 2)], dim=-1)[:, torch.tensor([0, 3])]
            .softmax(-1)
            .sum()
        )

    forward()
    observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
    with (
        torch.no_grad(),
        profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer
        ) as session,
        record_function("prefill"),
    ):
        forward()
    session.export_chrome_trace(str(folder / "trace.json"))
    observer.unregister_callback()
    return folder


def replayed(folder, tmp_path, *, execution_trace=True, mode="in-order"):
    plan = read_plan(folder / "trace.json", folder / "et.json" if execution_trace else None)
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    return plan, run(tmp_path / "plan.json", tmp_path, mode=mode, repeats=2, pace="host", device=CPU)


def test_every_op_of_a_real_recording_runs_again_with_the_recorded_result_shapes(recording, tmp_path):
    plan, raw = replayed(recording, tmp_path)
    assert {one.status for one in raw.signatures} == {"ran"}
    assert {one.shapes_equal for one in raw.signatures} == {True}
    assert [call.place for call in raw.calls] == list(range(len(plan.calls)))
    assert all(len(call.dur_us) == 2 for call in raw.calls)


def test_without_the_execution_trace_what_is_lost_is_said_and_the_rest_runs(recording, tmp_path):
    plan, raw = replayed(recording, tmp_path, execution_trace=False)
    bad = {
        signature.op
        for signature, one in zip(plan.signatures, raw.signatures, strict=True)
        if one.status != "ran"
    }
    assert bad <= {"aten::index"}
    assert all(one.reason for one in raw.signatures if one.status != "ran")


def test_hot_repeats_each_call(recording, tmp_path):
    _, raw = replayed(recording, tmp_path, mode="hot")
    assert all(len(one.dur_us) == 2 for one in raw.signatures)
    assert raw.calls == ()


def test_a_tensor_has_its_strides_overlap_and_alignment():
    made = make("", spec(shape=(2, 3), stride=(0, 2), align_bytes=8), CPU, 0)
    assert (made.shape, made.stride(), made.storage_offset()) == ((2, 3), (0, 2), 2)
    assert made.untyped_storage().nbytes() == 4 * (2 + 5)


@pytest.mark.parametrize(
    "dtype",
    [
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int64",
        "int32",
        "uint8",
        "bool",
        "complex64",
        "float8_e4m3fn",
    ],
)
def test_every_dtype_can_be_filled(dtype):
    assert make("", spec(dtype, shape=(5,), stride=(1,)), CPU, 3).dtype is getattr(torch, dtype)


def test_an_empty_tensor_can_be_made():
    assert make("", spec(shape=(0,), stride=(1,)), CPU, 0).numel() == 0


def test_indices_stay_within_their_bounds():
    made = make("", spec("int64", shape=(1000,), stride=(1,), low=2, high=6), CPU, 0)
    assert (int(made.min()), int(made.max())) == (2, 6)


def test_data_are_the_same_each_time_and_spread_like_random_ones():
    table = pattern(CPU)
    assert float(table.mean().abs()) < 0.01 and 0.56 < float(table.std()) < 0.6
    assert torch.equal(make("", spec(), CPU, 1), make("", spec(), CPU, 1))
    assert not torch.equal(make("", spec(), CPU, 1), make("", spec(), CPU, 2))


def test_a_number_stays_a_number_where_the_op_takes_one_and_becomes_a_tensor_where_not():
    number = spec("float64", shape=(), stride=(), number=True)
    left = Arg(name="self", type="Tensor", tensor=spec())
    mul, _ = first_call(
        bind("aten::mul", "Tensor", [left, Arg(name="other", type="Tensor", tensor=number)], CPU)
    )
    assert not isinstance(mul.args[1], torch.Tensor)
    ne, _ = first_call(
        bind("aten::ne", "Tensor", [left, Arg(name="other", type="Tensor", tensor=number)], CPU)
    )
    assert isinstance(ne.args[1], torch.Tensor) and ne.args[1].dim() == 0


def test_values_are_turned_into_what_the_schema_wants():
    args = [
        Arg(name="size", type="int[]", value=[2]),
        Arg(name="dtype", type="ScalarType?", value=5, kwarg_only=True),
        Arg(name="layout", type="Layout?", kwarg_only=True),
        Arg(name="device", type="Device?", value="cuda:0", kwarg_only=True),
        Arg(name="pin_memory", type="bool?", value=True, kwarg_only=True),
    ]
    _, result = first_call(bind("aten::zeros", "", args, CPU))
    assert result.dtype is torch.float16 and result.device == CPU
    clamp = [
        Arg(name="self", type="Tensor", tensor=spec()),
        Arg(name="min", type="Scalar?", value="-inf"),
        Arg(name="max", type="Scalar?", value=0),
    ]
    assert float(first_call(bind("aten::clamp", "", clamp, CPU))[1].max()) <= 0


def test_an_overload_this_torch_lacks_is_never_replaced():
    with pytest.raises(Unresolved):
        overload_of("aten::mul", "NoSuchOverload")
    assert {schema.overload for schema in schemas_of("aten::mul")} >= {"Tensor", "Scalar"}


def test_tensors_of_one_storage_share_memory_and_an_op_moves_a_storage_to_its_result():
    memory = Memory(CPU)
    a = memory.tensor((0, 0), spec(shape=(4,), stride=(1,)), 7, 0)
    b = memory.tensor((1, 0), spec(shape=(2,), stride=(1,)), 7, 2)
    a[2] = 5.0
    assert float(b[0]) == 5.0
    result = torch.full((4,), 3.0)
    memory.now[7] = result.untyped_storage()
    assert float(memory.tensor((2, 0), spec(shape=(4,), stride=(1,)), 7, 0)[0]) == 3.0


def test_a_storage_that_is_too_small_is_made_again_and_kept_for_the_next_pass():
    memory = Memory(CPU)
    memory.tensor((0, 0), spec(shape=(4,), stride=(1,)), 7, 0)
    big = memory.tensor((1, 0), spec(shape=(400,), stride=(1,)), 7, 0)
    del memory.now[7]
    assert memory.tensor((1, 0), spec(shape=(400,), stride=(1,)), 7, 0).data_ptr() == big.data_ptr()


def test_switches_are_set_for_the_replay_and_put_back():
    before = read_switches()["deterministic"]
    with restored({"deterministic": not before, "unheard_of": 1}) as unknown:
        assert torch.are_deterministic_algorithms_enabled() is not before
        assert unknown == []
    assert read_switches()["deterministic"] is before


def test_a_call_that_cannot_run_is_a_row_with_its_reason(recording, tmp_path):
    plan = read_plan(recording / "trace.json", recording / "et.json")
    bad = Signature(sig_id="bad", op="nowhere::op", overload="", args=())
    broken = msgspec.structs.replace(plan, signatures=(bad, *plan.signatures[1:]))
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(broken))
    raw = run(tmp_path / "plan.json", tmp_path, mode="hot", repeats=1, pace="host", device=CPU)
    assert (raw.signatures[0].status, raw.signatures[1].status) == ("unresolved", "ran")
    assert "nowhere::op" in raw.signatures[0].reason


def test_the_recorder_alone_is_enough_where_torch_has_no_execution_trace(tmp_path):
    from torch.profiler import ProfilerActivity, profile, record_function

    from lab.rooms.kernels.workload.recorder import Recorder, recording

    net = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 32))
    ids = torch.arange(6).view(1, 6)

    def forward():
        return net(ids)[:, torch.tensor([0, 3])].softmax(-1) * 2.0

    forward()
    with (
        torch.no_grad(),
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session,
        record_function("prefill"),
    ):
        forward()
    session.export_chrome_trace(str(tmp_path / "trace.json"))
    with (tmp_path / "ops.jsonl").open("wb") as file, torch.no_grad():
        recorder = Recorder(file.write)
        recorder.phase, recorder.forward = "prefill", 0
        with recording(recorder, net):
            forward()
    plan = read_plan(tmp_path / "trace.json", None, tmp_path / "ops.jsonl")
    by_op = {signature.op: signature for signature in plan.signatures}
    assert by_op["aten::index"].origin == "recorder"
    assert [one.high for one in by_op["aten::index"].args[1].tensors if one] == [3]
    assert by_op["aten::embedding"].args[1].src == "ranged"  # the recorder knows no op below it
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    raw = run(tmp_path / "plan.json", tmp_path, mode="in-order", repeats=1, pace="host", device=CPU)
    assert {one.status for one in raw.signatures} == {"ran"}
    assert False not in {one.shapes_equal for one in raw.signatures}


def test_the_recorder_adds_ranges_to_an_execution_trace(recording, tmp_path):
    plan = read_plan(recording / "trace.json", recording / "et.json")
    place = next(p for p, s in enumerate(plan.signatures) if s.op == "aten::index_select")
    from lab.rooms.kernels.replay.recorded import with_ranges
    from lab.rooms.kernels.schema import Arg as RecordedArg
    from lab.rooms.kernels.schema import RecordedOp

    seen = RecordedOp(
        index=0,
        name="aten::index_select",
        args=[RecordedArg(kind="tensor", name="index", dtype="int64", shape=[6], range=(0, 5))],
    )
    args = with_ranges(plan.signatures[place].args, seen)
    assert (args[2].src, args[2].tensor.low, args[2].tensor.high) == ("ranged", 0, 5)
    assert plan.signatures[place].args[2].tensor.high == 49


def test_only_indices_keep_their_own_values_in_order_other_integers_flow_from_op_to_op(recording, tmp_path):
    from lab.rooms.kernels.workload.replay_order import InOrder

    plan = read_plan(recording / "trace.json", recording / "et.json")
    order = InOrder(plan, {}, CPU)
    table, index = (
        spec("int64", shape=(3,), stride=(1,), low=0, high=9),
        spec("int64", shape=(3,), stride=(1,), low=0, high=9, index=True),
    )
    order.memory.now[5] = torch.tensor([100, 200, 300]).untyped_storage()
    assert order._fetch((0, 0), table, 5, 0)().tolist() == [100, 200, 300]
    assert max(order._fetch((0, 0), index, 5, 0)().tolist()) <= 9


ON_TORCH_112 = """
import sys, torch, msgspec
from pathlib import Path
from torch.profiler import ProfilerActivity, profile, record_function
from lab.rooms.kernels.replay.source import read_plan
from lab.rooms.kernels.workload.recorder import Recorder, recording
from lab.rooms.kernels.workload.replay import run

folder = Path(sys.argv[1])
net = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.GELU())
ids = torch.arange(6).view(1, 6)
forward = lambda: net(ids)[:, torch.tensor([0, 3])].softmax(-1) * 2.0
forward()
with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session, record_function("prefill"):
    forward()
session.export_chrome_trace(str(folder / "trace.json"))
with (folder / "ops.jsonl").open("wb") as file, torch.no_grad():
    recorder = Recorder(file.write)
    recorder.phase, recorder.forward = "prefill", 0
    with recording(recorder, net):
        forward()
plan = read_plan(folder / "trace.json", None, folder / "ops.jsonl")
(folder / "plan.json").write_bytes(msgspec.json.encode(plan))
raw = run(folder / "plan.json", folder, mode="in-order", repeats=2, pace="host", device=torch.device("cpu"))
for signature, one in zip(plan.signatures, raw.signatures):
    print(torch.__version__, signature.op, signature.origin, one.status, one.shapes_equal, sep="|")
"""


def test_under_torch_1_12_the_recorders_calls_replay(tmp_path):
    python = os.environ.get("LAB_PYTHON_TORCH112")
    if not python:
        pytest.skip("LAB_PYTHON_TORCH112 names no Python with torch 1.12")
    found = subprocess.run(
        [python, "-c", ON_TORCH_112, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    rows = [line.split("|") for line in found.stdout.splitlines() if line.count("|") == 4]
    assert all(row[0].startswith("1.12") for row in rows)
    mine = [row for row in rows if row[2] == "recorder"]
    assert {row[1] for row in mine} >= {"aten::embedding", "aten::addmm", "aten::index", "aten::gelu"}
    assert all(row[3:] == ["ran", "True"] for row in mine)


def test_an_op_in_place_gets_its_data_back_before_each_repetition():
    from lab.rooms.kernels.workload.replay import refresher

    args = [Arg(name="self", type="Tensor", tensor=spec()), Arg(name="other", type="Tensor", tensor=spec())]
    bound = bind("aten::mul_", "Tensor", args, CPU)
    before, fresh = bound.args[0].clone(), refresher("aten::mul_", bound)
    bound()
    assert not torch.equal(bound.args[0], before)
    fresh()
    assert torch.equal(bound.args[0], before)
