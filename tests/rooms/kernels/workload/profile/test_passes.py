"""A real profile: marks, files, recorder and shapes agree with each other and with the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lab.perfmodel.classes import moves_no_data
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.rank import read_trail
from lab.rooms.kernels.findings import analyse_profile
from lab.rooms.kernels.schema import Generation, LinearShape, RecordedOp
from lab.rooms.kernels.trails import read_json, read_lines, trails
from tests.built import REPOSITORY
from tests.conftest import ROOT

pytestmark = pytest.mark.torch


NEW_TOKENS, LAYERS = 3, 2
WORKLOAD = "-m lab.rooms.kernels.workload.main --config kernels.json --out profile --device cpu"


LINEARS = 4 * LAYERS + 1  # qkv, dense, two of the MLP; the head


def profile(folder: Path, python: str = sys.executable, **config) -> subprocess.CompletedProcess[str]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernels.json").write_text(
        json.dumps({"model": "tiny-bloom", "max_new_tokens": NEW_TOKENS, **config})
    )
    command = [python, *WORKLOAD.split()]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    done = profile(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def rank(folder):
    return read_trail(trails(folder)[0])[0]


def recorded_of(folder: Path) -> list[RecordedOp]:
    return list(read_lines(trails(folder)[0].recorded_ops, RecordedOp))


def test_every_file_of_the_contract_is_there(folder):
    (trail,) = trails(folder)
    assert None not in (trail.recorded_ops, trail.linear_shapes, trail.generation, trail.execution_trace)
    assert not list((folder / "profile").glob(".draft*"))
    environment = json.loads((folder / "profile" / "environment.json").read_text())
    assert environment["weights"] == "random" and "tiny-bloom" in environment["weights_note"]
    assert environment["versions"]["torch"] and environment["versions"]["transformers"]
    assert environment["versions"]["weights"].startswith("random: random weights (seed 0)"), (
        "the manifest takes it from here"
    )


def test_the_trace_marks_a_prefill_and_a_decode_step_for_every_further_token(rank):
    assert rank.marks.names == ["prefill", "decode_1", "decode_2"]
    assert (rank.marks.spans_ns[1:, 0] >= rank.marks.spans_ns[:-1, 1]).all()


def test_the_generation_file_counts_what_ran(folder):
    made = read_json(trails(folder)[0].generation, Generation)
    assert len(made.tokens) == made.new_tokens == NEW_TOKENS == len(made.forwards)
    assert made.forwards[0].tokens_in == made.prompt_tokens and made.forwards[1].tokens_in == 1
    assert made.num_params == 132_992 and made.weights == "random" and made.unprofiled_s > 0


def test_every_recorded_call_that_works_is_found_in_the_trace(rank):
    aligned = set(rank.call[rank.call >= 0].tolist())
    lost = [
        op.name for at, op in enumerate(rank.recorded) if at not in aligned and not moves_no_data(op.name)
    ]
    assert not lost and not rank.problems


def test_the_recorder_sees_as_many_products_as_the_model_has_layers_for(folder):
    names = Counter(op.name for op in recorded_of(folder) if op.phase == "decode")
    per_forward = {name: count / (NEW_TOKENS - 1) for name, count in names.items()}
    assert per_forward["aten::addmm"] == 4 * LAYERS and per_forward["aten::mm"] == 1
    assert per_forward["aten::native_layer_norm"] == 2 * LAYERS + 2
    assert per_forward["aten::baddbmm"] == per_forward["aten::bmm"] == LAYERS


def test_recorded_arguments_have_names_numbers_and_the_range_of_indices(folder):
    embedding = next(
        op for op in recorded_of(folder) if op.name == "aten::embedding" and op.phase == "prefill"
    )
    weight, indices = embedding.args[:2]
    assert (weight.name, indices.name, weight.shape, indices.dtype) == (
        "weight",
        "indices",
        [512, 64],
        "int64",
    )
    assert 10 <= indices.range[0] <= indices.range[1] < 512 and weight.range is None
    product = next(op for op in recorded_of(folder) if op.name == "aten::mul" and op.overload == "Tensor")
    assert [arg.name for arg in product.args] == ["self", "other"]


def test_the_shape_log_has_every_linear_of_every_phase_once(folder):
    lines = list(read_lines(trails(folder)[0].linear_shapes, LinearShape))
    assert Counter(line.phase for line in lines) == {"prefill": LINEARS, "decode": LINEARS}
    assert all(line.count == NEW_TOKENS - 1 for line in lines if line.phase == "decode")
    qkv = next(line for line in lines if line.module_path.endswith("h.0.self_attention.query_key_value"))
    assert (qkv.cls, qkv.weight_shape_local, qkv.in_[0].shape[-1], qkv.out[0].shape[-1]) == (
        "Linear",
        [192, 64],
        64,
        192,
    )


def test_the_catalogue_gives_modules_and_exact_overloads_to_launches(folder):
    found = read_catalogue(trails(folder))
    assert found.signatures.device == "cpu" and not found.problems
    row = found.unique[(found.unique["op"] == "aten::addmm") & (found.unique["phase"] == "decode")]
    assert row["count_per_forward"].sum() == 4 * LAYERS and set(row["arg_src"]) == {"recorder"}
    assert all(module.startswith("transformer.h.") for module in row["module"])


def test_the_analysis_of_a_cpu_profile_says_that_it_has_no_kernels(folder, tmp_path):
    found = analyse_profile(folder, tmp_path, None, lambda _: None)
    assert (
        found.status == "warn"
        and any("without kernels" in text for text in found.verdict)
        and not found.lacking
    )
    for path in found.files:
        assert path.stat().st_size > 0, path
    assert "transformer.h.*.self_attention" in (tmp_path / "report.html").read_text()


def test_what_cannot_run_here_ends_with_its_own_exit_code_and_the_cure(tmp_path):
    done = profile(tmp_path, model="no/such-model-anywhere")
    assert (
        done.returncode == 4
        and "an architecture that lab knows" in done.stderr
        and "Traceback" not in done.stderr
    )


def holds_1_12(folder: Path) -> None:
    """The profile of torch 1.12 tells forwards, products and arguments as the newest does."""
    assert json.loads((folder / "profile" / "environment.json").read_text())["versions"]["torch"].startswith(
        "1.12.1"
    )
    (trail,) = trails(folder)
    assert trail.execution_trace is None and trail.recorded_ops is not None
    found = read_catalogue([trail])
    assert found.signatures.forwards == {"prefill": 1, "decode": NEW_TOKENS - 1} and not found.problems
    products = found.unique[found.unique["op"].isin(["aten::addmm", "aten::mm"])]
    assert products["count"].sum() == LINEARS * NEW_TOKENS and set(products["arg_src"]) == {"recorder"}


@pytest.mark.docker
def test_profile_and_recorder_work_in_the_pascal_image(open_folder):
    here = subprocess.run(
        ["docker", "image", "inspect", f"{REPOSITORY}/pascal"], capture_output=True, check=False, timeout=300
    )
    if here.returncode:
        pytest.skip(f"{REPOSITORY}/pascal is not built here: .ci/run")
    (open_folder / "kernels.json").write_text(
        json.dumps({"model": "tiny-bloom", "max_new_tokens": NEW_TOKENS})
    )
    command = [
        *("docker", "run", "--rm", "--network=none", f"--user={os.getuid()}:{os.getgid()}"),
        *("-e", "PYTHONPATH=/src", "-e", "HOME=/tmp", "-e", "OMP_NUM_THREADS=1"),
        *("-v", f"{ROOT / 'lab'}:/src/lab:ro", "-v", f"{open_folder}:/out", "-w", "/out"),
        f"{REPOSITORY}/pascal",
        "python",
        *WORKLOAD.split(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    holds_1_12(open_folder)


@pytest.mark.skipif(
    "LAB_PYTHON_TORCH112" not in os.environ, reason="LAB_PYTHON_TORCH112 names no Python with torch 1.12.1"
)
def test_profile_and_recorder_work_under_torch_1_12(tmp_path):
    done = profile(tmp_path, os.environ["LAB_PYTHON_TORCH112"])
    assert done.returncode == 0, done.stderr[-3000:]
    holds_1_12(tmp_path)
