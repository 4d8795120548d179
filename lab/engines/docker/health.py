"""Whether the engine answers, and how it would give this host's GPUs to a container: for `lab doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.core.gpu import Gpu
from lab.engines.docker.client import Daemon, connect
from lab.engines.docker.nature import has_toolkit, how_gpus_reach
from lab.errors import EngineError
from lab.images.endpoint import endpoint_of

TIMEOUT_S = 5


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
    return [row, *([_gpu_access(daemon, info, gpus)] if gpus else [])]


def _gpu_access(daemon: Daemon, info: Mapping[str, Any], gpus: Sequence[Gpu]) -> Row:
    state, detail = how_gpus_reach(daemon, gpus, toolkit=has_toolkit(info))
    return Row("gpu access", state, detail)
