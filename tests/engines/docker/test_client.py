"""Reaching the engine: one that is down, hung, remote, or podman."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import threading

import pytest

pytest.importorskip("docker")
from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.core.stop import Stop
from lab.engines.docker import client as docker_client
from lab.engines.docker.client import Daemon, connect
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.errors import Context
from lab.errors import EngineError, GpuError
from lab.images import spec as images
from tests.core.test_manifest import a_run

CONTEXT = Context(
    endpoint="unix:///x.sock",
    image="cuda",
    ref="lab/cuda",
    step="s",
    driver="535.1",
    run_dir="/runs/r",
    option_of={"/data/gone": "HF_HOME"},
    present=lambda: "0 H100 GPU-7",
)


def test_no_engine_at_the_socket_names_both_ways_out(tmp_path):
    with pytest.raises(EngineError, match="no Docker engine answers") as caught:
        connect({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert "systemctl start docker" in str(caught.value) and "DOCKER_HOST" in str(caught.value)


def test_a_socket_that_nobody_serves_any_more_is_a_daemon_that_is_down(tmp_path):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "s"))
    dead.close()
    with pytest.raises(EngineError, match="no Docker engine answers"):
        connect({"DOCKER_HOST": f"unix://{tmp_path}/s"})


def test_an_engine_that_hangs_is_told_after_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(docker_client, "TIMEOUT_S", 0.3)
    deaf = socket.socket(socket.AF_UNIX)
    deaf.bind(str(tmp_path / "s"))
    deaf.listen()
    with pytest.raises(EngineError, match="does not answer in time"):
        connect({"DOCKER_HOST": f"unix://{tmp_path}/s"})
    deaf.close()


@pytest.mark.parametrize(
    "host", ["tcp://10.0.0.1:2375", "ssh://me@there", "http://10.0.0.1:2375", "10.0.0.1:2375"]
)
def test_an_engine_on_another_machine_is_refused_unless_allowed(host):
    with pytest.raises(EngineError, match="not an engine of this machine") as caught:
        connect({"DOCKER_HOST": host})
    assert "LAB_ALLOW_REMOTE_ENGINE=1" in str(caught.value)


def test_an_allowed_remote_engine_is_really_asked(monkeypatch):
    monkeypatch.setattr(docker_client, "TIMEOUT_S", 2)
    with pytest.raises(EngineError, match=r"no Docker engine answers at tcp://127\.0\.0\.1:9"):
        connect({"DOCKER_HOST": "tcp://127.0.0.1:9", "LAB_ALLOW_REMOTE_ENGINE": "1"})


@pytest.fixture
def podman(tmp_path):
    """A socket that answers as podman does."""
    answer = json.dumps(
        {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}
    ).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None: ...

    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "p.sock"), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield lambda: connect({"DOCKER_HOST": f"unix://{tmp_path}/p.sock"})
        server.shutdown()


def test_podman_is_refused_for_nvidia_gpus_because_it_would_run_without_them(podman, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    step = Step(name="s", argv=("true",), folder="s", num_gpus=1)
    engine = DockerEngine(images.load("pascal"), daemon=podman)
    gpus = [Gpu(vendor="nvidia", index=0, uuid="GPU-0")]
    assert engine.daemon().is_podman
    with pytest.raises(GpuError, match="podman, which ignores requests for NVIDIA GPUs"):
        engine.run(a_run(tmp_path / "r", step), step, gpus, on_line=print, stop=Stop())


def test_a_daemon_is_reached_once_for_all_steps():
    made: list[int] = []

    def make() -> Daemon:
        made.append(1)
        return Daemon(client=None, endpoint="e", is_podman=False)

    engine = DockerEngine(images.load("cpu"), daemon=make)
    threads = [threading.Thread(target=engine.daemon) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
