"""The generated C++ program, built with the installed torch: its results are Python's, byte by byte."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from lab.rooms.kernels.cpp.generate import generate
from lab.rooms.kernels.replay.args import Arg, Call, Forward, Launch, Origin, ReplayPlan, Signature, TensorArg
from lab.rooms.kernels.replay.files import RawReplay, SignatureRun

HALF = TensorArg(dtype="float16", shape=(4, 6), stride=(6, 1))
FLOAT = TensorArg(dtype="float32", shape=(3, 5), stride=(1, 3), align_bytes=8)
LONG = TensorArg(dtype="int64", shape=(2, 3), stride=(3, 1), low=0, high=6)
BOOL = TensorArg(dtype="bool", shape=(3, 5), stride=(5, 1))
NUMBER = TensorArg(dtype="float64", shape=(), stride=(), number=True)


def arg(name, kind, **more):
    return Arg(name=name, type=kind, **more)


def a_call(sig_id, op, overload, *args, **more):
    return Signature(sig_id=sig_id, op=op, overload=overload, args=args, launches=(Launch("k"),), **more)


CALLS = (
    a_call(
        "mul",
        "aten::mul",
        "Tensor",
        arg("self", "Tensor", tensor=HALF),
        arg("other", "Tensor", tensor=NUMBER),
    ),
    a_call(
        "add_",
        "aten::add_",
        "Tensor",
        arg("self", "Tensor", tensor=FLOAT),
        arg("other", "Tensor", tensor=FLOAT),
        arg("alpha", "Scalar", value=2, kwarg_only=True),
    ),
    a_call(
        "embed",
        "aten::embedding",
        "",
        arg("weight", "Tensor", tensor=TensorArg(dtype="float32", shape=(7, 4), stride=(4, 1))),
        arg("indices", "Tensor", tensor=LONG),
        arg("padding_idx", "int", value=-1),
        arg("scale", "bool", value=False),
        arg("sparse", "bool", value=False),
    ),
    a_call(
        "index",
        "aten::index",
        "Tensor",
        arg("self", "Tensor", tensor=TensorArg(dtype="bool", shape=(2, 7), stride=(7, 1))),
        arg("indices", "Tensor?[]", tensors=(None, LONG)),
    ),
    a_call(
        "cat", "aten::cat", "", arg("tensors", "Tensor[]", tensors=(HALF, HALF)), arg("dim", "int", value=-1)
    ),
    a_call(
        "where",
        "aten::where",
        "self",
        arg("condition", "Tensor", tensor=BOOL),
        arg("self", "Tensor", tensor=FLOAT),
        arg("other", "Tensor", tensor=FLOAT),
    ),
    a_call(
        "sum",
        "aten::sum",
        "dim_IntList",
        arg("self", "Tensor", tensor=FLOAT),
        arg("dim", "int[]?", value=[0]),
        arg("keepdim", "bool", value=True),
        arg("dtype", "ScalarType?", value=7, kwarg_only=True),
    ),
    a_call(
        "gelu",
        "aten::gelu",
        "",
        arg("self", "Tensor", tensor=FLOAT),
        arg("approximate", "str", value="tanh", kwarg_only=True),
    ),
    a_call(
        "clamp",
        "aten::clamp",
        "",
        arg("self", "Tensor", tensor=FLOAT),
        arg("min", "Scalar?", value="-inf"),
        arg("max", "Scalar?", value=0.25),
    ),
    a_call(
        "zeros",
        "aten::zeros",
        "",
        arg("size", "int[]", value=[2, 3]),
        arg("dtype", "ScalarType?", value=5, kwarg_only=True),
        arg("layout", "Layout?", kwarg_only=True),
        arg("device", "Device?", value="cuda:0", kwarg_only=True),
        arg("pin_memory", "bool?", kwarg_only=True),
    ),
    a_call("sqrt", "aten::rsqrt", "", arg("self", "Tensor", tensor=FLOAT)),
    a_call(
        "norm",
        "aten::native_layer_norm",
        "",
        arg("input", "Tensor", tensor=FLOAT),
        arg("normalized_shape", "int[]", value=[5]),
        arg("weight", "Tensor?"),
        arg("bias", "Tensor?"),
        arg("eps", "float", value=1e-5),
    ),
)


def a_plan(*signatures):
    calls = tuple(Call(sig, 0, (1.0,)) for sig in range(len(signatures)))
    return ReplayPlan(
        origin=Origin(trace="t.json"), forwards=(Forward("all", "all"),), signatures=signatures, calls=calls
    )


def test_the_program_is_written_from_signatures_and_says_what_it_leaves_out(tmp_path):
    lost = Signature(sig_id="lost", op="aten::index", reason="the trace lost it")
    files, left_out = generate(a_plan(*CALLS, lost), tmp_path)
    text = (tmp_path / "replay.cpp").read_text()
    assert left_out == ["aten::index (lost): no resolved arguments: the trace lost it"]
    assert "// left out: aten::index (lost)" in text
    assert text.count("lab::Stack call_") == len(CALLS)
    assert {path.name for path in files} == {"replay.cpp", "lab_replay.hpp", "CMakeLists.txt"}


def test_a_replay_gives_the_arguments_that_a_chrome_trace_could_not(tmp_path):
    bare = Signature(sig_id="mul", op="aten::mul")
    raw = RawReplay(
        mode="hot",
        device="cpu",
        signatures=(SignatureRun(sig_id="mul", status="ran", overload="Tensor", args=CALLS[0].args),),
    )
    assert generate(a_plan(bare), tmp_path, raw)[1] == []


def test_text_from_a_recording_cannot_leave_its_string_or_its_comment(tmp_path):
    evil = a_call("evil", 'aten::x"; system("true"); //', "", arg("a", "str", value='"); system("true'))
    plan = a_plan(evil)
    plan.origin = Origin(trace="a\\\nint main() {")
    generate(plan, tmp_path)
    text = (tmp_path / "replay.cpp").read_text()
    assert r"\"); system(\"true" in text
    assert "\nint main() {" not in text


def fnv(value):
    """The program's checksum, in plain Python."""
    from lab.rooms.kernels.workload.replay.build import flat_outputs

    found = 14695981039346656037
    for tensor in flat_outputs(value):
        for byte in raw_bytes(tensor):
            found = ((found ^ byte) * 1099511628211) & (2**64 - 1)
    return f"{found:016x}"


def raw_bytes(tensor):
    import torch

    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="needs cmake and g++")
def test_built_with_cmake_it_gives_the_results_of_python(tmp_path, monkeypatch):
    import torch

    from lab.rooms.kernels.workload.replay.build import bind, first_call

    generate(a_plan(*CALLS), tmp_path)
    monkeypatch.setenv("CXXFLAGS", "-O0")
    for command in (
        ["cmake", "-S", ".", "-B", "build", f"-DPYTHON={sys.executable}"],
        ["cmake", "--build", "build"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=900)
    done = subprocess.run(
        [tmp_path / "build/replay", "--repeats", "2"], capture_output=True, text=True, timeout=900
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["failed"]) == (0, 0), done.stdout
    with torch.no_grad():
        mine = {
            call.sig_id: fnv(first_call(bind(call.op, call.overload, call.args, torch.device("cpu")))[1])
            for call in CALLS
        }
    assert {row["sig_id"]: row["checksum"] for row in report["rows"]} == mine
    assert all(row["n_ran"] == 2 and row["us"]["median"] >= 0 for row in report["rows"])
    unknown = subprocess.run(
        [tmp_path / "build/replay", "--nonsense"], capture_output=True, text=True, timeout=900
    )
    assert unknown.returncode == 2 and "usage" in unknown.stderr
