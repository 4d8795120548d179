"""Each example runs as a reader runs it, and prints what the docs quote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
TORCH = pytest.mark.torch
# folder -> sentences of its output
CASES = [
    pytest.param("guard_training", ("exit code of lab: 1",), marks=TORCH),
    pytest.param("first_nan", ("bad", "model.layers.2.self_attn"), marks=TORCH),
    pytest.param("read_trace", ("recording: complete", "357 GPU rows", "NVIDIA H200", "report.html")),
    pytest.param("compare_traces", ("aten::native_layer_norm", "exit code of lab check: 1")),
    pytest.param("sweep_two_settings", ("256t_42ch: ok", "no configuration wins"), marks=TORCH),
    pytest.param("slurm_sweep", ("8 steps", "--nnodes=2")),
    pytest.param("semicrf_head", ("frames labelled right: 9",), marks=TORCH),
    pytest.param("power_log", ("above idle over 5.00 s", '"gross_j":346')),
    pytest.param("own_image", ("NVIDIA's PyTorch, for this team", "localhost/team/mine")),
    pytest.param("own_room", ("A copy of 16 MiB runs at",)),
]


@pytest.mark.parametrize(("name", "sentences"), CASES)
def test_an_example_runs(name: str, sentences: tuple[str, ...], tmp_path: Path) -> None:
    if name == "first_nan":
        pytest.importorskip("transformers")
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-e", "run.sh"], cwd=folder, env=env, capture_output=True, text=True, timeout=900
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert [sentence for sentence in sentences if sentence not in output] == []


def test_every_example_is_run_and_listed() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if (path / "run.sh").exists()}
    assert folders == {case.values[0] for case in CASES}
    index = (EXAMPLES / "README.md").read_text()
    assert [name for name in sorted(folders) if f"]({name})" not in index] == []
