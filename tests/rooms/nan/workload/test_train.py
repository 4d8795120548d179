"""`lab run nan train`: any script under the guard."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.nan.config import NanConfig, TrainConfig  # noqa: E402
from lab.rooms.nan.plan import plan  # noqa: E402
from lab.rooms.nan.workload.train import run_command  # noqa: E402
from tests.command import lab  # noqa: E402
from tests.conftest import ROOT  # noqa: E402


def only_record(folder):
    (path,) = folder.glob("guard_*.json")
    return json.loads(path.read_text())


OPERATORS = hasattr(torch._C._autograd, "_get_sequence_nr")


SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.bad = nn.Linear(4, 4), nn.Linear(4, 1), False
    def forward(self, x):
        y = self.a(x)
        return self.b(y / 0 if self.bad else y)
net = Net()
optimizer = torch.optim.Adam(net.parameters())
criterion = nn.MSELoss()
for step in range(4):
    net.bad = step == 2 and 'bad' in sys.argv
    optimizer.zero_grad()
    criterion(net(torch.ones(2, 4)), torch.zeros(2, 1)).backward()
    optimizer.step()
print(sorted(float(p.detach().sum()) for p in net.parameters()))
sys.exit(3 if 'fail' in sys.argv else 0)
"""


def run(tmp_path, *words, plain=False):
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT)
    out.mkdir(exist_ok=True)
    if plain:
        env = {**os.environ, "PYTHONPATH": ""}
        return subprocess.run(
            [sys.executable, str(script), *words], env=env, capture_output=True, text=True
        ).stdout
    config = TrainConfig(command=("python", "train.py", *words), cwd=str(tmp_path), on_bad="replay")
    return run_command(config, out), out


def test_a_script_that_knows_no_guard_is_guarded(tmp_path, capfd):
    code, out = run(tmp_path, "bad")
    found = only_record(out)
    assert code == 0 and found["status"] == "bad" and found["model"] == "Net" and found["updates"] == 4
    first = found["first"]
    assert (first["step"], first["stage"]) == (2, "forward") and "after a, before b" in first["place"]
    if OPERATORS:
        assert first["op"]["name"].startswith("aten.div") and "train.py:11" in first["op"]["line"]


def test_a_clean_script_prints_the_same_with_and_without_the_guard_and_keeps_its_exit_code(tmp_path, capfd):
    code, out = run(tmp_path, "fail")
    guarded = capfd.readouterr().out.strip().splitlines()[-1]
    assert code == 3 and guarded == run(tmp_path, plain=True).strip()
    assert only_record(out)["status"] == "clean"


def test_a_command_without_torch_leaves_no_record(tmp_path):
    config = TrainConfig(command=("python", "-c", "print(1)"), cwd=str(tmp_path))
    assert (
        run_command(config, tmp_path) == 0
        and not [*tmp_path.glob("guard_*")]
        and not [*tmp_path.glob("process_*")]
    )


def test_another_sitecustomize_still_runs(tmp_path, monkeypatch, capfd):
    (tmp_path / "sitecustomize.py").write_text("print('mine too')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_command(TrainConfig(command=("python", "-c", "pass"), cwd=str(tmp_path)), tmp_path)
    assert "mine too" in capfd.readouterr().out


def test_the_plan_is_one_step_that_fails_without_a_record():
    from lab.core.plan import Site

    config = NanConfig(
        experiments=("baseline",), train=TrainConfig(command=("python", "x.py"), cwd="/somewhere")
    )
    site = Site(gpus=(), vendor="none") if "vendor" in Site.__struct_fields__ else None
    (step,) = plan(config, site).steps
    assert step.name == "train" and step.expects == ("steps/train/process_*.json",)


def test_a_training_job_without_a_command_is_refused():
    found = lab("run", "nan", "train", cwd=ROOT)
    assert found.returncode == 2 and "train needs a command" in found.stderr
