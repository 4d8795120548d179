"""Errors of the engine become lab's. Each goes through the SDK, from an adapter that answers for it."""

from __future__ import annotations

import json

import pytest
import requests

pytest.importorskip("docker")
import docker
from docker.errors import APIError, DockerException

from lab import errors
from lab.engines.docker.errors import Context, translate, translated
from lab.errors import EngineError, EngineLost, GpuError
from tests.engines.docker.fixtures import CONTEXT

RUNC = "OCI runtime create failed: runc create failed: unable to start container process: error during "
OLD = f"failed to create shim task: {RUNC}container init: error running hook #0: error running hook: "
OLD += "exit status 1, stdout: , stderr: {}: unknown"
NEW = f"failed to create task for container: failed to create shim task: {RUNC}container init: error running "
NEW += "prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n{}"


class Wire(requests.adapters.BaseAdapter):
    """Answers every request with one status and one message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__()
        self.status, self.message = status, message

    def send(self, request, **_):
        response = requests.Response()
        response.status_code, response.reason = self.status, "x"
        response.url, response.request = request.url, request
        response._content = json.dumps({"message": self.message}).encode()
        return response

    def close(self) -> None: ...


def said(status: int, message: str):
    """The error lab makes of a daemon's answer."""
    client = docker.APIClient(base_url="http://engine.invalid:1", version="1.41")
    client.mount("http://engine.invalid:1", Wire(status, message))
    with pytest.raises(Exception) as caught, translated(CONTEXT):
        client.start("c")
    return caught.value


NVIDIA = {
    "initialization error: nvml error: driver not loaded": ["NVIDIA's driver is not loaded", "nvidia-smi"],
    "device error: GPU-9: unknown device": ["no such GPU", "GPU-9", "lab doctor"],
    "device error: unknown device id: 9": ["no such GPU", "lab doctor"],
    "requirement error: unsatisfied condition: cuda>=12.8, please update": ["CUDA 12.8", "535.1", "pascal"],
}


@pytest.mark.parametrize("around", [OLD, NEW, "{}"], ids=["20.10", "newer", "bare"])
@pytest.mark.parametrize("text", NVIDIA)
def test_what_nvidias_toolkit_says_is_a_gpu_error_however_it_is_wrapped(around, text):
    error = said(500, around.format(f"nvidia-container-cli: {text}"))
    assert type(error) is GpuError and all(word in str(error) for word in NVIDIA[text]), error


# Status, kind of the error and what the daemon says; below it, words of lab's error.
DAEMON = """
500 GpuError could not select device driver "nvidia" with capabilities: [[gpu compute utility]]
    toolkit is not registered; unix:///x.sock; nvidia-ctk runtime configure
400 GpuError unknown or invalid runtime specified nvidia; Unknown runtime specified nvidia
    toolkit is not registered; nvidia-ctk
500 GpuError error gathering device information: adding custom device "/dev/kfd": no such file or directory
    /dev/kfd does not exist; amdgpu
500 EngineError Unable to find group render: no matching entries in group file
    a fault in lab; render
500 EngineError unable to find user lab: no matching entries in passwd file
    a fault in lab
400 EngineError cannot set both Count and DeviceIDs on device request
    a fault in lab
400 UsageError invalid mount config for type "bind": bind source path does not exist: /data/gone
    cannot find a path that it has to mount; /data/gone
500 EngineError OCI runtime create failed: error setting rlimit type 8: operation not permitted: unknown
    locked memory
400 EngineError OCI runtime create failed: exec: "python3": stat python3: no such file or directory: unknown
    lab/cuda has no program 'python3'; lab images build cuda
400 EngineError exec: "python3": executable file not found in $PATH: unknown
    has no program 'python3'
400 EngineError OCI runtime create failed: exec: "/bin/x": permission denied: unknown
    '/bin/x' cannot be run
404 EngineError image was found but does not match the specified platform: wanted linux/arm64
    wanted linux/arm64
400 EngineError Requested CPUs are not available - requested 0-63, available: 0-1
    requested 0-63
404 EngineError No such image: lab/cuda:latest
    lab/cuda is not on this engine; lab images build cuda
404 EngineError pull access denied for lab/cuda, repository does not exist or may require 'docker login'
    lab images build cuda
500 EngineError Get "https://registry.example/v2/": dial tcp: lookup registry.example: no such host
    its registry cannot be reached; docker load
500 EngineError Get "https://registry.example/v2/": dial tcp 192.0.2.1:443: connect: connection refused
    registry cannot be reached
500 EngineError Get "https://registry.example/v2/": dial tcp 192.0.2.1:443: i/o timeout
    registry cannot be reached
409 BusyError Conflict. The container name "/lab-r-1" is already in use by container "abc".
    already has a container; lab run --resume /runs/r; lab runs stop /runs/r
500 EngineError could not find bridge docker0: route ip+net: no such network interface
    docker0; restart docker
400 EngineError client version 1.52 is too new. Maximum supported API version is 1.41
    DOCKER_API_VERSION
400 EngineError client version 1.41 is too old. Minimum supported API version is 1.44
    upgrade; 1.44
500 StorageError write /var/lib/docker/x: no space left on device
    Docker engine; docker system df
500 EngineError something nobody has seen before
    error from the Docker engine: something nobody has seen before
"""
ROWS = DAEMON.strip().splitlines()


@pytest.mark.parametrize(("row", "words"), [*zip(ROWS[::2], ROWS[1::2], strict=True)])
def test_what_the_daemon_says_becomes_an_error_with_its_cure(row, words):
    status, kind, text = row.split(" ", 2)
    error = said(int(status), text)
    assert type(error) is getattr(errors, kind), error
    assert all(word in str(error) for word in words.strip().split("; ")), error
    assert error.location == "step 's'" and isinstance(error.__cause__, APIError)


def test_a_secret_in_the_daemons_text_is_not_repeated(monkeypatch):
    monkeypatch.setenv("REGISTRY_PASSWORD", "planted_secret")
    error = said(500, 'Get "https://me:planted_secret@registry.example/v2/": x')
    assert "planted_secret" not in str(error) and "[redacted]" in str(error)


def test_a_socket_that_is_not_ours_names_the_group():
    denied = "('Connection aborted.', PermissionError(13, 'Permission denied'))"
    text = f"Error while fetching server API version: {denied}"
    error = translate(DockerException(text), context=CONTEXT)
    assert type(error) is EngineError and "usermod -aG docker" in str(error)


def test_an_engine_that_goes_while_a_container_runs_names_the_container_and_the_way_back():
    context = Context(endpoint="e", step="s", run_dir="/runs/r", container="0123456789abcdef")
    error = translate(requests.exceptions.ConnectionError("gone"), context=context)
    assert type(error) is EngineLost and "0123456789ab may still run" in str(error)
    assert "lab run --resume /runs/r" in str(error)
