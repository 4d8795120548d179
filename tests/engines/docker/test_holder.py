"""Steps without network share one sleeping namespace, one at a time, on a real engine."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap

import msgspec
import pytest

from lab.core.step import Status
from lab.core.stop import Stop

pytest.importorskip("docker")
from lab.driver.execute import StepRunner
from lab.engines.docker import engine as docker_engine
from lab.engines.docker import holder as holders
from lab.engines.docker.client import connect
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.labels import container_name, driver_labels
from lab.engines.docker.leftovers import leftovers, stop_run
from lab.engines.docker.nature import Nature, shares_network
from tests.conftest import ROOT
from tests.engines.docker.fixtures import (  # noqa: F401
    REF,
    a_docker_run,
    an_image,
    busybox,
    docker,
    hook_says,
    left_of,
    nvidia,
    own_caches,
    quiet_hook,
    reap_below,
    shell,
    systems_engine,
    until,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("busybox", "own_caches", "systems_engine")]


class Watcher:
    """What the steps print, and whose network their containers have at their first line.

    The numbers of namespaces prove nothing: the kernel gives them again.
    """

    def __init__(self, run) -> None:
        self.run, self.lines, self.networks = run, {}, {}

    def begin(self, step) -> None:
        self.lines[step.name] = []

    def end(self, *_) -> None: ...

    def line(self, step, line) -> None:
        if not line.startswith("lab: "):
            name = container_name(self.run, step)
            mode = docker("inspect", "-f", "{{.HostConfig.NetworkMode}}", name).strip()
            self.networks.setdefault(step.name, mode)
        self.lines[step.name].append(line)

    @property
    def joined(self) -> list[str]:
        """The holders of the steps in turn; "none": a namespace of its own."""
        return [self.networks[name].removeprefix("container:") for name in self.lines]


def execute(root, steps, *, jobs=1, gpus=(), image=None, watch=Watcher):
    """-> the run and what was seen of its steps."""
    run = a_docker_run(root, *steps)
    seen, engine = watch(run), DockerEngine(image or an_image(), grace_s=1)
    runner = StepRunner(run, engine, [seen], Stop(), lambda _: contextlib.nullcontext(True))
    runner.execute(steps, list(gpus), jobs=jobs)
    return run, seen


def steps_that(script: str, number: int = 3, **fields):
    return [shell(script, name=f"s{n}", folder=f"s{n}", **fields) for n in range(number)]


def held(run) -> list:
    return [one for one in leftovers(run_dir=run.root) if one.holder]


def all_ok(run) -> bool:
    return all(record.outcome.ok for record in run.manifest.steps)


def test_steps_in_turn_share_a_namespace_with_nothing_but_the_loopback(tmp_path):
    run, seen = execute(tmp_path / "r", steps_that("ls /sys/class/net; hostname; cat /etc/hosts"))
    (holder,) = set(seen.joined)
    assert len(holder) == 64 and all_ok(run) and left_of(run) == []
    for lines in seen.lines.values():
        assert lines[:2] == ["lo", "lab"] and "127.0.0.1\tlab" in lines


@pytest.mark.usefixtures("quiet_hook")
def test_a_step_on_one_gpu_joins_as_well(tmp_path):
    steps = steps_that("env", num_gpus=1)
    _, seen = execute(tmp_path / "r", steps, gpus=nvidia(3), image=an_image("nvidia"))
    (holder,) = set(seen.joined)
    assert len(holder) == 64 and "NVIDIA_VISIBLE_DEVICES=GPU-1234-3" in seen.lines["s2"]


def test_steps_side_by_side_never_meet_on_one_loopback(tmp_path):
    """Each of two waits until the other runs; the third takes a namespace that is free again."""
    meet = "touch /out/up.$0; while [ ! -e /out/up.s0 ] || [ ! -e /out/up.s1 ]; do sleep 0.05; done; echo met"
    steps = [msgspec.structs.replace(step, argv=("sh", "-c", meet, step.name)) for step in steps_that("", 3)]
    run, seen = execute(tmp_path / "r", steps, jobs=2)
    first, second, third = (seen.networks[name] for name in ("s0", "s1", "s2"))
    assert first != second and third in (first, second) and left_of(run) == []


def test_few_steps_do_not_repay_a_holder(tmp_path):
    run, seen = execute(tmp_path / "r", steps_that("echo up", 2))
    assert seen.joined == ["none", "none"] and all_ok(run)


@pytest.mark.usefixtures("quiet_hook")
def test_a_step_with_a_network_of_its_own_does_not_join(tmp_path):
    """As a fetch has, and several GPUs."""
    steps = steps_that("ls /sys/class/net", num_gpus=2)
    run, seen = execute(tmp_path / "r", steps, gpus=nvidia(3, 5), image=an_image("nvidia"))
    assert seen.joined == ["bridge"] * 3 and seen.lines["s0"] == ["eth0", "lo"] and left_of(run) == []


class Killer(Watcher):
    """Kills the holder while the first step runs."""

    def line(self, step, line) -> None:
        super().line(step, line)
        if line == "up":
            (one,) = held(self.run)
            docker("kill", one.container)
            until(lambda: not held(self.run))


def test_a_holder_that_is_killed_costs_the_running_step_nothing_and_the_next_one_says_so(tmp_path):
    steps = [*steps_that("echo up; sleep 0.5; ls /sys/class/net", 1), *steps_that("echo on", 3)[1:]]
    run, seen = execute(tmp_path / "r", steps, watch=Killer)
    assert all_ok(run) and seen.lines["s0"] == ["up", "lo"]
    assert (seen.lines["s1"], seen.lines["s2"]) == ([f"lab: {holders.GONE}", "on"], ["on"])
    first, second, third = seen.joined
    assert first != second == third != "none" and left_of(run) == []


def test_where_no_holder_can_be_made_each_step_gets_its_own_namespace_and_one_says_why(tmp_path, monkeypatch):
    made = holders.holder_spec
    monkeypatch.setattr(
        holders, "holder_spec", lambda spec: msgspec.structs.replace(made(spec), command=("not-there",))
    )
    run, seen = execute(tmp_path / "r", steps_that("echo up"))
    why, up = seen.lines["s0"]
    assert why.startswith(f"lab: {holders.OWN}: ") and "not-there" in why and up == "up"
    assert seen.joined == ["none"] * 3 and seen.lines["s1"] == ["up"]
    assert all_ok(run) and left_of(run) == []


def test_where_holders_die_at_once_steps_run_all_the_same(tmp_path, monkeypatch):
    made = holders.holder_spec
    monkeypatch.setattr(
        holders, "holder_spec", lambda spec: msgspec.structs.replace(made(spec), command=("true",))
    )
    run, seen = execute(tmp_path / "r", steps_that("echo up"))
    assert all_ok(run) and seen.joined[1:] == ["none"] * 2 and left_of(run) == []
    assert [line for line in seen.lines["s0"] if line.startswith("lab: ")] == [
        f"lab: {text}" for text in (holders.GONE, holders.GONE, holders.OWN)
    ]


def test_a_step_that_cannot_start_is_told_as_ever_and_the_holder_serves_the_next(tmp_path):
    good, bad = steps_that("echo up"), shell("true", name="bad", folder="bad", num_gpus=1)
    with hook_says("an odd text"):
        run, seen = execute(
            tmp_path / "r", [good[0], bad, *good[1:]], gpus=nvidia(3), image=an_image("nvidia")
        )
    assert run.record(bad).outcome.status is Status.failed and "odd text" in run.record(bad).outcome.reason
    (holder,) = {seen.networks[step.name] for step in good}
    assert holder.startswith("container:") and left_of(run) == []


DRIVER = """
    import contextlib, sys
    from pathlib import Path
    from lab.core.run import Run
    from lab.core.stop import Stop
    from lab.driver.execute import StepRunner
    from lab.engines.docker.engine import DockerEngine
    from tests.engines.docker.fixtures import an_image
    run = Run.open(Path(sys.argv[1]))
    class Tell:
        def begin(self, *_): ...
        def end(self, *_): ...
        def line(self, step, line): print(line, flush=True)
    steps = [record.step for record in run.manifest.steps]
    StepRunner(run, DockerEngine(an_image()), [Tell()], Stop(),
               lambda _: contextlib.nullcontext(True)).execute(steps, [], jobs=1)
"""


def test_a_killed_driver_leaves_its_step_and_no_holder(tmp_path):
    first, *others = steps_that("echo up; sleep 2; ls /sys/class/net; exit 7")
    run = a_docker_run(tmp_path / "r", first, *others)
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(run.root)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert driver.stdout and driver.stdout.readline() == b"up\n"
    assert [one.driver_alive for one in held(run)] == [True]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    until(lambda: not held(run))
    run = type(run).open(run.root)
    lines: list[str] = []
    outcome = DockerEngine(an_image()).attach(run, first, on_line=lines.append, stop=Stop())
    assert outcome.exit_code == 7 and lines == ["up", "lo"] and left_of(run) == []


def a_holder_of(root, driver: dict[str, str], how: tuple[str, ...] = ("run", "-d")) -> str:
    """As one whose connection outlived its driver, such as behind a proxy of the engine's socket."""
    labels = {"lab.holder": "1", "lab.run": root.name, "lab.run_dir": str(root), **driver}
    words = [word for pair in labels.items() for word in ("--label", "=".join(pair))]
    return docker(*how, "--rm", "--network", "none", *words, REF, "sleep", "300").strip()


def test_the_reaper_takes_a_dead_drivers_holder_without_being_asked_for_what_runs(tmp_path):
    """Or the reaper of another test that runs beside this one."""
    a_holder_of(tmp_path, {**driver_labels(), "lab.pid": str(2**22)})
    reap_below(tmp_path)
    until(lambda: leftovers(run_dir=tmp_path) == [])


def test_the_next_driver_removes_a_holder_that_a_killed_one_could_not_start(tmp_path):
    """It never runs, so nothing ends it; one of a living driver is about to be started."""
    root, dead = tmp_path / "r", {**driver_labels(), "lab.pid": str(2**22)}
    steps = steps_that("true")
    run = a_docker_run(root, *steps)
    a_holder_of(root, dead, ("create",))
    living = a_holder_of(root, driver_labels(), ("create",))
    try:
        with DockerEngine(an_image()).starting(run, steps[:1]):
            assert [one.container for one in held(run)] == [living]
    finally:
        docker("rm", "-f", living)


def test_stopping_a_run_ends_its_holder(tmp_path):
    left = a_holder_of(tmp_path, driver_labels())
    assert [one.container for one in stop_run(tmp_path.name, 1, run_dir=tmp_path)] == [left]
    until(lambda: not leftovers(run_dir=tmp_path))


class Reaper(Watcher):
    def line(self, step, line) -> None:
        super().line(step, line)
        assert reap_below(self.run.root, running=True) == []


def test_the_reaper_leaves_a_living_drivers_holder(tmp_path):
    run, seen = execute(tmp_path / "r", steps_that("echo up"), watch=Reaper)
    assert all_ok(run) and len(set(seen.joined)) == 1


def test_a_dry_run_says_where_the_network_comes_from(tmp_path):
    here = str(tmp_path)
    shown = DockerEngine(an_image()).preview(shell("true"), [], run_dir=here)
    assert shown["network_mode"] == "none" and "3 or more steps" in shown["network_holder"]
    pair = DockerEngine(an_image("nvidia")).preview(
        shell("true", num_gpus=2), nvidia(3, 5), run_dir=str(tmp_path)
    )
    assert pair["network_mode"] == "bridge" and "network_holder" not in pair


@pytest.mark.parametrize(
    "other", [Nature(is_podman=True), Nature(user_mapping="rootless-docker"), Nature(user_mapping="remapped")]
)
def test_podman_and_engines_that_map_users_keep_a_namespace_per_step(other, tmp_path, monkeypatch):
    assert shares_network(connect()) and not shares_network(other)
    monkeypatch.setattr(docker_engine, "shares_network", lambda _: False)
    run, seen = execute(tmp_path / "r", steps_that("echo up"))
    assert seen.joined == ["none"] * 3 and all_ok(run)
