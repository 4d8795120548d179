"""Whether the engine answers, and how it would give this host's GPUs to a container: for `lab doctor`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.core.gpu import Gpu
from lab.engines.docker.client import Daemon, connect
from lab.errors import EngineError
from lab.images.endpoint import endpoint_of

TIMEOUT_S = 5
HOOK = "nvidia-container-runtime-hook"  # dockerd gives NVIDIA GPUs if this program is on its PATH


class Row(NamedTuple):
    """One finding. `warn`: present and not usable, which does not matter for runs without an image."""

    what: str
    state: str  # "ok" | "-" | "warn" | "bad"
    detail: str


def check_engine(env: Mapping[str, str], gpus: Sequence[Gpu]) -> list[Row]:
    """The engine of `env`, asked itself: a socket may be there and nobody behind it."""
    endpoint = endpoint_of(env)
    path = Path(endpoint.partition("unix://")[2])
    if endpoint.startswith("unix://") and not path.exists():
        return [Row("engine", "-", f"no Docker engine at {path}: runs with --image need one")]
    try:
        daemon = connect(env, timeout_s=TIMEOUT_S)
        version, info = daemon.client.version(), daemon.client.info()
    except EngineError as error:
        return [Row("engine", "warn", "; ".join(filter(None, (error.what, error.fix))))]
    name = "podman" if daemon.is_podman else "Docker"
    rootless = ", rootless" if daemon.user_mapping.startswith("rootless") else ""
    row = Row("engine", "ok", f"{name} {version.get('Version', '')}{rootless} at {endpoint}")
    return [row, *([how_gpus_reach(daemon, info, gpus)] if gpus else [])]


def how_gpus_reach(daemon: Daemon, info: Mapping[str, Any], gpus: Sequence[Gpu]) -> Row:
    """How a container of this engine would get these GPUs, all of one vendor."""
    if daemon.cdi and all(gpu.cdi for gpu in gpus):
        return Row("gpu access", "ok", f"by CDI: {' '.join(gpu.cdi for gpu in gpus if gpu.cdi)}")
    if gpus[0].vendor == "amd":
        return Row("gpu access", "ok", "by their device nodes")
    if daemon.is_podman:
        cure = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        return Row("gpu access", "warn", f"podman needs a CDI specification that names these GPUs: {cure}")
    if "nvidia" in (info.get("Runtimes") or {}) or shutil.which(HOOK):
        return Row("gpu access", "ok", "by NVIDIA's container toolkit")
    cure = "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; restart it"
    return Row("gpu access", "warn", f"NVIDIA's container toolkit was not found: {cure}")
