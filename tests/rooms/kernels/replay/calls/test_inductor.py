"""Inductor's kernels in a replay plan: only from a named folder, and only the file that ran."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.replay.calls.inductor import hash_of
from lab.rooms.kernels.replay.calls.source import read_plan
from tests.recordings.graphs.made import Events, Launched

NAME = "triton_poi_fused_add_0"
SOURCE = f"\nimport triton\n\ndef {NAME}(in_ptr0, out_ptr0, xnumel):\n    pass\n"
HASH = hash_of(SOURCE)


def compiled_trace(tmp_path, **described):
    """One compiled region with one Triton kernel: two tensors and a size."""
    events = Events()
    start = events.now
    correlation = events.launch(Launched(NAME, NAME, (), (4, 8)))
    op = next(row for row in events.rows if row["cat"] == "cpu_op")
    op["args"] |= {
        "Input Dims": [[4, 8], [4, 8], []],
        "Input Strides": [[8, 1], [8, 1], []],
        "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"],
        "Concrete Inputs": ["", "", "32"],
        "kernel_hash": HASH,
        "kernel_kwargs": "XBLOCK=64",
        "num_warps": 4,
        "num_stages": 1,
        **described,
    }
    events.row(NAME, correlation, external_id=events.ids, grid=[1, 1, 1], block=[128, 1, 1])
    events.add("cpu_op", "Torch-Compiled Region: 0/0", start - 6, 60, {"External id": 900})
    return events.write(tmp_path / "trace.json")


def folder_with(tmp_path, text):
    folder = tmp_path / "cache" / "xy"
    folder.mkdir(parents=True)
    (folder / f"{HASH}.py").write_text(text)
    return tmp_path / "cache"


def test_a_kernel_with_its_file_is_a_call_with_its_tensors_and_sizes(tmp_path):
    plan = read_plan(compiled_trace(tmp_path), inductor=[folder_with(tmp_path, SOURCE)])
    (signature,) = plan.signatures
    assert (signature.op, signature.overload) == (NAME, HASH)
    tensors = [arg.tensor for arg in signature.args[:2]]
    assert [(one.dtype, one.shape, one.stride) for one in tensors] == [("bfloat16", (4, 8), (8, 1))] * 2
    assert signature.args[2].value == 32
    (kernel,) = plan.kernels
    assert (kernel.hash, kernel.source, kernel.block_sizes, kernel.num_warps) == (
        HASH,
        SOURCE,
        "XBLOCK=64",
        4,
    )
    assert plan.orphans == ()


@pytest.mark.parametrize(
    ("text", "named", "described", "why"),
    [
        (SOURCE, False, {}, f"name the folder of its file {HASH}.py with --inductor"),
        (None, True, {}, "is not in the folders of --inductor"),
        (SOURCE + "import os", True, {}, "was changed: its content has another hash"),
        (SOURCE, True, {"kernel_hash": ""}, "the recording has no hash of its file"),
        (SOURCE, True, {"kernel_hash": "../../x"}, "the recording has no hash of its file"),
        (SOURCE, True, {"Input type": None}, "record with record_shapes=True"),
    ],
)
def test_a_kernel_that_cannot_be_replayed_says_why(tmp_path, text, named, described, why):
    folder = folder_with(tmp_path, text) if text else tmp_path
    plan = read_plan(compiled_trace(tmp_path, **described), inductor=[folder] if named else [])
    assert plan.signatures == () and plan.kernels == ()
    (orphan,) = plan.orphans
    assert why in orphan.reason


def test_rows_of_a_graph_are_not_replayed_as_the_op_around_its_launch(tmp_path):
    events = Events()
    events.ids = 1
    events.add("cpu_op", "aten::mm", events.now - 1, 500, {"External id": 1, "Input type": ["float"]})
    correlation = events.call("hipGraphLaunch", 1)
    for name in ("a", "b"):
        events.row(name, correlation, external_id=1)
    plan = read_plan(events.write(tmp_path / "trace.json"))
    assert [orphan.reason for orphan in plan.orphans] == [
        "a graph replayed it: replay an eager trace of the same model"
    ] * 2
