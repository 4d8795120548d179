"""The oldest torch that lab supports, in a Python of its own: what the docs' table says of it."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

PROGRAM = """
import json, torch
from torch import nn
from lab import nan

def run(fault):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with nan.guard(model, optimizer) as g:
        for step in range(12):
            bad = float("nan") if step == 10 else 1.0
            optimizer.zero_grad()
            out = model(torch.randn(8, 4) * (bad if fault == "batch" else 1))
            (out * (bad if fault == "loss" else 1)).square().mean().backward()
            if fault == "gradient":
                model[2].weight.grad.mul_(bad)
            if fault == "update":
                optimizer.param_groups[0]["lr"] = 1e-2 * bad
            optimizer.step()
    first = g.first
    return [g.status, g.training.state.failed, first and first.stage, first and first.step]

faults = ("none", "batch", "loss", "gradient", "update")
print(json.dumps([torch.__version__, {fault: run(fault) for fault in faults}]))
"""


@pytest.mark.skipif(
    "LAB_PYTHON_TORCH112" not in os.environ, reason="LAB_PYTHON_TORCH112 names no Python with torch 1.12.1"
)
def test_a_guard_under_torch_1_12_names_stage_and_step():
    done = subprocess.run(
        [os.environ["LAB_PYTHON_TORCH112"], "-c", PROGRAM], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    version, found = json.loads(done.stdout)
    assert version.startswith("1.12")
    assert found == {
        "none": ["clean", 0, None, None],
        "batch": ["bad", 0, "batch", 10],
        "loss": ["bad", 0, "loss", 10],
        "gradient": ["bad", 0, "clipped", 10],
        "update": ["bad", 0, "weights_after", 10],
    }
