"""A run goes on with the GPUs and the CPU that it began with: its manifest names them once for all steps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.core.options import Options
from lab.core.plan import Experiment, Plan
from lab.core.run import Run
from lab.core.step import Step
from lab.driver.drive import drive, resume
from lab.errors import GpuError, StepFailed, UsageError

FIRST, SECOND = "GPU-aaaa1111-0000-0000-0000-000000000000", "GPU-bbbb2222-0000-0000-0000-000000000000"
SEEN = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES']); sys.exit(not os.path.exists('go'))"


def _machine(folder: Path, monkeypatch, driver: str = "580.1") -> None:
    rows = "".join(
        f"{i}, {uuid}, NVIDIA H200, {driver}, 143771, 700.00, 1980, 3201, 9.0, Disabled\n"
        for i, uuid in enumerate((FIRST, SECOND))
    )
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{rows}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run on the second GPU whose only step failed; it ends well once the run folder has a file `go`."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("LAB_LEASES", str(tmp_path / "leases"))
    _machine(tmp_path, monkeypatch)
    with pytest.raises(StepFailed):
        _drive(tmp_path / "run", gpus="1-1")
    (tmp_path / "run/go").touch()
    return Run.open(tmp_path / "run")


def _drive(root: Path, *more: str, num_gpus: int = 1, **flags) -> None:
    shared = {"argv": ("python", "-c", SEEN), "num_gpus": num_gpus}
    plan = Plan(steps=tuple(Step(name=name, folder=name, **shared) for name in ("a", *more)))
    options = Options(engine="local", analysis="none", output_dir=root, **flags)
    drive(Experiment("semicrf", lambda *_: plan, options))


def _ran_on(run: Run) -> str:
    return run.log(run.manifest.steps[0].step).read_text().strip()


def test_a_resumed_step_gets_the_gpu_that_the_manifest_names(begun):
    assert _ran_on(begun) == SECOND
    resume(begun.root, Options(analysis="none", quiet=True))
    after = Run.open(begun.root)
    assert [gpu.uuid for gpu in after.manifest.gpus] == [SECOND]
    assert _ran_on(after) == SECOND and after.manifest.steps[0].attempts == 2


def test_a_run_without_gpus_goes_on_without_any(begun, tmp_path, monkeypatch):
    with pytest.raises(StepFailed):
        _drive(tmp_path / "cpu", num_gpus=0, gpus="none")
    (tmp_path / "cpu/go").touch()
    resume(tmp_path / "cpu", Options(analysis="none", quiet=True))
    assert _ran_on(Run.open(tmp_path / "cpu")) == "-1"


def test_a_run_is_not_continued_on_other_gpus(begun):
    for flags in ({"gpus": "0-0"}, {"gpus": "2"}, {"gpus": "none"}):
        with pytest.raises(UsageError, match="began with other GPUs"):
            resume(begun.root, Options(analysis="none", quiet=True, **flags))
    with pytest.raises(UsageError, match="began with other GPUs"):
        _drive(begun.root, "b", gpus="0-0", skip_existing=True)
    assert len(Run.open(begun.root).manifest.steps) == 1


def test_a_gpu_that_is_hidden_now_is_named(begun, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(GpuError, match=f"goes on only with the GPUs .*{SECOND}") as raised:
        resume(begun.root, Options(analysis="none", quiet=True))
    assert raised.value.fix == "make them visible again, or start a new run"


def test_a_run_is_not_continued_on_another_cpu(begun):
    begun.manifest.host["cpu"] = "another CPU"
    begun.save()
    with pytest.raises(UsageError, match="began with another CPU"):
        resume(begun.root, Options(analysis="none", quiet=True))
    with pytest.raises(UsageError, match="began with another CPU"):
        _drive(begun.root, "b", gpus="1-1", skip_existing=True)


def test_a_run_is_not_continued_with_another_driver(begun, tmp_path, monkeypatch):
    _machine(tmp_path, monkeypatch, driver="590.2")
    with pytest.raises(UsageError, match="another driver") as raised:
        resume(begun.root, Options(analysis="none", quiet=True))
    assert "driver 580.1) then" in str(raised.value.location) and "driver 590.2) now" in str(
        raised.value.location
    )
