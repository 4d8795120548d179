"""Where the engine is and what it says of itself, without Docker's SDK: a plan must not load that."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lab.core.gpu import Gpu
from lab.images.container import UserMapping

HOOK = "nvidia-container-runtime-hook"  # dockerd gives NVIDIA GPUs if this program is on its PATH
UNLIMITED = "this engine cannot limit a container's memory or processes"


class HasNature(Protocol):
    @property
    def is_podman(self) -> bool: ...
    @property
    def cdi(self) -> bool: ...
    @property
    def user_mapping(self) -> UserMapping: ...


@dataclass(frozen=True)
class Nature:
    """What decides how a container is made on an engine."""

    is_podman: bool = False
    user_mapping: UserMapping = "same"
    cdi: bool = False  # whether it gives devices by the host's CDI specifications
    toolkit: bool = True  # whether NVIDIA's container toolkit is seen
    limits: bool = True  # whether its limits of memory and processes take effect


def nature_of(version: Mapping[str, Any], info: Mapping[str, Any]) -> Nature:
    """By the engine's answers to /version and /info. Docker's CDISpecDirs is empty where it gives none."""
    component = (version.get("Components") or [{}])[0]
    is_podman = component.get("Name") == "Podman Engine"
    cdi = podman_cdi(component.get("Version", "")) if is_podman else bool(info.get("CDISpecDirs"))
    mapping = user_mapping_of(info, is_podman=is_podman)
    return Nature(is_podman, mapping, cdi, has_toolkit(info), has_limits(info, mapping))


def has_limits(info: Mapping[str, Any], mapping: UserMapping) -> bool:
    """A rootless engine on cgroup v1 takes a limit without a word and sets none."""
    rootless_v1 = mapping.startswith("rootless") and info.get("CgroupVersion") == "1"
    return not (rootless_v1 or info.get("CgroupDriver") == "none" or info.get("PidsLimit") is False)


def has_toolkit(info: Mapping[str, Any]) -> bool:
    """Whether NVIDIA's container toolkit is seen, as a runtime of the engine or as its hook on this host."""
    return "nvidia" in (info.get("Runtimes") or {}) or shutil.which(HOOK) is not None


def how_gpus_reach(engine: HasNature, gpus: Sequence[Gpu], *, toolkit: bool) -> tuple[str, str]:
    """How a container would get these GPUs, all of one vendor; -> "ok" or "warn", and a sentence."""
    if engine.cdi and all(gpu.cdi for gpu in gpus):
        return "ok", f"by CDI: {' '.join(gpu.cdi for gpu in gpus if gpu.cdi)}"
    if gpus[0].vendor == "amd":
        return "ok", "by their device nodes"
    if engine.is_podman:
        cure = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        return "warn", f"podman needs a CDI specification that names these GPUs: {cure}"
    if toolkit:
        return "ok", "by NVIDIA's container toolkit"
    cure = "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; restart it"
    return "warn", f"NVIDIA's container toolkit was not found: {cure}"


def user_mapping_of(info: Mapping[str, Any], *, is_podman: bool) -> UserMapping:
    """How the users in containers relate to the host's, by what the engine says of itself (/info)."""
    options = {part for text in info.get("SecurityOptions") or () for part in text.split(",")}
    if info.get("Rootless") or "name=rootless" in options:
        return "rootless-podman" if is_podman else "rootless-docker"
    return "remapped" if "name=userns" in options else "same"


def podman_cdi(version: str) -> bool:
    """From 4.1 on. Docker says it itself: CDISpecDirs is empty before 25, and where CDI is switched off."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= (4, 1)


def ask(endpoint: str, timeout_s: float) -> Nature | None:
    """The nature of the engine at this socket; None where none answers, or `endpoint` is no socket."""
    _, of_this_host, path = endpoint.partition("unix://")
    if not of_this_host:
        return None
    try:
        return nature_of(_get(path, "/version", timeout_s), _get(path, "/info", timeout_s))
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _get(path: str, what: str, timeout_s: float) -> dict[str, Any]:
    connection = _OverSocket(path, timeout_s)
    try:
        connection.request("GET", what)
        answer = connection.getresponse()
        return dict(json.loads(answer.read())) if answer.status == 200 else {}
    finally:
        connection.close()


class _OverSocket(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
