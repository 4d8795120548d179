"""`lab run replay` from the command line: verdicts, JSON, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("pandas")
from tests.conftest import ROOT

pytestmark = pytest.mark.torch
PROGRAM = """
import os, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.environ.get("UNSEEDED"):
    torch.seed()
    inputs = torch.ones(4, 4)
for step in range(5):
    x = inputs if os.environ.get("UNSEEDED") else torch.randn(4, 4)
    model(x).sum().backward()
    optimizer.step(), optimizer.zero_grad()
print("went on to the end")
"""


def lab(cwd, *words, **env):
    command = [sys.executable, "-m", "lab", "run", "-q", "-o", "out", "replay", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900)


def test_a_seeded_program_is_bitwise_and_is_ended_after_its_steps(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = lab(tmp_path, "-k", "2", "--steps", "2", "--json", "--", "python", "train.py")
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (answer["replay"], answer["first"], answer["runs"], answer["steps"]) == ("bitwise", None, 2, 2)
    assert answer["repeats"] == 2 * 2 * 2 and answer["events"] > 100
    assert "went on" not in (tmp_path / "out/steps/run-0/run_output.log").read_text()


def test_an_unseeded_dropout_is_named_and_the_exit_code_says_that_runs_differ(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = lab(tmp_path, "-k", "2", "--steps", "1", "--json", "--", "python", "train.py", UNSEEDED="1")
    answer = json.loads(done.stdout)
    first = answer["first"]
    assert done.returncode == 1 and answer["replay"] == "run-to-run", done.stderr
    assert (first["step"], first["rank"], first["module"], first["direction"]) == (1, 0, "1", "forward")
    assert "seed" in first["switch"] and "not seeded" in " ".join(answer["verdict"])


def test_a_program_that_trains_nothing_is_no_all_clear(tmp_path):
    code = "import torch; torch.nn.Linear(2, 2)(torch.ones(2))"
    done = lab(tmp_path, "-k", "1", "--steps", "1", "--repeats", "0", "--", "python", "-c", code)
    assert done.returncode == 1 and "0 of 1 step recorded" in done.stderr
