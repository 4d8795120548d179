"""Where the engine is that builds, tries and runs images."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOCKET = "unix:///var/run/docker.sock"
PODMAN_SOCKET = "unix:///run/podman/podman.sock"


def endpoint_of(env: Mapping[str, str]) -> str:
    """$DOCKER_HOST, else the context of Docker's program, else the first socket that this user may use: the
    system's Docker, the user's own Docker or podman, the system's podman. Without any, the first."""
    named = env.get("DOCKER_HOST", "")
    if named not in ("", "unix://"):  # as Docker's own client reads the second
        return named
    if context := _of_context(env):
        return context
    runtime_folder = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    usual = (
        SOCKET,
        f"unix://{runtime_folder}/docker.sock",
        f"unix://{runtime_folder}/podman/podman.sock",
        PODMAN_SOCKET,
    )
    return next(
        (socket for socket in usual if os.access(socket.removeprefix("unix://"), os.R_OK | os.W_OK)), SOCKET
    )


def _of_context(env: Mapping[str, str]) -> str | None:
    """The endpoint of $DOCKER_CONTEXT or of `docker context use`; None for the default one.

    A context that is not here is an endpoint, too: no engine answers there, and the error names it.
    """
    folder = Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or "/nonexistent") / ".docker")
    name = env.get("DOCKER_CONTEXT") or _json(folder / "config.json").get("currentContext")
    if not name or name == "default":
        return None
    path = folder / "contexts/meta" / hashlib.sha256(str(name).encode()).hexdigest() / "meta.json"
    try:
        return str(json.loads(path.read_bytes())["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, LookupError, TypeError):
        return f"context://{name}"


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
