"""Where the engine is that builds, tries and runs images."""

from __future__ import annotations

import os
from collections.abc import Mapping

SOCKET = "unix:///var/run/docker.sock"
PODMAN_SOCKET = "unix:///run/podman/podman.sock"


def endpoint_of(env: Mapping[str, str]) -> str:
    """$DOCKER_HOST, else the first socket that this user may use: the system's Docker, the user's own Docker
    or podman, the system's podman. Where there is none: the system's Docker, for the error to name."""
    named = env.get("DOCKER_HOST", "")
    if named not in ("", "unix://"):  # as Docker's own client reads the second
        return named
    runtime_folder = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    usual = (
        SOCKET,
        f"unix://{runtime_folder}/docker.sock",
        f"unix://{runtime_folder}/podman/podman.sock",
        PODMAN_SOCKET,
    )
    return next((one for one in usual if os.access(one.removeprefix("unix://"), os.R_OK | os.W_OK)), SOCKET)
