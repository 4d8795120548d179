"""How steps in containers end, on a real engine."""

from __future__ import annotations

import threading
import time

import pytest

from lab.core.run import Run
from lab.core.step import Status
from lab.core.stop import Stop
from lab.errors import EngineError, StorageError

pytest.importorskip("docker")
from docker.api.client import APIClient

from lab.engines.docker import container as containers
from lab.engines.docker import engine as docker_engine
from lab.engines.docker.leftovers import container_name, leftovers
from tests.conftest import small_disk
from tests.engines.docker.fixtures import (  # noqa: F401
    an_image,
    busybox,
    docker,
    left_of,
    own_caches,
    run_step,
    shell,
    systems_engine,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("busybox", "own_caches")]


@pytest.mark.usefixtures("systems_engine")
def test_a_memory_limit_that_is_hit_is_told_from_a_crash(tmp_path):
    ran = run_step(tmp_path / "r", shell("exec tail /dev/zero"), image=an_image(mem_limit="32m"))
    assert ran.outcome.status is Status.oom and ran.outcome.exit_code == 137
    assert "memory limit" in ran.outcome.reason


@pytest.mark.parametrize("ended_before", [False, True])
@pytest.mark.usefixtures("systems_engine")
def test_news_of_a_limit_that_come_after_the_end_are_waited_for(tmp_path, monkeypatch, ended_before):
    """As on a loaded machine, where the host was said to have run out of memory. `ended_before`: the step had
    been killed before anybody watched it."""
    start = containers.start

    def and_wait(daemon, *args, **options):
        container, warnings = start(daemon, *args, **options)
        daemon.client.wait(container)
        return container, warnings

    if ended_before:
        monkeypatch.setattr(containers, "start", and_wait)
    plain, kept_back = APIClient.inspect_container, []

    def late(client, container):
        found = plain(client, container)
        if found["State"]["Status"] == "exited":
            found["State"]["OOMKilled"] = len(kept_back) == 3  # the engine's own news may be lost
            kept_back.append(container) if len(kept_back) < 3 else None
        return found

    monkeypatch.setattr(APIClient, "inspect_container", late)
    ran = run_step(tmp_path / "r", shell("exec tail /dev/zero"), image=an_image(mem_limit="32m"))
    assert len(kept_back) == 3 and "the container hit its memory limit" in ran.outcome.reason


@pytest.mark.usefixtures("systems_engine")
def test_a_child_that_hit_the_limit_is_told_though_the_step_ended_well(tmp_path):
    reasons = []
    while len(reasons) < 5 and not any(reasons):  # an engine under load loses the news now and then
        step = shell("tail /dev/zero; echo went on; exit 0")
        ran = run_step(tmp_path / f"r{len(reasons)}", step, image=an_image(mem_limit="32m"))
        assert ran.outcome.ok and ran.outcome.exit_code == 0 and "went on" in ran.lines
        reasons.append(ran.outcome.reason)
    assert "a child process hit the container's memory limit" in reasons[-1]


def test_a_plain_kill_is_no_memory_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(docker_engine, "oom_kills_since", lambda _: 0)
    ran = run_step(tmp_path / "r", shell("kill -9 $$"), image=an_image(mem_limit="32m"))
    assert ran.outcome.status is Status.failed and ran.outcome.exit_code == 137
    assert "memory limit" not in ran.outcome.reason and "from outside" in ran.outcome.reason


@pytest.mark.parametrize("number, name", [(11, "SIGSEGV"), (6, "SIGABRT")])
def test_a_crash_is_named_by_its_signal(tmp_path, number, name):
    ran = run_step(tmp_path / "r", shell(f"kill -{number} $$"))
    assert ran.outcome.status is Status.failed and f"ended by {name}" in ran.outcome.reason


def test_a_step_past_its_limit_is_stopped(tmp_path):
    ran = run_step(tmp_path / "r", shell("echo up; sleep 300", timeout_s=1.0), grace_s=1)
    assert ran.outcome.status is Status.timeout and "ran past its limit of 1 s" in ran.outcome.reason
    assert ran.lines == ["up"] and ran.outcome.seconds < 150 and left_of(ran.run) == []


def test_silence_past_its_limit_is_a_stall_and_talking_is_not(tmp_path):
    talks = shell("for i in 1 2 3 4 5 6; do echo $i; sleep 1.5; done; sleep 300", stall_timeout_s=8.0)
    ran = run_step(tmp_path / "r", talks, grace_s=1)
    assert ran.outcome.status is Status.timeout and "printed nothing for 8 s" in ran.outcome.reason
    assert ran.lines == list("123456")


CLEANS_UP = "trap 'echo cleaned; exit 0' INT; echo up; while :; do sleep 0.1; done"
STUBBORN = "trap '' INT TERM; echo up; while :; do sleep 0.1; done"


def test_a_stop_lets_the_step_clean_up_first(tmp_path):
    stop = Stop()
    ran = run_step(tmp_path / "r", shell(CLEANS_UP), stop=stop, grace_s=400, meanwhile=lambda *_: stop.set())
    assert ran.outcome.status is Status.interrupted and ran.lines == ["up", "cleaned"]
    assert ran.outcome.seconds < 200 and left_of(ran.run) == []


def test_a_second_stop_kills_at_once(tmp_path):
    stop = Stop()

    def twice(*_) -> None:
        stop.set()
        threading.Timer(1.0, lambda: setattr(stop, "at_once", True)).start()

    began = time.monotonic()
    ran = run_step(tmp_path / "r", shell(STUBBORN), stop=stop, grace_s=400, meanwhile=twice)
    assert ran.outcome.status is Status.interrupted and ran.outcome.exit_code == 137
    assert time.monotonic() - began < 200 and left_of(ran.run) == []


def test_a_step_that_ignores_the_stop_is_killed_after_the_grace(tmp_path):
    stop = Stop()
    stop.set()
    ran = run_step(tmp_path / "r", shell(STUBBORN), stop=stop, grace_s=1)
    assert ran.outcome.status is Status.interrupted and ran.outcome.exit_code == 137


def test_a_container_killed_from_outside_is_a_failure_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(docker_engine, "oom_kills_since", lambda _: 0)  # others test memory limits here
    step = shell("echo up; sleep 300")
    ran = run_step(tmp_path / "r", step, meanwhile=lambda run, _: docker("kill", container_name(run, step)))
    assert ran.outcome.status is Status.failed
    reason = "SIGKILL, not by lab: from outside, as the out-of-memory killer took no process"
    assert reason in ran.outcome.reason


@pytest.mark.parametrize("quiet_s", [0.01, 300])
def test_a_container_removed_from_outside_is_an_engine_error(tmp_path, quiet_s):
    """Also while its log is read, which the daemon answers in other words."""
    step = shell(f"echo up; while :; do sleep {quiet_s}; echo still; done")

    def remove_at_first(run: Run, line: str) -> None:
        if line == "up":
            docker("rm", "-f", container_name(run, step))

    with pytest.raises(EngineError, match="was removed from outside, and its result with it"):
        run_step(tmp_path / "r", step, meanwhile=remove_at_first)


@pytest.mark.usefixtures("systems_engine")
def test_a_fork_bomb_meets_the_limit_of_processes(tmp_path):
    script = "n=0; while [ $n -lt 60 ]; do sleep 600 & n=$((n+1)); done; echo started $n"
    ran = run_step(tmp_path / "r", shell(script, timeout_s=300.0), image=an_image(pids_limit=20), grace_s=1)
    assert "can't fork" in ran.log and "started 60" not in ran.log


@pytest.mark.root
def test_a_full_disk_under_the_log_stops_the_step_with_a_storage_error(tmp_path):
    with small_disk(tmp_path / "disk", "400k") as disk:
        with pytest.raises(StorageError, match="no space left"):
            run_step(
                disk / "r",
                shell("while :; do head -c 50000 /dev/zero | tr '\\0' x; echo; sleep 0.1; done"),
                grace_s=1,
            )
        assert leftovers(run_dir=disk / "r") == []
