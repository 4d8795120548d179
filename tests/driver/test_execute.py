"""What the driver does beside a step."""

from __future__ import annotations

import json

import pytest

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.core.stop import Stop
from lab.driver.execute import StepRunner
from lab.power.sampling import SUMMARY
from tests.core.test_manifest import a_manifest
from tests.driver.made import a_step, recording


class Engine:
    """An engine that says ok; on other machines, or without GPUs of its own, nothing is sampled."""

    def __init__(self, *, here: bool) -> None:
        self.runs_here = here

    def run(self, run, step, gpus, *, on_line, stop):
        return Outcome(status=Status.ok, started_utc="2026-01-01T00:00:00.000+00:00")


@pytest.mark.parametrize("here", [True, False])
def test_the_gpus_of_a_step_are_sampled_beside_it_where_they_are(tmp_path, monkeypatch, here):
    monkeypatch.setenv("LAB_SYS_ROOT", str(tmp_path / "sys"))
    step = a_step("one")
    run = recording(tmp_path / "run", {"one": Outcome(status=Status.ok, started_utc="x")})
    run.folder(step).mkdir(parents=True, exist_ok=True)
    runner = StepRunner(run, Engine(here=here), [], Stop())
    gpu = Gpu(vendor="amd", index=0, uuid="GPU-a", render_node="/dev/dri/renderD128")
    assert runner._attempt(step, [gpu]).status is Status.ok
    path = run.folder(step) / SUMMARY
    assert path.exists() is here
    if here:
        assert "no hwmon files" in json.loads(path.read_text())["reasons"]["GPU-a"]


def test_a_step_that_is_not_needed_any_more_is_skipped_with_its_reason_and_starts_nothing(tmp_path):
    run = Run.create(tmp_path / "run", a_manifest(*(a_step(name) for name in ("one", "two", "three"))))
    started = []

    class Counting(Engine):
        def run(self, run, step, gpus, *, on_line, stop):
            started.append(step.name)
            return Outcome(status=Status.failed)

    spare = {"one": "", "two": "decided before", "three": ""}
    runner = StepRunner(run, Counting(here=False), [], Stop(), spare=lambda step: spare[step.name])
    runner.execute(run.pending(), [], jobs=1)
    assert started == ["one", "three"]
    record = Run.open(run.root).record(a_step("two"))
    assert (record.attempts, record.outcome.status, record.outcome.reason) == (
        0,
        Status.skipped,
        "decided before",
    )
    assert [step.name for step in Run.open(run.root).pending()] == ["one", "three"]
