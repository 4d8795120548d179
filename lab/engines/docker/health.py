"""Whether the engine answers, how containers would get this host's GPUs, and what would mend it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.core.gpu import Gpu
from lab.core.words import size_text
from lab.engines.docker.client import UNLIMITED, Daemon, connect, how_gpus_reach
from lab.errors import EngineError
from lab.gpus.health import Check, as_root, join_group_of, program_path
from lab.images import docker_cli

TIMEOUT_S = 30  # under load an engine is slow, and not one that does not answer
LEAST_FREE = 10 * 2**30  # an image of a GPU has 8 GB
CDI_FILE = "/etc/cdi/nvidia.yaml"
# The program that serves the socket -> what starts it where systemd runs.
STARTS = {
    "dockerd": "systemctl start docker",
    "dockerd-rootless.sh": "systemctl --user start docker",
    "podman": "systemctl --user start podman.socket",
}


def check_engine(env: Mapping[str, str], gpus: Sequence[Gpu], timeout_s: int | None = None) -> list[Check]:
    """Ask the engine of `env` itself: a socket may be there and nothing behind it."""
    endpoint = docker_cli.endpoint_of(env)
    path = Path(endpoint.partition("unix://")[2])
    if endpoint.startswith("unix://") and not _exists(path):
        detail = f"no Docker engine at {path}: runs with --image need one"
        return [Check("engine", "-", detail, _start(path, env))]
    try:
        daemon = connect(env, timeout_s=timeout_s or TIMEOUT_S)
        version, info = daemon.client.version(), daemon.client.info()
    except EngineError as error:
        return [_unusable(error, endpoint, path, env)]
    name = "podman" if daemon.is_podman else "Docker"
    rootless = ", rootless" if daemon.user_mapping.startswith("rootless") else ""
    no_limits = "" if daemon.limits else f"; {UNLIMITED}"
    row = Check("engine", "ok", f"{name} {version.get('Version', '')}{rootless} at {endpoint}{no_limits}")
    return [row, *_disk(info), *([_gpu_access(daemon, info, gpus)] if gpus else [])]


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError:  # in another user's folder: it may well be there
        return True
    except OSError:
        return False
    return True


def _unusable(error: EngineError, endpoint: str, path: Path, env: Mapping[str, str]) -> Check:
    text = "; ".join(filter(None, (error.problem, error.fix)))
    if not endpoint.startswith("unix://"):
        return Check("engine", "warn", text)
    forbidden = not os.access(path, os.R_OK | os.W_OK)
    silent = "no Docker engine answers" in error.problem
    fix = join_group_of(path) if forbidden else _start(path, env) if silent else ""
    return Check("engine", "warn", text, fix)


def _start(path: Path, env: Mapping[str, str]) -> str:
    """What starts the engine of this socket, if its program is here; "" for a socket of another kind."""
    runtime_folder = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    of_socket = {
        docker_cli.SOCKET.removeprefix("unix://"): ("dockerd",),
        f"{runtime_folder}/docker.sock": ("dockerd-rootless.sh",),
        f"{runtime_folder}/podman/podman.sock": ("podman",),
    }
    programs: tuple[str, ...] = of_socket.get(str(path), ())
    # Without any socket each engine serves: rather one that needs no root. A dead socket goes before others.
    if not env.get("DOCKER_HOST") and not _exists(path) and os.geteuid() != 0:
        programs = ("dockerd-rootless.sh", "podman", "dockerd")
    program = next((program for program in programs if program_path(program, env)), None)
    command = STARTS[program] if program else ""
    return as_root(command) if command and "--user" not in command else command


def _disk(info: Mapping[str, Any]) -> list[Check]:
    """Space where the engine keeps its images, if that is on this host."""
    folder = str(info.get("DockerRootDir") or "")
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return []
    state = "ok" if free >= LEAST_FREE else "warn"
    few = "" if state == "ok" else ": an image for GPUs needs 10 GB; docker system df shows what uses it"
    return [Check("engine disk", state, f"{size_text(free)} free at {folder}{few}")]


def _gpu_access(daemon: Daemon, info: Mapping[str, Any], gpus: Sequence[Gpu]) -> Check:
    state, detail = how_gpus_reach(daemon, gpus)
    fix = _give_access(daemon, info) if state == "warn" else ""
    version = _toolkit_version() if gpus[0].vendor == "nvidia" else ""
    return Check("gpu access", state, f"{detail} ({version})" if version else detail, fix)


def _toolkit_version() -> str:
    """What NVIDIA's toolkit says of itself; "" where it is not here, or does not answer."""
    if shutil.which("nvidia-ctk") is None:
        return ""
    argv = ["nvidia-ctk", "--version"]
    try:
        completed = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (completed.stdout.strip().splitlines() or [""])[0][:100]


def _give_access(daemon: Daemon, info: Mapping[str, Any]) -> str:
    """Nothing without NVIDIA's toolkit, which has to be installed, or where a rootless Docker sets it."""
    if shutil.which("nvidia-ctk") is None or daemon.user_mapping == "rootless-docker":
        return ""
    if daemon.is_podman:
        return as_root(f"nvidia-ctk cdi generate --output={CDI_FILE}")
    configure = as_root("nvidia-ctk runtime configure --runtime=docker")
    if info.get("ContainersRunning"):  # a restart would end them
        return f"{configure}; then restart Docker once its containers have ended"
    return f"{configure}; {as_root('systemctl restart docker')}"
