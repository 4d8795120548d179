"""Drivers that die and engines that go away, on a real engine."""

from __future__ import annotations

import threading
import time

import pytest

from lab.core.run import Run
from lab.core.step import Status
from lab.core.stop import Stop
from lab.errors import EngineError, EngineLost

pytest.importorskip("docker")
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.leftovers import leftovers, stop_run
from tests.command import until
from tests.engines.docker.fixtures import (  # noqa: F401
    EngineWire,
    an_image,
    busybox,
    kill_driver_of,
    left_of,
    own_caches,
    reap_below,
    run_step,
    shell,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("busybox", "own_caches")]


@pytest.mark.parametrize("then", ["running", "exited"])
def test_a_container_outlives_its_driver_and_the_next_one_gets_log_and_exit_code(tmp_path, then):
    step = shell("echo up; until [ -e s/go ]; do sleep 0.1; done; echo more; exit 7")
    run = kill_driver_of(tmp_path / "r", step)
    (one,) = leftovers(run_dir=run.root)
    assert (one.step, one.running, one.driver_alive, one.fingerprint) == ("s", True, False, "f")
    threading.Timer(1.0, (run.root / "s/go").touch).start()
    until(lambda: left_of(run) == [then])
    lines: list[str] = []
    outcome = DockerEngine(an_image()).attach(run, step, on_line=lines.append, stop=Stop())
    assert outcome is not None and (outcome.exit_code, outcome.status) == (7, Status.failed)
    assert lines == ["up", "more"] and run.log(step).read_text() == "up\nmore\n"
    assert outcome.seconds > 0.9 and left_of(run) == []
    assert DockerEngine(an_image()).attach(run, step, on_line=print, stop=Stop()) is None


def test_a_limit_counts_from_the_start_of_the_container_not_of_the_attaching(tmp_path):
    step = shell("echo up; sleep 300", timeout_s=2.0)
    run = kill_driver_of(tmp_path / "r", step)
    time.sleep(2)
    outcome = DockerEngine(an_image(), grace_s=1).attach(run, step, on_line=print, stop=Stop())
    assert outcome is not None and outcome.status is Status.timeout


def test_a_container_of_another_configuration_is_not_taken_for_this_one(tmp_path):
    step = shell("echo up; sleep 300")
    run = kill_driver_of(tmp_path / "r", step)
    run.manifest.steps[0].fingerprint = "other"
    with pytest.raises(EngineError, match="another configuration"):
        DockerEngine(an_image()).attach(run, step, on_line=print, stop=Stop())
    stop_run(run.root, 1)


def test_stopping_a_run_ends_and_removes_what_its_dead_driver_left(tmp_path):
    run = kill_driver_of(
        tmp_path / "r", shell("trap 'echo bye > s/bye; exit' INT; echo up; while :; do sleep 0.1; done")
    )
    assert [one.step for one in stop_run(run.root, 10)] == ["s"]
    assert left_of(run) == [] and (run.root / "s/bye").read_text() == "bye\n"
    assert stop_run(run.root, 10) == []


def test_the_reaper_takes_what_ended_and_leaves_what_runs_unless_asked(tmp_path):
    ended = kill_driver_of(tmp_path / "ended", shell("echo up; sleep 0.2"))
    runs = kill_driver_of(tmp_path / "runs", shell("echo up; sleep 300"))
    until(lambda: left_of(ended) == ["exited"])
    assert [one.run_dir for one in reap_below(tmp_path)] == [str(ended.root)]
    assert (left_of(ended), left_of(runs)) == ([], ["running"])
    assert [one.run_dir for one in reap_below(tmp_path, running=True)] == [str(runs.root)]
    assert left_of(runs) == []


def test_the_reaper_takes_what_outlived_its_slurm_job_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    mine = kill_driver_of(tmp_path / "mine", shell("echo up; sleep 300"))
    monkeypatch.setenv("SLURM_JOB_ID", "4712")
    other = kill_driver_of(tmp_path / "other", shell("echo up; sleep 300"))
    assert [one.run_dir for one in reap_below(tmp_path, slurm_job="4711")] == [str(mine.root)]
    assert (left_of(mine), left_of(other)) == ([], ["running"])
    assert [one.run_dir for one in reap_below(tmp_path, slurm_job="4712")] == [str(other.root)]


def test_the_reaper_leaves_a_living_drivers_containers_alone(tmp_path):
    stop, seen = Stop(), []

    def meanwhile(run: Run, _line: str) -> None:
        seen.append(reap_below(tmp_path, running=True))
        seen.append(left_of(run))
        stop.set()

    run_step(tmp_path / "r", shell("echo up; sleep 300"), stop=stop, grace_s=1, meanwhile=meanwhile)
    assert seen == [[], ["running"]]


def test_an_engine_that_goes_away_leaves_the_step_to_be_taken_up_again(tmp_path):
    wire, root = EngineWire(tmp_path), tmp_path / "r"
    step = shell("echo up; sleep 2; echo more")
    with pytest.raises(EngineLost, match="may still run") as caught:
        run_step(root, step, daemon=wire.connect, meanwhile=lambda *_: wire.cut())
    assert caught.value.fix and f"lab run --resume {root}" in caught.value.fix
    lines: list[str] = []
    outcome = DockerEngine(an_image()).attach(Run.open(root), step, on_line=lines.append, stop=Stop())
    assert outcome is not None and outcome.ok and lines == ["up", "more"]
