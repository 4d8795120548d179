<<<<<<< HEAD
"""What the driver does beside a step."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from lab.core.gpu import Gpu
from lab.core.step import Outcome, Status
from lab.core.stop import Stop
from lab.driver.execute import StepRunner
from lab.gpus.sampling import SUMMARY
from tests.driver.made import a_step, recording


class Engine:
    """An engine that says ok; on other machines, or without GPUs of its own, nothing is sampled."""

    def __init__(self, *, here: bool) -> None:
        self.holds_gpus = self.runs_here = here

    def run(self, run, step, gpus, *, on_line, stop):
        return Outcome(status=Status.ok, started_utc="2026-01-01T00:00:00.000+00:00")


@pytest.mark.parametrize("here", [True, False])
def test_the_gpus_of_a_step_are_sampled_beside_it_where_they_are(tmp_path, monkeypatch, here):
    monkeypatch.setenv("LAB_SYS_ROOT", str(tmp_path / "sys"))
    step = a_step("one")
    run = recording(tmp_path / "run", {"one": Outcome(status=Status.ok, started_utc="x")})
    run.folder(step).mkdir(parents=True, exist_ok=True)
    runner = StepRunner(run, Engine(here=here), [], Stop(), lambda _: nullcontext(True))
    gpu = Gpu(vendor="amd", index=0, uuid="GPU-a", render_node="/dev/dri/renderD128")
    assert runner._attempt(step, [gpu]).status is Status.ok
    path = run.folder(step) / SUMMARY
    assert path.exists() is here
    if here:
        assert "no hwmon files" in json.loads(path.read_text())["reasons"]["GPU-a"]
=======
"""Which GPUs a step gets, and steps that name one."""

from __future__ import annotations

import pytest

from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.driver.execute import check_gpus, pick
from lab.errors import GpuError

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
>>>>>>> 7b7343ebb8d794daafe68b70bcdf005deba58963
