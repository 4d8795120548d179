"""Containers that start, or say why not, on a real engine."""

from __future__ import annotations

import contextlib
import subprocess

import msgspec
import pytest

from lab.core.run import Run
from lab.core.step import Status, Step
from lab.core.stop import Stop
from lab.errors import BusyError, EngineError

pytest.importorskip("docker")
from lab.driver.execute import StepRunner
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.host import host_context
from lab.engines.docker.which_lab import refuse_moved_tag
from lab.images.container import container_spec
from tests.engines.docker.fixtures import (  # noqa: F401
    REF,
    WHEEL,
    a_docker_run,
    an_image,
    begun,
    busybox,
    left_of,
    own_caches,
    run_step,
    shell,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("busybox", "own_caches")]


def test_an_image_whose_name_goes_between_two_steps_loses_nothing(tmp_path):
    """A driver runs by the id it saw first; the next gets an error, and finishes once the name is back."""
    ref = "lab-test/vanishing:engine"
    subprocess.run(["docker", "tag", REF, ref], check=True)
    image = msgspec.structs.replace(an_image(), ref=ref)
    steps = [shell(f"echo {name}", name=name, folder=name) for name in ("one", "two", "three")]
    run = a_docker_run(tmp_path / "r", *steps)

    def runner():
        return StepRunner(run, DockerEngine(image), [], Stop())

    first = runner()
    first.execute(steps[:1], [], jobs=1)
    subprocess.run(["docker", "rmi", ref], check=True, capture_output=True)
    first.execute(steps[1:2], [], jobs=1)
    assert run.pending() == steps[2:]
    runner().execute(steps[2:], [], jobs=1)
    assert f"{ref} is not on this engine" in run.record(steps[2]).outcome.reason
    subprocess.run(["docker", "tag", REF, ref], check=True)
    runner().execute(run.pending(), [], jobs=1)
    subprocess.run(["docker", "rmi", ref], check=True, capture_output=True)
    assert run.pending() == []


def test_the_image_record_says_what_exactly_ran():
    record = DockerEngine(an_image()).image_record()
    assert record.id and record.id.startswith("sha256:") and record.wheel_sha256 == WHEEL
    assert record.ref == REF and record.digests == ()


@pytest.mark.parametrize(
    "title, ref, base, refused",
    [
        ("lab/pascal", "localhost/lab/cuda", "nvidia/cuda:12.8", True),
        ("lab/cpu", "localhost/lab/cpu-torch:latest", "python:3.12", True),
        ("lab/cuda", "localhost/lab/cuda", "nvidia/cuda:12.8", False),
        ("lab/cuda", "localhost/lab/pascal", "localhost/lab/cuda:latest", False),
        ("lab/cuda", "localhost/me/other", "localhost/lab/cuda", False),
        ("", "localhost/lab/cuda", "nvidia/cuda:12.8", False),
    ],
)
def test_a_name_that_was_moved_to_another_image_of_lab_is_refused(title, ref, base, refused):
    """An image made of another keeps that one's label, and says so by its base."""
    image = msgspec.structs.replace(an_image(), ref=ref, base=base)
    with pytest.raises(EngineError, match=f"labelled {title}") if refused else contextlib.nullcontext():
        refuse_moved_tag(ref, {"org.opencontainers.image.title": title}, image)


CANNOT_START = {
    "no-such-program": "has no program 'no-such-program'",
    "/bin/not-executable": "cannot be run in the image",
}


@pytest.mark.parametrize("program", CANNOT_START)
def test_a_program_that_cannot_start_is_an_engine_error_and_leaves_no_container(tmp_path, program):
    # Without docker-init in front, which would start well and fail inside.
    step = Step(name="s", argv=(program,), folder="s")
    run = begun(tmp_path / "r", step)
    engine = DockerEngine(an_image())
    spec = msgspec.structs.replace(
        container_spec(an_image(), step, [], host_context(str(run.root), [])), init=False
    )
    with pytest.raises(EngineError, match=CANNOT_START[program]):
        engine.run_spec(run, step, spec, on_line=print, stop=Stop())
    assert left_of(run) == []


def test_a_program_that_is_not_there_behind_init_is_a_failed_step(tmp_path):
    ran = run_step(tmp_path / "r", Step(name="s", argv=("no-such-program",), folder="s"))
    assert ran.outcome.status is Status.failed and ran.outcome.exit_code == 127
    assert "no-such-program" in ran.log


def test_two_drivers_cannot_run_one_step_at_once(tmp_path):
    step, stop, trouble = shell("echo up; sleep 300"), Stop(), []

    def meanwhile(run: Run, _line: str) -> None:
        try:
            DockerEngine(an_image()).run(run, step, [], on_line=print, stop=Stop())
        except BusyError as error:
            trouble.append(str(error))
        stop.set()

    run_step(tmp_path / "r", step, stop=stop, grace_s=1, meanwhile=meanwhile)
    assert len(trouble) == 1 and "lab run --resume" in trouble[0]


def test_locked_memory_that_the_engine_may_not_lift_is_left_out_with_a_warning(tmp_path):
    """On an engine that may lift it, the limit is simply there: either way the step runs."""
    step = shell("grep 'Max locked' /proc/self/limits")
    run = begun(tmp_path / "r", step)
    spec = container_spec(an_image(), step, [], host_context(str(run.root), []))
    wanted = msgspec.structs.replace(spec, ulimits={**spec.ulimits, "memlock": -1})
    lines: list[str] = []
    assert DockerEngine(an_image()).run_spec(run, step, wanted, on_line=lines.append, stop=Stop()).ok
    unlimited = "unlimited" in lines[-1]
    assert unlimited is not any(line.startswith("lab: ") and "locked memory" in line for line in lines)
