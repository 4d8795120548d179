"""The measured process on this CPU: what it leaves, what it refuses, and memory that ends."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from lab.errors import GpuError  # noqa: E402
from lab.rooms.nsys.layout import CellResult, read_json  # noqa: E402
from lab.rooms.nsys.workload import __main__ as workload  # noqa: E402

pytestmark = pytest.mark.torch
TINY = [
    "--model-size",
    "tiny",
    "--context-length",
    "16",
    "--device",
    "cpu",
    "--warmup-steps",
    "1",
    "--measure-steps",
    "2",
]


def run(out, *flags):
    workload.main([*TINY, "--use-annotated-attention", "--out", str(out), *flags])
    return read_json(out / "cell.json", CellResult)


def ranges(out) -> Counter:
    events = json.loads(gzip.decompress((out / "capture.json.gz").read_bytes()))["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") == "user_annotation")


def test_a_training_cell_leaves_its_times_and_exactly_the_named_ranges(tmp_path):
    told = run(tmp_path, "--profile-type", "training", "--collector", "kineto")
    assert told.outcome == "ok" and len(told.steps) == 2 and told.params == 1411392
    assert all(
        {"forward_ms", "backward_ms", "optimizer_step_ms", "step_ms", "loss"} == set(step)
        for step in told.steps
    )
    assert told.steps[1]["loss"] < told.steps[0]["loss"]
    found = ranges(tmp_path)
    # One settling step under `warmup` and two measured ones, two layers each.
    assert {name: found[name] for name in ("warmup", "step_0", "step_1")} == {
        "warmup": 1,
        "step_0": 1,
        "step_1": 1,
    }
    assert found["forward"] == found["backward"] == found["optimizer_step"] == 3
    for part in (
        "scaled_dot_product_attention",
        "computing_attention_scores",
        "computing_softmax",
        "final_matmul",
    ):
        assert found[part] == 6


def test_forward_alone_keeps_no_graph_and_has_no_other_phase(tmp_path):
    told = run(tmp_path, "--profile-type", "forward", "--collector", "kineto")
    assert set(told.steps[0]) == {"forward_ms", "step_ms", "loss"} and ranges(tmp_path)["backward"] == 0


def test_the_same_seed_gives_the_same_loss_in_every_profile_type(tmp_path):
    losses = {
        kind: run(tmp_path / kind, "--profile-type", kind).steps[0]["loss"]
        for kind in ("forward", "forward_backward")
    }
    assert losses["forward"] == losses["forward_backward"]
    assert not (tmp_path / "forward" / "capture.json.gz").exists(), "the twin runs without a profiler"


@pytest.mark.parametrize("flags", [["--dtype", "bf16"], ["--softmax", "fused"], ["--fused-qkv"]])
def test_other_dtypes_softmaxes_and_products_compute_the_same_model(tmp_path, flags):
    plain = run(tmp_path / "plain", "--profile-type", "training").steps[-1]["loss"]
    other = run(tmp_path / "other", "--profile-type", "training", *flags).steps[-1]["loss"]
    assert other == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2 GiB",
        "HIP out of memory",
        "DefaultCPUAllocator: can't allocate memory: you tried",
    ],
)
def test_memory_that_ends_is_the_cells_outcome_and_no_error(tmp_path, monkeypatch, text):
    def ends(*_):
        raise RuntimeError(text)

    monkeypatch.setattr(workload, "loss_of", ends)
    told = run(tmp_path, "--profile-type", "training", "--collector", "kineto")
    assert told.outcome == "oom" and told.reason.startswith(text[:20]) and told.steps == []
    assert not list(tmp_path.glob("*capture*")), "no half capture"


def test_any_other_error_is_an_error(tmp_path, monkeypatch):
    def breaks(*_):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(workload, "loss_of", breaks)
    with pytest.raises(RuntimeError, match="shapes"):
        run(tmp_path)
    assert not (tmp_path / "cell.json").exists()


def test_a_gpu_that_is_not_here_is_said_with_the_way_out(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(GpuError, match="sees no GPU"):
        workload.measured(workload.parse(["--device", "cuda", "--out", str(tmp_path)]))


def test_as_a_process_it_says_one_line_and_its_environment(tmp_path):
    words = ["-m", "lab.rooms.nsys.workload", *TINY, "--profile-type", "forward", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.startswith("tiny ctx 16 forward (none): median step ")
    assert json.loads((tmp_path / "environment.json").read_text())["versions"]["torch"] == torch.__version__
