"""A rootless podman of Debian's packages, as its own user (scripts/podman-user.sh makes both)."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import PODMAN_USER, ROOT, podman_socket
from tests.engines.docker.fixtures import REF, a_test_image

pytest.importorskip("docker")
from lab.engines.docker.client import connect
from lab.errors import EngineError

pytestmark = [pytest.mark.podman, pytest.mark.root]

# Imported first, because the user may not be able to read root's Python.
AS_USER = """
import contextlib, io, json, os, pwd, sys
from pathlib import Path
import difflib, rich.live, rich.table, rich.markdown, rich.progress
import lab.cli.main, lab.driver.drive, lab.driver.drive, lab.rooms.sweep.cli, lab.engines.docker.leftovers
import lab.cli.setup
import encodings.idna, docker
from lab.core.stop import Stop
from lab.engines.docker.client import connect
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.errors import messages
from lab.images import spec as images
from tests.engines.docker.fixtures import REF, a_docker_run, an_image, left_of, run_step, shell
me, folder = pwd.getpwnam(sys.argv[1]), sys.argv[2]
messages()
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):  # what a run imports
    sys.argv = ["lab", *"run --dry-run --image cpu -o /tmp/none sweep -c 28".split()]
    lab.cli.main.main()
os.setgroups([]); os.setgid(me.pw_gid); os.setuid(me.pw_uid); os.chdir(folder)
here = Path.cwd()
os.environ.update(HOME=me.pw_dir, HF_HOME=str(here / "hf"), XDG_CACHE_HOME=str(here / "cache"),
                  XDG_RUNTIME_DIR=f"/run/user/{me.pw_uid}")
os.environ.pop("DOCKER_HOST", None)
"""


@pytest.fixture
def as_user(open_folder):
    """Runs a program as podman's user in a folder of his; -> its output and the folder."""
    me = pwd.getpwnam(PODMAN_USER)
    mine = open_folder / "mine"
    mine.mkdir()
    os.chown(mine, me.pw_uid, me.pw_gid)

    def run(program: str, *, stdin: bytes = b"") -> str:
        # By its socket, as where a user may not use the system's Docker.
        found = f'connect_to = "unix://{podman_socket()}"\nos.environ["DOCKER_HOST"] = connect_to\n'
        done = subprocess.run(
            [sys.executable, "-c", AS_USER + found + textwrap.dedent(program), PODMAN_USER, str(mine)],
            cwd=ROOT,
            input=stdin,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert done.returncode == 0, done.stderr.decode()[-4000:] + done.stdout.decode()[-2000:]
        return done.stdout.decode()

    run.folder = mine
    return run


@pytest.fixture
def podman_image(as_user):
    name, tag = REF.split(":")
    program = f"""
        client, tar = connect().client, sys.stdin.buffer.read()
        made = json.loads(client.import_image_from_data(tar, changes=["ENV PATH=/bin"]))
        client.tag(made["id"], {name!r}, {tag!r})  # podman 4.3 tags an import `latest`
    """
    as_user(program, stdin=a_test_image())


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("as_rootless_docker", [False, True])
def test_results_belong_to_the_user_and_the_step_is_nobody_else(as_user, podman_image, as_rootless_docker):
    """Also by rootless Docker's way, root inside and no other mapping: the kernel's map is the same."""
    said = as_user(f"""
        daemon = connect()
        print(daemon.is_podman, daemon.user_mapping)
        if {as_rootless_docker}:
            daemon = __import__("dataclasses").replace(daemon, user_mapping="rootless-docker")
        ran = run_step(here / "r", shell("id -u; touch s/file /cache/file /tmp/file; umask 077; mkdir s/deep;"
                       "touch s/deep/file; grep -E '^Cap(Eff|Prm)' /proc/self/status; touch /etc/x"),
                       daemon=lambda: daemon)
        print(ran.outcome.exit_code, *ran.lines, sep="\\n")
    """).splitlines()
    uid = pwd.getpwnam(PODMAN_USER).pw_uid
    assert said[:3] == ["True rootless-podman", "1", "0" if as_rootless_docker else str(uid)]
    assert "CapEff:\t0000000000000000" in said and "touch: /etc/x: Read-only file system" in said
    assert owners(as_user.folder) == {uid}
    assert (as_user.folder / "r/s/deep/file").exists() and (as_user.folder / "cache/lab/file").exists()


def test_a_fetch_reads_all_of_its_input_and_the_model_is_the_users(as_user, podman_image):
    said = as_user("""
        step = shell("cat > /tmp/in; stat -c %s /tmp/in; touch /hf/model")
        run, lines = a_docker_run(here / "r", step), []
        run.begin(step)
        engine = DockerEngine(an_image(), grace_s=2)
        print(engine.fetch(run, step, stdin=b"x" * 100_000, on_line=lines.append, stop=Stop()).ok, lines)
    """)
    assert said == "True ['100000']\n"
    assert (as_user.folder / "hf/hub/model").exists()
    assert owners(as_user.folder) == {pwd.getpwnam(PODMAN_USER).pw_uid}


def test_a_stopped_step_cleans_up_and_leaves_no_container(as_user, podman_image):
    said = as_user("""
        stop, step = Stop(), shell("trap 'echo cleaned; exit 0' INT; echo up; while :; do sleep 0.1; done")
        ran = run_step(here / "r", step, stop=stop, grace_s=60, meanwhile=lambda *_: stop.set())
        print(ran.outcome.status.value, ran.lines, left_of(ran.run))
    """)
    assert said.strip() == "interrupted ['up', 'cleaned'] []"


def test_podman_of_another_user_is_refused_because_the_results_would_be_his():
    with pytest.raises(EngineError, match="who would own the results"):
        connect({"DOCKER_HOST": f"unix://{podman_socket()}"})


def test_a_sweep_and_its_analysis_run_to_their_page(as_user, own_names):
    """Found without DOCKER_HOST, where the user may not use the system's Docker."""
    said = as_user("""
        image = images.load("cpu")
        try:
            for ref in (image.ref, image.workload_ref):
                connect().client.inspect_image(ref)
        except docker.errors.NotFound:
            print("not loaded"); raise SystemExit
        del os.environ["DOCKER_HOST"]
        sys.argv = ["lab", "setup"]
        try:
            lab.cli.main.main()
        except SystemExit as end:
            if end.code:
                raise
        sys.argv = ["lab", *"run --image cpu -o r sweep -c 28 -t 256 --ranks 2".split()]
        raise SystemExit(lab.cli.main.main())
    """)
    if said == "not loaded\n":
        pytest.skip("this podman has no lab/cpu: scripts/podman-user.sh REF... copies images to it")
    assert said.startswith("here  cpu\nhere  cpu-torch\nnext: lab run --image cpu sweep"), said
    assert (as_user.folder / "r/report.html").stat().st_size > 10_000
    assert owners(as_user.folder) == {pwd.getpwnam(PODMAN_USER).pw_uid}
