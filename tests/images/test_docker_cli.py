"""The docker program: its output is passed on as it comes; builders are chosen by what works here."""

from __future__ import annotations

import os
import sys

import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.errors import EngineError
from lab.images import docker_cli, spec
from lab.images.check import check
from lab.images.docker_cli import Builder, find_builder, stream
from lab.images.smoke import smoke


def test_lines_of_a_build_come_as_they_are_printed_and_the_noise_is_left_out(tmp_path):
    seen = []
    program = f"print('one'); print('#2 sha256:{'0' * 64}'); print(); print('two'); raise SystemExit(3)"
    code, tail = stream([sys.executable, "-c", program], env={}, cwd=tmp_path, say=seen.append)
    assert (code, seen, tail) == (3, ["one", "two"], ["one", "two"])


def test_an_interrupted_build_ends_its_client(tmp_path):
    def interrupt(line):
        raise KeyboardInterrupt

    program = "import time; print('x', flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):  # and does not wait for the sleep: the suite's limit would strike
        stream([sys.executable, "-c", program], env={}, cwd=tmp_path, say=interrupt)


def test_commands_go_to_the_engine_that_runs_use(tmp_path, monkeypatch):
    """A user of podman may not use the system's Docker, whose program is on PATH all the same."""
    for name in ("docker", "podman"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/7/podman/podman.sock")
    podman = [f"{tmp_path}/podman", "--remote", "--url", "unix:///run/user/7/podman/podman.sock"]
    assert docker_cli.engine_cli() == podman
    (tmp_path / "podman").unlink()
    docker = [f"{tmp_path}/docker", "--host", "unix:///run/user/7/podman/podman.sock"]
    assert docker_cli.engine_cli() == docker
    (tmp_path / "docker").unlink()
    assert docker_cli.engine_cli() is None
    with pytest.raises(EngineError, match="neither docker nor podman is on PATH"):
        docker_cli.listed()


def an_engine(folder, monkeypatch, script):
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/none.sock")


def test_an_engine_that_does_not_answer_is_not_one_without_images(tmp_path, monkeypatch):
    """Under load a listing takes seconds, and `lab setup` said that there were no images."""
    assert docker_cli.ANSWER_S >= 60
    an_engine(tmp_path, monkeypatch, "exec sleep 600")
    with pytest.raises(EngineError, match=r"did not answer in 0\.1 s"):
        docker_cli.listed(0.1)
    an_engine(tmp_path, monkeypatch, "echo no daemon >&2; exit 1")
    (line, *rest) = CliRunner().invoke(cli, ["images", "list"]).output.splitlines()
    assert line.startswith("note: which images are here is not known") and "no daemon" in line
    assert len(rest) == len(spec.names()) and all(row.split()[3] == "unknown" for row in rest)
    (row, *_) = [row for row in check(["cpu"]) if row.check == "as built"]
    assert row.state == "skipped" and "no daemon" in row.detail
    with pytest.raises(EngineError, match="no daemon"):
        list(smoke(["cpu"], {}))


HOST = {"DOCKER_HOST": "unix:///run/mine/docker.sock"}


@pytest.fixture
def dockers(dockers, monkeypatch):
    """Stand-ins for docker, no DOCKER_HOST, and one engine whose socket this user may use."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(docker_cli, "endpoint_of", lambda _: HOST["DOCKER_HOST"])
    return dockers


BUILDX = 'case "$1" in buildx) cat >/dev/null; exit 0;; esac; exit 1'


NO_BUILDX = 'echo "ERROR: BuildKit is enabled but the buildx component is missing or broken." >&2; exit 1'


OLD = '[ "$1" = build ] && [ "$DOCKER_BUILDKIT" = 1 ] && { cat >/dev/null; exit 0; }; '
OLD += 'echo "not a docker command" >&2; exit 1'


DOWN = 'echo "Cannot connect to the Docker daemon at unix:///x. Is it running?" >&2; exit 1'


def test_buildx_comes_first_wherever_it_is_on_path(dockers):
    _, second = dockers(OLD, BUILDX)
    assert find_builder() == Builder(docker=second, argv=(second, "buildx", "build", "--load"), env=HOST)


def test_an_older_docker_with_buildkit_serves_where_the_newer_lacks_buildx(dockers):
    _, older = dockers(NO_BUILDX, OLD)
    env = {"DOCKER_BUILDKIT": "1", **HOST}
    assert find_builder() == Builder(docker=older, argv=(older, "build"), env=env)


def test_without_a_working_builder_the_error_names_what_to_install(dockers):
    dockers(NO_BUILDX)
    with pytest.raises(EngineError, match="buildx component is missing") as caught:
        find_builder()
    assert "docker-buildx" in caught.value.fix


def test_without_an_engine_the_error_says_so(dockers):
    dockers(DOWN)
    with pytest.raises(EngineError, match="Cannot connect") as caught:
        find_builder()
    assert caught.value.fix == "start the Docker engine"


def test_without_docker_the_error_says_so(dockers):
    dockers()
    with pytest.raises(EngineError, match="no docker program on PATH"):
        find_builder()


def test_a_build_goes_to_the_engine_that_runs_use_and_not_to_the_contexts(dockers, monkeypatch):
    """A user's own rootless engine, beside a context of another one."""
    monkeypatch.setenv("DOCKER_CONTEXT", "other")
    dockers(f'[ "$DOCKER_HOST" = {HOST["DOCKER_HOST"]} ] || exit 1; cat >/dev/null; echo 3.12')
    builder = find_builder()
    assert docker_cli.base_python(builder, "base") == "3.12"


def test_no_build_is_sent_to_podman(dockers, monkeypatch):
    monkeypatch.setattr(docker_cli, "endpoint_of", lambda _: "unix:///run/user/7/podman/podman.sock")
    dockers(OLD, BUILDX)
    assert find_builder().env == {}
