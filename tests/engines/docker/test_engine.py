"""The Docker engine against a real daemon. Nothing here asks for a GPU: NVIDIA's hook is a stand-in in the engine's PATH
(tests/fakebin), AMD's nodes are null devices under LAB_DEV_ROOT."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.core.step import Status, Step
from lab.core.stop import Stop
from lab.errors import BusyError, EngineError, EngineLost, GpuError, StorageError, UsageError
from lab.gpus.discover import discover
from tests.conftest import ROOT

pytest.importorskip("docker")
from lab.driver.execute import StepRunner
from lab.engines.docker.client import connect
from lab.engines.docker.engine import DockerEngine, container_name
from lab.engines.docker.leftovers import leftovers, reap, stop_run
from tests.engines.docker.fixtures import (  # noqa: F401
    HOOK_FLAG,
    REF,
    WHEEL,
    Wire,
    a_docker_run,
    an_image,
    busybox,
    hook_says,
    left_of,
    run_step,
    shell,
    stop_when,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("busybox", "own_caches")]


@pytest.fixture
def own_caches(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# What a step gives back.


@pytest.mark.parametrize("code", [0, 1, 42, 130])
def test_an_exit_code_passes_through_and_the_container_is_gone(tmp_path, code):
    ran = run_step(tmp_path / "r", shell(f"exit {code}"))
    assert ran.outcome.exit_code == code
    assert ran.outcome.status is (Status.ok if code == 0 else Status.failed)
    assert left_of(ran.run) == []


def test_both_streams_come_live_and_land_in_the_log(tmp_path):
    seen: dict[str, float] = {}
    step = shell("echo out; sleep 1.5; echo err >&2; printf 'no newline'")
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    DockerEngine(an_image()).run(
        run, step, [], on_line=lambda line: seen.setdefault(line, time.monotonic()), stop=Stop()
    )
    assert next(iter(seen)) == "out" and set(seen) == {"out", "err", "no newline"}
    assert seen["err"] - seen["out"] > 1.0, "the first line came while the step still ran"
    assert sorted(run.log(step).read_text().splitlines()) == ["err", "no newline", "out"]


def test_bytes_that_are_no_text_and_an_endless_line_do_not_break_the_log(tmp_path):
    ran = run_step(
        tmp_path / "r",
        shell(r"printf '\377\376 caf\303\251\r\n'; head -c 200000 /dev/zero | tr '\0' x; echo; echo end"),
    )
    assert ran.outcome.ok
    assert ran.lines[0] == "\ufffd\ufffd café" and ran.lines[-1] == "end"
    assert "".join(ran.lines[1:-1]) == "x" * 200_000


def test_no_line_of_many_is_lost(tmp_path):
    ran = run_step(tmp_path / "r", shell("seq 1 50000"))
    assert ran.lines == [str(n) for n in range(1, 50001)]
    assert ran.log.splitlines() == ran.lines


def test_a_failure_brings_the_last_lines_and_the_steps_own_logs(tmp_path):
    step = shell("echo 'the last words' > s/rank0.log; echo 'ValueError: no'; exit 1", logs=("s/rank*.log",))
    ran = run_step(tmp_path / "r", step)
    assert "ValueError: no" in ran.outcome.reason and "the last words" in ran.outcome.tail


def test_exit_zero_without_the_expected_files_is_a_failure(tmp_path):
    ran = run_step(tmp_path / "r", shell("true", expects=("s/*.json",)))
    assert ran.outcome.status is Status.failed and "left no s/*.json" in ran.outcome.reason


@pytest.mark.parametrize(
    "name",
    ["with space", "qu'ote\"s", "new\nline", "näme-日本", "co:lon", "$(touch x);#", "-dash", "com,ma=x"],
)
def test_a_hostile_name_of_the_run_folder_is_just_a_name(tmp_path, name):
    ran = run_step(tmp_path / name, shell("echo here > s/file; ls s"))
    assert ran.outcome.ok, ran.outcome
    assert (tmp_path / name / "s/file").read_text() == "here\n" and ran.lines == ["file", "run_output.log"]


def test_a_folder_name_that_is_no_text_is_refused_in_words(tmp_path):
    with pytest.raises(UsageError, match="not UTF-8"):
        run_step(tmp_path / os.fsdecode(b"bad\xff") / "r", shell("true"))


# What a container may and may not.


def test_a_container_gets_the_least_it_needs(tmp_path):
    ran = run_step(
        tmp_path / "r",
        shell(
            "grep -E '^(Cap(Eff|Prm|Bnd)|NoNewPrivs):' /proc/self/status; touch /etc/x; touch /tmp/x && echo tmp;"
            "touch /cache/x && echo cache; echo $HOME; ls /run/docker.sock /var/run/docker.sock; true"
        ),
    )
    said = "\n".join(ran.lines)
    for wanted in (
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
    ):
        assert wanted in said
    assert "touch: /etc/x: Read-only file system" in ran.lines
    assert {"tmp", "cache", "/tmp"} <= set(ran.lines)
    assert said.count("docker.sock: No such file") == 2


def test_a_step_on_one_gpu_has_no_network_but_the_loopback(tmp_path):
    step = shell("ls /sys/class/net", num_gpus=1)
    assert run_step(tmp_path / "r", step, nvidia(3), image=an_image("nvidia")).lines == ["lo"]


@pytest.mark.root
def test_files_belong_to_the_caller(open_folder):
    """A driver that is user 1234, allowed at the socket by its group, as an ordinary user is."""
    program = f"""
        import os, sys
        from pathlib import Path
        from tests.engines.docker.fixtures import run_step, shell  # root's Python may lie where user 1234 cannot read
        gid = os.stat("/var/run/docker.sock").st_gid
        os.setgroups([gid]); os.setgid(1234); os.setuid(1234)
        ran = run_step(Path({str(open_folder / "mine" / "r")!r}), shell("id; touch s/file; echo $USER"))
        print(*ran.lines, ran.outcome.reason, sep="\\n")"""
    (open_folder / "mine").mkdir()
    os.chown(open_folder / "mine", 1234, 1234)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "HOME": str(open_folder / "mine"),
            "HF_HOME": str(open_folder / "mine/hf"),
            "XDG_CACHE_HOME": str(open_folder / "mine/cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert "uid=1234 gid=1234" in done.stdout, done.stdout + done.stderr
    made = (open_folder / "mine/r/s/file").stat()
    assert (made.st_uid, made.st_gid) == (1234, 1234)


@pytest.mark.root
def test_a_user_without_right_to_the_socket_is_told_what_to_join():
    program = """
        import os
        from lab.engines.docker.client import connect
        os.setgroups([]); os.setgid(1234); os.setuid(1234)
        connect()"""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "not allowed to use the Docker engine" in done.stderr and "usermod -aG docker" in done.stderr, (
        done.stderr
    )


def test_secrets_never_reach_log_screen_tail_or_the_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted_secret_1234")
    ran = run_step(tmp_path / "r", shell("env; echo the key is planted_''secret_1234"))
    assert "the key is [redacted]" in ran.lines
    assert "planted_secret" not in ran.log + repr(ran.outcome) + "".join(ran.lines)
    assert not any(line.startswith("WANDB") for line in ran.lines)


def test_the_hub_token_is_a_file_for_the_step_and_gone_after_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret_1234")
    ran = run_step(
        tmp_path / "r",
        shell("cat $HF_TOKEN_PATH | tr a-z A-Z; stat -c %a $HF_TOKEN_PATH; env | grep HF_TOKEN="),
    )
    assert ran.lines[0].startswith("HF_PLANTED_SECRET_1234") and "HF_TOKEN=" not in ran.log
    assert "600" in "".join(ran.lines)


# How it ends.


def test_a_memory_limit_that_is_hit_is_told_from_a_crash(tmp_path):
    ran = run_step(tmp_path / "r", shell("exec tail /dev/zero"), image=an_image(mem_limit="32m"))
    assert ran.outcome.status is Status.oom and ran.outcome.exit_code == 137
    assert "memory limit" in ran.outcome.reason


def test_a_child_that_hit_the_limit_is_told_though_the_step_ended_well(tmp_path):
    ran = run_step(
        tmp_path / "r", shell("tail /dev/zero; echo went on; exit 0"), image=an_image(mem_limit="32m")
    )
    assert ran.outcome.ok and ran.outcome.exit_code == 0 and "went on" in ran.lines
    assert "a child process hit the container's memory limit" in ran.outcome.reason


def test_a_plain_kill_is_no_memory_limit(tmp_path):
    ran = run_step(tmp_path / "r", shell("kill -9 $$"), image=an_image(mem_limit="32m"))
    assert ran.outcome.status is Status.failed and ran.outcome.exit_code == 137
    assert "not by its memory limit" in ran.outcome.reason


@pytest.mark.parametrize("number, name", [(11, "SIGSEGV"), (6, "SIGABRT")])
def test_a_crash_is_named_by_its_signal(tmp_path, number, name):
    ran = run_step(tmp_path / "r", shell(f"kill -{number} $$"))
    assert ran.outcome.status is Status.failed and f"ended by {name}" in ran.outcome.reason


def test_a_step_past_its_limit_is_stopped(tmp_path):
    ran = run_step(tmp_path / "r", shell("echo up; sleep 300", timeout_s=1.0), grace_s=1)
    assert ran.outcome.status is Status.timeout and "ran past its limit of 1 s" in ran.outcome.reason
    assert ran.lines == ["up"] and ran.outcome.seconds < 30 and left_of(ran.run) == []


def test_silence_past_its_limit_is_a_stall_and_talking_is_not(tmp_path):
    talks = shell("for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done; sleep 300", stall_timeout_s=1.2)
    ran = run_step(tmp_path / "r", talks, grace_s=1)
    assert ran.outcome.status is Status.timeout and "printed nothing for 1.2 s" in ran.outcome.reason
    assert ran.lines == list("123456")


CLEANS_UP = "trap 'echo cleaned; exit 0' INT; echo up; while :; do sleep 0.1; done"
STUBBORN = "trap '' INT TERM; echo up; while :; do sleep 0.1; done"


def test_a_stop_lets_the_step_clean_up_first(tmp_path):
    stop = Stop()
    step = shell(CLEANS_UP)
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        stop_when("up", stop)(line)

    outcome = DockerEngine(an_image(), grace_s=20).run(run, step, [], on_line=say, stop=stop)
    assert outcome.status is Status.interrupted and lines == ["up", "cleaned"]
    assert outcome.seconds < 15 and left_of(run) == []


def test_a_second_stop_kills_at_once(tmp_path):
    stop = Stop()
    step = shell(STUBBORN)
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)

    def twice(line: str) -> None:
        stop.set()
        threading.Timer(1.0, lambda: setattr(stop, "now", True)).start()

    began = time.monotonic()
    outcome = DockerEngine(an_image(), grace_s=120).run(run, step, [], on_line=twice, stop=stop)
    assert outcome.status is Status.interrupted and outcome.exit_code == 137
    assert time.monotonic() - began < 60 and left_of(run) == []


def test_a_step_that_ignores_the_stop_is_killed_after_the_grace(tmp_path):
    stop = Stop()
    stop.set()
    ran = run_step(tmp_path / "r", shell(STUBBORN), stop=stop, grace_s=1)
    assert ran.outcome.status is Status.interrupted and ran.outcome.exit_code == 137


def test_a_container_killed_from_outside_is_a_failure_in_words(tmp_path):
    step = shell("echo up; sleep 300")
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    outcome = DockerEngine(an_image()).run(
        run, step, [], on_line=lambda _: docker("kill", container_name(run, step)), stop=Stop()
    )
    assert outcome.status is Status.failed and "SIGKILL, not by lab" in outcome.reason


def test_a_container_removed_from_outside_is_an_engine_error(tmp_path):
    step = shell("echo up; sleep 300")
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    with pytest.raises(EngineError, match="removed by somebody else"):
        DockerEngine(an_image()).run(
            run, step, [], on_line=lambda _: docker("rm", "-f", container_name(run, step)), stop=Stop()
        )


@pytest.mark.root
def test_a_full_disk_under_the_log_stops_the_step_with_a_storage_error(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], check=True)
    try:
        with pytest.raises(StorageError, match="no space left"):
            run_step(
                disk / "r",
                shell("while :; do head -c 50000 /dev/zero | tr '\\0' x; echo; sleep 0.1; done"),
                grace_s=1,
            )
        assert leftovers(run_dir=disk / "r") == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# What does not start.


def test_an_image_that_is_not_there_names_the_command_that_builds_it(tmp_path):
    absent = msgspec.structs.replace(an_image(), name="cuda", ref="lab-test/absent:none")
    with pytest.raises(EngineError, match="lab-test/absent:none is not on this engine") as caught:
        run_step(tmp_path / "r", shell("true"), image=absent)
    assert caught.value.fix == "lab images build cuda"


def test_an_image_whose_name_goes_between_two_steps_loses_nothing(tmp_path):
    """A driver runs by the id it saw first; the next driver is told, and finishes the run when the name is back."""
    ref = "lab-test/vanishing:engine"
    subprocess.run(["docker", "tag", REF, ref], check=True)
    image = msgspec.structs.replace(an_image(), ref=ref)
    steps = [shell(f"echo {name}", name=name, folder=name) for name in ("one", "two", "three")]
    run = a_docker_run(tmp_path / "r", *steps)

    def runner():
        return StepRunner(run, DockerEngine(image), [], Stop(), lambda _: contextlib.nullcontext(True))

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
    "program, complaint",
    [
        ("no-such-program", "has no program 'no-such-program'"),
        ("/bin/not-executable", "cannot be run in the image"),
    ],
)
def test_a_program_that_cannot_start_is_an_engine_error_and_leaves_no_container(tmp_path, program, complaint):
    # Without docker-init in front, which would start well and fail inside.
    step = Step(name="s", argv=(program,), folder="s")
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    engine = DockerEngine(an_image())
    from lab.engines.docker.engine import host
    from lab.images.spec import container_spec

    spec = msgspec.structs.replace(container_spec(an_image(), step, [], host(str(run.root), [])), init=False)
    with pytest.raises(EngineError, match=complaint):
        engine.run_spec(run, step, spec, on_line=print, stop=Stop())
    assert left_of(run) == []


def test_a_program_that_is_not_there_behind_init_is_a_failed_step(tmp_path):
    ran = run_step(tmp_path / "r", Step(name="s", argv=("no-such-program",), folder="s"))
    assert ran.outcome.status is Status.failed and ran.outcome.exit_code == 127
    assert "no-such-program" in ran.log


def test_two_drivers_cannot_run_one_step_at_once(tmp_path):
    step = shell("echo up; sleep 300")
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    stop, trouble = Stop(), []

    def meanwhile(_line: str) -> None:
        try:
            DockerEngine(an_image()).run(run, step, [], on_line=print, stop=Stop())
        except BusyError as error:
            trouble.append(str(error))
        stop.set()

    DockerEngine(an_image(), grace_s=1).run(run, step, [], on_line=meanwhile, stop=stop)
    assert len(trouble) == 1 and "lab run --attach" in trouble[0]


# Drivers that die, engines that go.


DRIVER = """
    import sys
    from pathlib import Path
    from lab.core.run import Run
    from lab.engines.docker import DockerEngine
    from lab.core.stop import Stop
    from tests.engines.docker.fixtures import an_image
    run = Run.open(Path(sys.argv[1]))
    step = run.manifest.steps[0].step
    run.begin(step)
    DockerEngine(an_image()).run(run, step, [], on_line=lambda line: print(line, flush=True), stop=Stop())
"""


def kill_driver_of(root: Path, step: Step) -> Run:
    """A driver that has seen the step's first line, killed by SIGKILL."""
    a_docker_run(root, step)
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(root)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert driver.stdout and driver.stdout.readline() == b"up\n"
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    return Run.open(root)


@pytest.mark.parametrize("pause_s", [0, 3], ids=["still running", "ended meanwhile"])
def test_a_container_outlives_its_driver_and_the_next_one_gets_log_and_exit_code(tmp_path, pause_s):
    step = shell("echo up; sleep 1.5; echo more; exit 7")
    run = kill_driver_of(tmp_path / "r", step)
    (one,) = leftovers(run.manifest.id, run_dir=run.root)
    assert (one.step, one.running, one.driver_alive, one.fingerprint) == ("s", True, False, "f")
    time.sleep(pause_s)
    lines: list[str] = []
    outcome = DockerEngine(an_image()).attach(run, step, on_line=lines.append, stop=Stop())
    assert outcome is not None and (outcome.exit_code, outcome.status) == (7, Status.failed)
    assert lines == ["up", "more"] and run.log(step).read_text() == "up\nmore\n"
    assert outcome.seconds > 1.4 and left_of(run) == []
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
    stop_run(run.manifest.id, 1, run_dir=run.root)


def test_stopping_a_run_ends_and_removes_what_its_dead_driver_left(tmp_path):
    run = kill_driver_of(
        tmp_path / "r", shell("trap 'echo bye > s/bye; exit' INT; echo up; while :; do sleep 0.1; done")
    )
    assert [one.step for one in stop_run(run.manifest.id, 10, run_dir=run.root)] == ["s"]
    assert left_of(run) == [] and (run.root / "s/bye").read_text() == "bye\n"
    assert stop_run(run.manifest.id, 10, run_dir=run.root) == []


def test_the_reaper_takes_what_ended_and_leaves_what_runs_unless_asked(tmp_path):
    ended = kill_driver_of(tmp_path / "ended", shell("echo up; sleep 0.2"))
    runs = kill_driver_of(tmp_path / "runs", shell("echo up; sleep 300"))
    until(lambda: left_of(ended) == ["exited"])
    assert [one.run_dir for one in reap() if one.run_dir.startswith(str(tmp_path))] == [str(ended.root)]
    assert (left_of(ended), left_of(runs)) == ([], ["running"])
    assert str(runs.root) in {one.run_dir for one in reap(running=True)}
    assert left_of(runs) == []


def test_the_reaper_takes_what_outlived_its_slurm_job_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    mine = kill_driver_of(tmp_path / "mine", shell("echo up; sleep 300"))
    monkeypatch.setenv("SLURM_JOB_ID", "4712")
    other = kill_driver_of(tmp_path / "other", shell("echo up; sleep 300"))
    assert [one.run_dir for one in reap(slurm_job="4711")] == [str(mine.root)]
    assert (left_of(mine), left_of(other)) == ([], ["running"])
    assert [one.run_dir for one in reap(slurm_job="4712")] == [str(other.root)]


def test_the_reaper_leaves_a_living_drivers_containers_alone(tmp_path):
    stop, seen = Stop(), []
    step = shell("echo up; sleep 300")
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)

    def meanwhile(_line: str) -> None:
        seen.append([one for one in reap(running=True) if one.run_dir == str(run.root)])
        seen.append(left_of(run))
        stop.set()

    DockerEngine(an_image(), grace_s=1).run(run, step, [], on_line=meanwhile, stop=stop)
    assert seen == [[], ["running"]]


def test_an_engine_that_goes_away_leaves_the_step_to_be_taken_up_again(tmp_path):
    wire = Wire(tmp_path)
    step = shell("echo up; sleep 2; echo more")
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    engine = DockerEngine(an_image(), daemon=wire.connect)
    with pytest.raises(EngineLost, match="may live on") as caught:
        engine.run(run, step, [], on_line=lambda _: wire.cut(), stop=Stop())
    assert caught.value.fix and f"lab run --attach {run.root}" in caught.value.fix
    lines: list[str] = []
    outcome = DockerEngine(an_image()).attach(run, step, on_line=lines.append, stop=Stop())
    assert outcome is not None and outcome.ok and lines == ["up", "more"]


# GPUs, through the stand-ins.


def nvidia(*indices: int) -> list[Gpu]:
    return [Gpu(vendor="nvidia", index=i, uuid=f"GPU-1234-{i}", driver="535.1") for i in indices]


needs_hook = pytest.mark.skipif(
    os.geteuid() != 0, reason="the stand-in for NVIDIA's hook takes its orders from root"
)


def test_an_nvidia_container_sees_the_uuids_it_was_given_and_no_others(tmp_path):
    steps = "env | grep -E '^(NVIDIA_VISIBLE|CUDA_VISIBLE)'; ls /sys/class/net"
    ran = run_step(tmp_path / "r", shell(steps, num_gpus=2), nvidia(3, 5), image=an_image("nvidia"))
    assert ran.outcome.ok, ran.outcome
    assert "NVIDIA_VISIBLE_DEVICES=GPU-1234-3,GPU-1234-5" in ran.lines
    assert not any(line.startswith("CUDA_VISIBLE") for line in ran.lines)


@needs_hook
@pytest.mark.parametrize(
    "text, words",
    [
        (
            "nvidia-container-cli: initialization error: nvml error: driver not loaded",
            ("driver is not loaded", "nvidia-smi"),
        ),
        (
            "nvidia-container-cli: device error: GPU-1234-9: unknown device",
            ("no such GPU on this machine: GPU-1234-9", "present:"),
        ),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver",
            ("needs one for CUDA 12.8, found driver 535.1", "pascal"),
        ),
    ],
)
def test_what_nvidias_hook_says_reaches_the_user_in_words(tmp_path, text, words):
    with hook_says(text), pytest.raises(GpuError) as caught:
        run_step(tmp_path / "r", shell("true", num_gpus=1), nvidia(9), image=an_image("nvidia"))
    assert all(word in str(caught.value) for word in words), caught.value
    assert not HOOK_FLAG.exists() and leftovers(run_dir=tmp_path / "r") == []


def test_the_gpus_of_running_containers_count_as_used(tmp_path):
    stop, seen = Stop(), []
    engine = DockerEngine(an_image("nvidia"), grace_s=1)
    step = shell("echo up; sleep 300", num_gpus=1)
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)

    def meanwhile(_line: str) -> None:
        seen.append("GPU-1234-4" in engine.gpus_in_use())
        stop.set()

    engine.run(run, step, nvidia(4), on_line=meanwhile, stop=stop)
    assert seen == [True] and "GPU-1234-4" not in engine.gpus_in_use()


@pytest.fixture
def amd_nodes(tmp_path, monkeypatch) -> list[Gpu]:
    """Two AMD GPUs made of null devices that only group 5109 may open."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    dev, sysfs = tmp_path / "dev", tmp_path / "sys"
    (dev / "dri").mkdir(parents=True)
    for path in (dev / "kfd", dev / "dri/renderD128", dev / "dri/renderD129"):
        os.mknod(path, 0o020660, os.makedev(1, 3))
        os.chown(path, 0, 5109)
        path.chmod(0o660)
    for node, minor in enumerate((0, 128, 129)):
        folder = sysfs / f"class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"drm_render_minor {minor}\nunique_id {minor}\n")
    monkeypatch.setenv("LAB_DEV_ROOT", str(dev))
    monkeypatch.setenv("LAB_SYS_ROOT", str(sysfs))
    return discover()


@pytest.mark.root
@pytest.mark.parametrize("gids, opens", [(("5109",), True), ((), False)])
def test_an_amd_container_opens_the_picked_nodes_by_their_numeric_group(tmp_path, amd_nodes, gids, opens):
    from lab.engines.docker.engine import host
    from lab.images.spec import container_spec

    step = shell("ls /dev /dev/dri; id; : < /dev/kfd && : < /dev/dri/renderD129 && echo opened", num_gpus=1)
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    picked = [amd_nodes[1]]
    here = host(str(run.root), picked)
    assert here.device_gids == ("5109",)
    image = an_image("amd", security_opt=("seccomp=unconfined",))
    somebody = msgspec.structs.replace(here, uid=1234, gid=1234, device_gids=gids)
    lines: list[str] = []
    outcome = DockerEngine(image).run_spec(
        run, step, container_spec(image, step, picked, somebody), picked, on_line=lines.append, stop=Stop()
    )
    assert outcome.ok is opens and ("opened" in lines) is opens, (outcome, lines)
    assert "renderD129" in lines and "renderD128" not in lines


@pytest.mark.root
def test_a_host_without_amdgpu_is_a_gpu_error(tmp_path):
    gone = Gpu(vendor="amd", index=0, uuid="GPU-0", render_node=str(tmp_path / "dev/dri/renderD128"))
    with pytest.raises(GpuError, match="no host with AMD GPUs"):
        run_step(tmp_path / "r", shell("true", num_gpus=1), [gone], image=an_image("amd"))
    assert leftovers(run_dir=tmp_path / "r") == []


def test_locked_memory_that_the_engine_may_not_lift_is_left_out_with_a_warning(tmp_path):
    """On an engine that may lift it, the limit is simply there: either way the step runs."""
    from lab.engines.docker.engine import host
    from lab.images.spec import container_spec

    step = shell("grep 'Max locked' /proc/self/limits")
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    spec = container_spec(an_image(), step, [], host(str(run.root), []))
    wanted = msgspec.structs.replace(spec, ulimits={**spec.ulimits, "memlock": -1})
    lines: list[str] = []
    assert DockerEngine(an_image()).run_spec(run, step, wanted, on_line=lines.append, stop=Stop()).ok
    unlimited = "unlimited" in lines[-1]
    assert unlimited is not any(line.startswith("lab: ") and "locked memory" in line for line in lines)


def test_the_client_agrees_with_the_engine_on_an_api_version_of_its_own():
    daemon = connect()
    assert daemon.client.api_version == daemon.client.version()["ApiVersion"] and not daemon.is_podman


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout


def until(true, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
