"""Which engine answers (Docker or podman), what it can do, and the connection to it.

A plan asks it without Docker's SDK, which costs more than the plan itself: only `connect` imports it.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.core.gpu import Gpu
from lab.errors import EngineError
from lab.images.container import UserMapping
from lab.images.docker_cli import endpoint_of

if TYPE_CHECKING:
    import docker

HOOK = "nvidia-container-runtime-hook"  # dockerd gives NVIDIA GPUs if this program is on its PATH
UNLIMITED = "this engine cannot limit a container's memory or processes"
TIMEOUT_S = 120  # for one answer; waiting for a container and following its log have no limit
CONNECTIONS = 64  # kept open: a running step holds two, its log and its wait


@dataclass(frozen=True, kw_only=True)
class Nature:
    """What decides how a container is made on an engine."""

    is_podman: bool = False
    user_mapping: UserMapping = "same"
    cdi: bool = False  # whether it gives devices by the host's CDI specifications
    toolkit: bool = True  # whether NVIDIA's container toolkit is seen
    limits: bool = True  # whether its limits of memory and processes take effect
    selinux: bool = False  # whether it separates containers from folders that are not labelled for them
    wsl: bool = False  # whether it is in Windows' Linux, whose runtimes need not be listed


@dataclass(frozen=True, kw_only=True)
class Daemon(Nature):
    """One client, used by all steps and threads of a driver."""

    client: docker.APIClient
    endpoint: str


def connect(env: Mapping[str, str] | None = None, *, timeout_s: int | None = None) -> Daemon:
    """Connect to the engine of `endpoint_of`; the API version is negotiated.

    Raises EngineError when the engine is down, may not be used by this user, or is on another machine.
    """
    import docker

    from lab.engines.docker.errors import Context, translated

    env = os.environ if env is None else env
    endpoint = endpoint_of(env)
    if not endpoint.startswith(("unix://", "http+unix://")):
        raise EngineError(
            f"{endpoint} (of DOCKER_HOST or Docker's context) is not the socket of an engine of this machine",
            fix="DOCKER_HOST=unix:///path/to/docker.sock, because containers mount folders of this machine",
        )
    with translated(Context(endpoint=endpoint)):
        # A base_url that is given keeps SDK 7.2 from choosing another context than `endpoint_of` did.
        client = docker.APIClient(
            base_url=endpoint,
            version=None,
            timeout=timeout_s or TIMEOUT_S,
            max_pool_size=CONNECTIONS,
        )
        # No container of lab has a terminal; else the SDK asks the engine before it reads a log.
        client._check_is_tty = lambda container: False  # type: ignore[attr-defined]
        nature = nature_of(client.version(), client.info())
    if nature.user_mapping in ("rootless-docker", "rootless-podman"):
        _refuse_foreign_engine(endpoint)
    return Daemon(client=client, endpoint=endpoint, **vars(nature))


def _refuse_foreign_engine(endpoint: str) -> None:
    """A rootless engine gives every file to the user who started it."""
    _, is_local, path = endpoint.partition("unix://")
    if is_local and (owner := os.stat(path).st_uid) != os.getuid():
        raise EngineError(
            f"the rootless engine at {endpoint} is user {owner}'s, who would own the results",
            fix="name an engine of your own in DOCKER_HOST",
        )


def ask(endpoint: str, timeout_s: float) -> Nature | None:
    """The nature of the engine at this socket; None if none answers or `endpoint` is not a socket."""
    _, is_local, path = endpoint.partition("unix://")
    if not is_local:
        return None
    try:
        return nature_of(_get(path, "/version", timeout_s), _get(path, "/info", timeout_s))
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _get(socket_path: str, url: str, timeout_s: float) -> dict[str, Any]:
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(timeout_s)
    try:
        connection.sock.connect(socket_path)
        connection.request("GET", url)
        answer = connection.getresponse()
        return dict(json.loads(answer.read())) if answer.status == 200 else {}
    finally:
        connection.close()


def nature_of(version: Mapping[str, Any], info: Mapping[str, Any]) -> Nature:
    """By the engine's answers to /version and /info."""
    component = (version.get("Components") or [{}])[0]
    is_podman = component.get("Name") == "Podman Engine"
    options = {part for text in info.get("SecurityOptions") or () for part in text.split(",")}
    mapping: UserMapping = "remapped" if "name=userns" in options else "same"
    if info.get("Rootless") or "name=rootless" in options:
        mapping = "rootless-podman" if is_podman else "rootless-docker"
    # Docker takes a limit on cgroup v1 without root, sets none and says nothing.
    rootless_v1 = mapping.startswith("rootless") and info.get("CgroupVersion") == "1"
    no_limits = rootless_v1 or info.get("CgroupDriver") == "none" or info.get("PidsLimit") is False
    return Nature(
        is_podman=is_podman,
        user_mapping=mapping,
        cdi=_podman_has_cdi(component.get("Version", "")) if is_podman else bool(info.get("CDISpecDirs")),
        # As a runtime of the engine, or as its hook on this host.
        toolkit="nvidia" in (info.get("Runtimes") or {}) or shutil.which(HOOK) is not None,
        limits=not no_limits,
        selinux="name=selinux" in options,
        wsl="microsoft" in str(info.get("KernelVersion", "")).lower(),
    )


def _podman_has_cdi(version: str) -> bool:
    """From 4.1 on. Docker reports it: CDISpecDirs is empty before 25, and where CDI is switched off."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= (4, 1)


def how_gpus_reach(engine: Nature, gpus: Sequence[Gpu]) -> tuple[str, str]:
    """How a container would get these GPUs, all of one vendor; -> "ok" or "warn", and a sentence."""
    if engine.cdi and all(gpu.cdi for gpu in gpus):
        return "ok", f"by CDI: {' '.join(gpu.cdi for gpu in gpus if gpu.cdi)}"
    if gpus[0].vendor == "amd":
        return "ok", "by their device nodes"
    if engine.is_podman:
        cure = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        return "warn", f"podman needs a CDI specification that names these GPUs: {cure}"
    if engine.toolkit:
        return "ok", "by NVIDIA's container toolkit"
    if engine.wsl:  # Docker Desktop has its own, and lists none
        return "ok", "by the toolkit of Docker Desktop, which does not list it: the start shows"
    cure = "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; restart it"
    return "warn", f"NVIDIA's container toolkit was not found: {cure}"
