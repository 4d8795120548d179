"""The line to the Docker engine: where it is, who answers, and why not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import docker
import docker.utils

from lab.engines.docker.errors import Context, speaking
from lab.errors import EngineError

SOCKET = "unix:///var/run/docker.sock"
ALLOW_REMOTE = "LAB_ALLOW_REMOTE_ENGINE"
TIMEOUT_S = 120  # of one answer; waiting for a container and following its log have no limit
CONNECTIONS = 64  # kept open: a running step holds two, its log and its wait


@dataclass(frozen=True)
class Daemon:
    """One client, used by all steps and threads of a driver."""

    client: docker.APIClient
    endpoint: str
    is_podman: bool


def connect(env: Mapping[str, str] | None = None) -> Daemon:
    """Reach the engine at $DOCKER_HOST or the usual socket. The CLI's context is not followed, and the API version is
    left to the two to agree on.

    Raises EngineError when it is down, not ours to use, or on another machine.
    """
    env = os.environ if env is None else env
    endpoint = env.get("DOCKER_HOST") or SOCKET
    remote = not endpoint.startswith(("unix://", "http+unix://"))
    if remote and env.get(ALLOW_REMOTE) != "1":
        raise EngineError(
            f"DOCKER_HOST={endpoint} is not an engine of this machine: the folders given to a container would be its own",
            fix=f"unset DOCKER_HOST; or set {ALLOW_REMOTE}=1 where both machines share these folders",
        )
    tls = docker.utils.kwargs_from_env(environment=dict(env)).get("tls", False) if remote else False
    with speaking(Context(endpoint=endpoint)):
        # A base_url that is given keeps SDK 7.2 from following the CLI's context, as 7.1 never did.
        client = _Client(
            base_url=endpoint, version=None, timeout=TIMEOUT_S, tls=tls, max_pool_size=CONNECTIONS
        )
        components = client.version().get("Components") or [{}]
    return Daemon(client, endpoint, is_podman=components[0].get("Name") == "Podman Engine")


class _Client(docker.APIClient):
    def _check_is_tty(self, container: str) -> bool:
        """The SDK inspects a container before each reading of its log to learn this; ours never have a terminal."""
        return False
