"""Output of the docker program is passed on as it comes."""

from __future__ import annotations

import sys

import pytest

from lab.images import docker_cli
from lab.images.docker_cli import stream


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
    assert docker_cli.engine_cli() is None and docker_cli.built() == {}
