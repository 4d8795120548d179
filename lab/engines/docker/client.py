"""The connection to the engine: where it is, what answers there (Docker or podman), or why nothing does."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import docker
import docker.utils

from lab.engines.docker.errors import Context, translated
from lab.engines.docker.nature import nature_of
from lab.errors import EngineError
from lab.images.container import UserMapping
from lab.images.endpoint import endpoint_of

ALLOW_REMOTE = "LAB_ALLOW_REMOTE_ENGINE"
TIMEOUT_S = 120  # for one answer; waiting for a container and following its log have no limit
CONNECTIONS = 64  # kept open: a running step holds two, its log and its wait


@dataclass(frozen=True)
class Daemon:
    """One client, used by all steps and threads of a driver."""

    client: docker.APIClient
    endpoint: str
    is_podman: bool
    user_mapping: UserMapping = "same"
    cdi: bool = False  # whether it gives devices by the host's CDI specifications


def connect(env: Mapping[str, str] | None = None, *, timeout_s: int | None = None) -> Daemon:
    """Connect to the engine of `endpoint_of`; the API version is negotiated.

    The context of Docker's CLI is ignored. Raises EngineError when the engine is down, may not be used by
    this user, or is on another machine.
    """
    env = os.environ if env is None else env
    endpoint = endpoint_of(env)
    remote = not endpoint.startswith(("unix://", "http+unix://"))
    if remote and env.get(ALLOW_REMOTE) != "1":
        if re.fullmatch(r"\s*(?:unix:)?/{0,2}/[^/\s]\S*\s*", endpoint):
            path = endpoint.strip().removeprefix("unix:").lstrip("/")
            raise EngineError(
                f"DOCKER_HOST={endpoint} is not written as an engine's address",
                fix=f"DOCKER_HOST=unix:///{path}",
            )
        raise EngineError(
            f"DOCKER_HOST={endpoint} is not an engine of this machine: containers would mount its folders",
            fix=f"unset DOCKER_HOST; or set {ALLOW_REMOTE}=1 where both machines share these folders",
        )
    tls = docker.utils.kwargs_from_env(environment=dict(env)).get("tls", False) if remote else False
    with translated(Context(endpoint=endpoint)):
        # A base_url that is given keeps SDK 7.2 from following the CLI's context, as 7.1 never did.
        client = _Client(
            base_url=endpoint,
            version=None,
            timeout=timeout_s or TIMEOUT_S,
            tls=tls,
            max_pool_size=CONNECTIONS,
        )
        nature = nature_of(client.version(), client.info())
    if nature.user_mapping in ("rootless-docker", "rootless-podman"):
        _refuse_anothers(endpoint)
    return Daemon(client, endpoint, nature.is_podman, nature.user_mapping, nature.cdi)


def _refuse_anothers(endpoint: str) -> None:
    """A rootless engine gives every file to the user who started it."""
    _, of_this_host, path = endpoint.partition("unix://")
    if of_this_host and (owner := os.stat(path).st_uid) != os.getuid():
        raise EngineError(
            f"the rootless engine at {endpoint} is user {owner}'s, who would own the results",
            fix="name an engine of your own in DOCKER_HOST",
        )


class _Client(docker.APIClient):
    def _check_is_tty(self, container: str) -> bool:
        """No container of lab has a terminal; without this the SDK asks the engine before it reads a log."""
        return False
