"""What a step in a container gives back and what it may not do, on a real engine."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lab.core.run import Run
from lab.core.step import Status, Step
from lab.core.stop import Stop
from lab.errors import UsageError
from tests.conftest import ROOT

pytest.importorskip("docker")
from lab.engines.docker.client import connect
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.leftovers import leftovers, stop_run
from tests.command import until
from tests.engines.docker.fixtures import (  # noqa: F401
    Ran,
    a_docker_run,
    an_image,
    busybox,
    docker,
    left_of,
    nvidia,
    own_caches,
    quiet_hook,
    run_step,
    shell,
    systems_engine,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("busybox", "own_caches")]


@pytest.mark.parametrize("code", [0, 1, 42, 130])
def test_an_exit_code_passes_through_and_the_container_is_gone(tmp_path, code):
    ran = run_step(tmp_path / "r", shell(f"exit {code}"))
    assert ran.outcome.exit_code == code
    assert ran.outcome.status is (Status.ok if code == 0 else Status.failed)
    assert left_of(ran.run) == []


def test_both_streams_come_live_and_land_in_the_log(tmp_path):
    wait = "until [ -e s/seen ]; do sleep 0.1; done"  # for the first line to have come
    step = shell(f"echo out; {wait}; echo err >&2; printf 'no newline'", timeout_s=300.0)
    ran = run_step(tmp_path / "r", step, meanwhile=lambda run, _: (run.folder(step) / "seen").touch())
    assert ran.outcome.ok and ran.lines[0] == "out"
    assert sorted(ran.lines) == sorted(ran.log.splitlines()) == ["err", "no newline", "out"]


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


ODD_NAMES = ["with space", "qu'ote\"s", "new\nline", "näme-日本", "$(touch x);#", "-dash", "com,ma=x"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_hostile_name_of_the_run_folder_is_just_a_name(tmp_path, name):
    ran = run_step(tmp_path / name, shell("echo here > s/file; ls s"))
    assert ran.outcome.ok, ran.outcome
    assert (tmp_path / name / "s/file").read_text() == "here\n" and ran.lines == ["file", "run_output.log"]


def test_a_folder_name_that_is_no_text_is_refused_in_words(tmp_path):
    with pytest.raises(UsageError, match="not UTF-8"):
        run_step(tmp_path / os.fsdecode(b"bad\xff") / "r", shell("true"))


def test_a_container_gets_the_least_it_needs(tmp_path):
    ran = run_step(
        tmp_path / "r",
        shell(
            "grep -E '^(Cap(Eff|Prm|Bnd)|NoNewPrivs):' /proc/self/status;"
            "touch /etc/x; touch /tmp/x && echo tmp;"
            "touch /cache/x && echo cache; echo $HOME; ls /run/docker.sock /var/run/docker.sock; true"
        ),
    )
    none = {f"{name}:\t0000000000000000" for name in ("CapEff", "CapPrm", "CapBnd")}
    assert {*none, "NoNewPrivs:\t1", "tmp", "cache", "/tmp"} <= set(ran.lines)
    assert "touch: /etc/x: Read-only file system" in ran.lines
    assert "\n".join(ran.lines).count("docker.sock: No such file") == 2


@pytest.mark.usefixtures("systems_engine", "quiet_hook")
def test_a_step_on_one_gpu_has_no_network_but_the_loopback(tmp_path):
    step = shell("ls /sys/class/net", num_gpus=1)
    assert run_step(tmp_path / "r", step, nvidia(3), image=an_image("nvidia")).lines == ["lo"]


def test_secrets_never_reach_log_screen_tail_or_the_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted_secret_1234")
    ran = run_step(tmp_path / "r", shell("env; echo the key is planted_''secret_1234"))
    assert "the key is [redacted]" in ran.lines
    assert "planted_secret" not in ran.log + repr(ran.outcome) + "".join(ran.lines)
    assert not any(line.startswith("WANDB") for line in ran.lines)


def test_no_step_has_the_hubs_token_in_any_form(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret_1234")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_planted_secret_1234")  # of the Hub's own login
    seen = "env; ls /hf /run/secrets; cat /hf/token $HF_HOME/token; cat"
    ran = run_step(tmp_path / "r", shell(f"({seen}) 2>&1 | tr a-z A-Z"))
    said = "\n".join(ran.lines)
    assert "PLANTED" not in said and "HF_TOKEN" not in said and "HF_HUB_OFFLINE=1" in said


def fetch(root: Path, step: Step, stdin: bytes) -> Ran:
    run, lines = a_docker_run(root, step), []
    run.begin(step)
    engine = DockerEngine(an_image(), grace_s=2.0)
    outcome = engine.fetch(run, step, stdin=stdin, on_line=lines.append, stop=Stop())
    return Ran(run, step, outcome, lines)


@pytest.mark.parametrize("size", [0, 20, 5_000_000])
def test_a_fetch_reads_all_of_its_input_and_its_end(tmp_path, size):
    ran = fetch(tmp_path / "r", shell("cat > /tmp/in; stat -c %s /tmp/in; touch /hf/model"), b"x" * size)
    assert ran.outcome.ok and ran.lines == [str(size)]
    assert (tmp_path / "hf" / "hub" / "model").exists()


def test_a_fetch_that_reads_no_input_ends_all_the_same(tmp_path):
    assert fetch(tmp_path / "r", shell("true"), b"x" * 5_000_000).outcome.ok


SECRET = "planted_input_5678"
FETCH_DRIVER = """
    import os, sys
    from pathlib import Path
    from lab.core.run import Run
    from lab.core.stop import Stop
    from lab.engines.docker.engine import DockerEngine
    from tests.engines.docker.fixtures import an_image
    run = Run.open(Path(sys.argv[1]))
    step = run.manifest.steps[0].step
    run.begin(step)
    engine = DockerEngine(an_image())
    engine.image_record()
    print("up", flush=True)
    secret = os.environ["PLANTED"].encode()
    engine.fetch(run, step, stdin=secret, on_line=lambda line: None, stop=Stop())
"""


def test_kill_9_at_six_moments_leaves_the_input_nowhere(tmp_path):
    """Not in a file, not in what the engine knows of the container, not in its log."""
    private = tmp_path / "private"
    private.mkdir()
    env = {**os.environ, "PLANTED": SECRET, "TMPDIR": str(private), "XDG_RUNTIME_DIR": str(private)}
    for moment in range(6):
        root = tmp_path / f"r{moment}"
        a_docker_run(root, shell("cat > /dev/null; echo read; sleep 30"))
        driver = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(FETCH_DRIVER), str(root)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=env,
        )
        assert driver.stdout and driver.stdout.readline() == b"up\n"
        if moment < 5:
            time.sleep(moment * 0.08)
        else:  # the last one after it has been sent
            until(lambda root=root: "read" in "".join(log_of(root)))
        driver.kill()
        driver.wait()
        assert SECRET not in "".join([*log_of(root), *(docker("inspect", name) for name in names_of(root))])
        stop_run(root, grace_s=1)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert not list(private.iterdir())


def names_of(root: Path) -> list[str]:
    return [one.container for one in leftovers(run_dir=root)]


def log_of(root: Path) -> list[str]:
    return [docker("logs", name) for name in names_of(root)]


def test_a_driver_that_dies_before_it_sends_leaves_a_closed_input(tmp_path):
    """The container does not wait for ever for a token that never comes."""
    program = FETCH_DRIVER.replace(
        'print("up", flush=True)',
        "import lab.engines.docker.container as c\n"
        "    send = c.docker.APIClient.start\n"
        "    def start(self, *a, **k):\n"
        "        send(self, *a, **k); os.kill(os.getpid(), 9)\n"
        "    c.docker.APIClient.start = start",
    )
    step = shell("cat > /tmp/in; echo end of input; stat -c %s /tmp/in")
    run = a_docker_run(tmp_path / "r", step)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(run.root)],
        cwd=ROOT,
        env={**os.environ, "PLANTED": SECRET},
        check=False,
    )
    assert done.returncode == -9
    lines: list[str] = []
    run = Run.open(run.root)
    outcome = DockerEngine(an_image()).attach(run, step, on_line=lines.append, stop=Stop())
    assert outcome is not None and outcome.ok and lines == ["end of input", "0"]


def test_the_client_agrees_with_the_engine_on_an_api_version_of_its_own():
    daemon = connect()
    assert daemon.client.api_version == daemon.client.version()["ApiVersion"] and not daemon.is_podman
