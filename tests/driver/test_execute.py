"""Which GPUs a step gets, and what the driver does beside it."""

from __future__ import annotations

import json

import pytest

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step
from lab.core.stop import Stop
from lab.driver.execute import StepRunner, check_gpus, pick
from lab.errors import GpuError
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


GPUS = [Gpu(vendor="nvidia", index=n, uuid=f"GPU-{n}") for n in range(3)]


def step(**more):
    return Step(name="one", argv=("x",), **more)


def test_a_step_gets_the_first_free_gpus_or_waits():
    assert pick(step(num_gpus=2), GPUS) == GPUS[:2] and pick(step(num_gpus=2), GPUS[:1]) is None
    assert pick(step(), []) == []


@pytest.mark.parametrize("name", ["1", "GPU-1"])
def test_a_step_that_names_a_gpu_gets_that_one_or_waits_for_it(name):
    assert pick(step(num_gpus=1, gpu=name), GPUS) == [GPUS[1]]
    assert pick(step(num_gpus=1, gpu=name), [GPUS[0], GPUS[2]]) is None


def test_a_gpu_that_was_not_picked_is_refused_before_anything_runs():
    check_gpus([step(num_gpus=1, gpu="2")], GPUS)
    with pytest.raises(GpuError, match="needs GPU 7"):
        check_gpus([step(num_gpus=1, gpu="7")], GPUS)


def test_the_place_is_part_of_what_is_measured_and_none_changes_nothing():
    plain = step(num_gpus=1)
    prints = {one.fingerprint() for one in (plain, step(num_gpus=1, gpu="0"), step(num_gpus=1, node="0"))}
    assert len(prints) == 3 and plain.fingerprint() == Step(name="two", argv=("x",), num_gpus=1).fingerprint()
