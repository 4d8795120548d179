"""`lab run nan train`: were all processes, models and losses of a command seen, by the marks they leave?"""

from __future__ import annotations

import os
import signal
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.nan.config import TrainConfig  # noqa: E402
from lab.rooms.nan.guarded.read import (  # noqa: E402
    read,
    verdict_of,
)
from lab.rooms.nan.workload.train import run_command  # noqa: E402

HOOKS = int(torch.__version__.split(".")[0]) >= 2  # torch tells of updates
TRAIN = """
import os, sys, signal, torch
from torch import nn
def train(bad=None, steps=3):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        loss = model(torch.ones(3, 4)).square().mean() * (float("inf") if step == bad else 1)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
SCORE = "import torch; torch.nn.Linear(2, 1).eval()(torch.ones(1, 2))"


def verdict(tmp_path, *programs, code=0):
    """Run the programs one after another in one command; the verdict of all marks and records."""
    lines = []
    for number, text in enumerate(programs):
        (tmp_path / f"p{number}.py").write_text(text)
        lines.append(f"{sys.executable} p{number}.py")
    out = tmp_path / "out"
    out.mkdir()
    command = ("bash", "-c", "; ".join(lines))
    assert run_command(TrainConfig(command=command, cwd=str(tmp_path), on_bad="keep"), out) == code
    job = read([out])
    assert not job.problems
    return verdict_of([record for _, record in job.records], job.marks)


def test_programs_that_follow_each_other_and_leave_at_once_have_a_record_each(tmp_path):
    found = verdict(tmp_path, TRAIN + "train(bad=1); os._exit(0)", SCORE)
    assert found.status == "bad" and found.first.step == 1 and not found.gaps


def test_a_healthy_command_that_becomes_another_program_is_clean(tmp_path):
    becomes = f'train(); os.execv(sys.executable, [sys.executable, "-c", {SCORE!r}])'
    assert verdict(tmp_path, TRAIN + becomes).status == "clean"


@pytest.mark.parametrize(
    "leaves",
    [
        "os._exit(status=0)",
        f'os.execve(sys.executable, [sys.executable, "-c", {SCORE!r}], env=dict(os.environ))',
    ],
)
def test_a_program_may_leave_by_keywords(tmp_path, leaves):
    assert verdict(tmp_path, TRAIN + f"train(); {leaves}").status == "clean"


FORKED = "train(); pid = os.fork()\nif not pid: train(bad=1); os._exit(0)\nos.waitpid(pid, 0)"


def test_a_forked_child_has_a_record_of_its_own(tmp_path):
    assert verdict(tmp_path, TRAIN + FORKED).status == "bad"


def test_what_is_killed_leaves_a_mark_without_an_end(tmp_path):
    code = 128 + signal.SIGKILL
    found = verdict(tmp_path, TRAIN + "train(); os.kill(os.getpid(), signal.SIGKILL)", code=code)
    assert found.status == "partly-seen" and "has no end" in found.gaps[0]


def test_no_model_is_too_many_and_none_trained_is_not_clean(tmp_path):
    many = "for number in range(10): train(bad=1 if number == 9 else None)"
    assert verdict(tmp_path, TRAIN + many).status == "bad"
    (tmp_path / "second").mkdir()
    found = verdict(tmp_path / "second", SCORE)
    assert found.status == "partly-seen" and "nothing was trained" in found.gaps[0]


@pytest.mark.skipif(not HOOKS, reason="this torch does not tell of updates")
def test_tensors_of_an_optimizer_that_belong_to_no_model_are_looked_at(tmp_path):
    text = """
x = torch.zeros(5, requires_grad=True)
optimizer = torch.optim.Adam([x], 0.1)
for step in range(4):
    optimizer.param_groups[0]["lr"] = float("nan") if step == 3 else 0.1
    optimizer.zero_grad(); x.square().sum().backward(); optimizer.step()
"""
    found = verdict(tmp_path, TRAIN + text)
    assert found.status == "bad" and found.first.step == 3 and "no watched model" in found.first.place


def test_marks_of_helpers_and_of_idle_children_are_not_held_against_a_job(tmp_path):
    assert os.sep in str(tmp_path)
    from lab.rooms.nan.guarded.read import Mark, Record

    record = Record(
        format=1, rank=0, world=1, status="clean", updates=3, sentence="", ended=True, process="a"
    )
    whole = Mark(format=1, pid=1, ended="at exit", models=1)
    for mark, status in (
        (Mark(format=1, pid=2, helper=True), "clean"),
        (Mark(format=1, pid=2, forked=True), "clean"),
        (Mark(format=1, pid=2), "partly-seen"),
        (Mark(format=1, pid=2, forked=True, models=1), "partly-seen"),
        (
            Mark(format=1, pid=2, ended="at exit", unwatched={"Net": "torch.jit.trace traces it"}),
            "partly-seen",
        ),
    ):
        assert verdict_of([record], {"a": whole, "b": mark}).status == status
