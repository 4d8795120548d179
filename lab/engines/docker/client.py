"""The connection to the Docker engine: where it is, what answers there, or why nothing does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import docker
import docker.utils

from lab.engines.docker.errors import Context, translated
from lab.errors import EngineError

SOCKET = "unix:///var/run/docker.sock"
ALLOW_REMOTE = "LAB_ALLOW_REMOTE_ENGINE"
TIMEOUT_S = 120  # for one answer; waiting for a container and following its log have no limit
CONNECTIONS = 64  # kept open: a running step holds two, its log and its wait


@dataclass(frozen=True)
class Daemon:
    """One client, used by all steps and threads of a driver."""

    client: docker.APIClient
    endpoint: str
    is_podman: bool


def connect(env: Mapping[str, str] | None = None) -> Daemon:
    """Connect to the engine at $DOCKER_HOST or the usual socket; the API version is negotiated.

    The context of Docker's CLI is ignored. Raises EngineError when the engine is down, may not be used by
    this user, or is on another machine.
    """
    env = os.environ if env is None else env
    endpoint = env.get("DOCKER_HOST") or SOCKET
    remote = not endpoint.startswith(("unix://", "http+unix://"))
    if remote and env.get(ALLOW_REMOTE) != "1":
        raise EngineError(
            f"DOCKER_HOST={endpoint} is not an engine of this machine: containers would mount its folders",
            fix=f"unset DOCKER_HOST; or set {ALLOW_REMOTE}=1 where both machines share these folders",
        )
    tls = docker.utils.kwargs_from_env(environment=dict(env)).get("tls", False) if remote else False
    with translated(Context(endpoint=endpoint)):
        # A base_url that is given keeps SDK 7.2 from following the CLI's context, as 7.1 never did.
        client = _Client(
            base_url=endpoint, version=None, timeout=TIMEOUT_S, tls=tls, max_pool_size=CONNECTIONS
        )
        components = client.version().get("Components") or [{}]
    return Daemon(client, endpoint, is_podman=components[0].get("Name") == "Podman Engine")


class _Client(docker.APIClient):
    def _check_is_tty(self, container: str) -> bool:
        """No container of lab has a terminal; without this the SDK asks the engine before it reads a log."""
        return False
