"""The generated C++ program, built with the installed torch: its results are Python's, byte by byte."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import msgspec
import pytest

from lab.rooms.kernels.cpp.generate import generate
from lab.rooms.kernels.replay.args import (
    Arg,
    Call,
    Forward,
    Launch,
    Origin,
    RawReplay,
    ReplayPlan,
    Signature,
    SignatureRun,
    TensorArg,
)

HALF = TensorArg(dtype="float16", shape=(4, 6), stride=(6, 1))
FLOAT = TensorArg(dtype="float32", shape=(3, 5), stride=(1, 3), align_bytes=8)
LONG = TensorArg(dtype="int64", shape=(2, 3), stride=(3, 1), low=0, high=6)
BOOL = TensorArg(dtype="bool", shape=(3, 5), stride=(5, 1))
NUMBER = TensorArg(dtype="float64", shape=(), stride=(), number=True)


WEIGHT = TensorArg(dtype="float32", shape=(7, 4), stride=(4, 1))
TABLE = TensorArg(dtype="bool", shape=(2, 7), stride=(7, 1))


def a_call(sig_id, op, overload="", **given):
    """given: a tensor, or (type, value, ...) of an argument; a third item makes it one by keyword only."""
    args = tuple(
        Arg(name=name, type="Tensor", tensor=value)
        if isinstance(value, TensorArg)
        else Arg(name=name, type=value[0], value=value[1], kwarg_only=len(value) > 2)
        for name, value in given.items()
    )
    return Signature(sig_id=sig_id, op=op, overload=overload, args=args, launches=(Launch("k"),))


def of_list(call, name, kind, *tensors):
    """The call with a list of tensors as its argument of this name."""
    args = [Arg(name=name, type=kind, tensors=tensors) if one.name == name else one for one in call.args]
    return msgspec.structs.replace(call, args=tuple(args))


BY_NAME = True
FALSE = ("bool", False)
ZEROS = {
    "layout": ("Layout?", None, BY_NAME),
    "device": ("Device?", "cuda:0", BY_NAME),
    "pin_memory": ("bool?", None, BY_NAME),
}
NO_WEIGHTS = {"weight": ("Tensor?", None), "bias": ("Tensor?", None)}
INDICES = {"padding_idx": ("int", -1), "scale": FALSE, "sparse": FALSE}
CALLS = (
    a_call("mul", "aten::mul", "Tensor", self=HALF, other=NUMBER),
    a_call("add_", "aten::add_", "Tensor", self=FLOAT, other=FLOAT, alpha=("Scalar", 2, BY_NAME)),
    a_call("embed", "aten::embedding", weight=WEIGHT, indices=LONG, **INDICES),
    of_list(
        a_call("index", "aten::index", "Tensor", self=TABLE, indices=LONG), "indices", "Tensor?[]", None, LONG
    ),
    of_list(a_call("cat", "aten::cat", tensors=HALF, dim=("int", -1)), "tensors", "Tensor[]", HALF, HALF),
    a_call("where", "aten::where", "self", condition=BOOL, self=FLOAT, other=FLOAT),
    a_call(
        *("sum", "aten::sum", "dim_IntList"),
        self=FLOAT,
        dim=("int[]?", [0]),
        keepdim=("bool", True),
        dtype=("ScalarType?", 7, BY_NAME),
    ),
    a_call("gelu", "aten::gelu", self=FLOAT, approximate=("str", "tanh", BY_NAME)),
    a_call("clamp", "aten::clamp", self=FLOAT, min=("Scalar?", "-inf"), max=("Scalar?", 0.25)),
    a_call("zeros", "aten::zeros", size=("int[]", [2, 3]), dtype=("ScalarType?", 5, BY_NAME), **ZEROS),
    a_call("sqrt", "aten::rsqrt", self=FLOAT),
    a_call(
        *("norm", "aten::native_layer_norm"),
        input=FLOAT,
        normalized_shape=("int[]", [5]),
        **NO_WEIGHTS,
        eps=("float", 1e-5),
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
    evil = a_call("evil", 'aten::x"; system("true"); //', a=("str", '"); system("true'))
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
