"""What is refused before a container starts, because the engine would get it wrong without a word."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import EngineError, GpuError, UsageError
from lab.images.acquire import TITLE_LABEL
from lab.images.container import ContainerSpec
from lab.images.names import repository_of
from lab.images.spec import Image
from lab.images.targets import targets

if TYPE_CHECKING:
    from lab.engines.docker.client import Daemon


def allowed(daemon: Daemon, spec: ContainerSpec) -> ContainerSpec:
    """The spec as it is. Raises GpuError for GPUs that it cannot reach, UsageError for paths not in UTF-8."""
    if daemon.is_podman and any(request.driver == "nvidia" for request in spec.device_requests):
        raise GpuError(
            f"the engine at {daemon.endpoint} is podman, which gives NVIDIA GPUs by CDI only, and no CDI "
            "specification of this host names these",
            where=", ".join(spec.device_requests[0].device_ids),
            fix="sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (podman 4.1 or newer)",
        )
    if daemon.user_mapping == "rootless-docker":
        _refuse_closed_nodes(daemon, spec)
    for mount in spec.mounts:
        try:
            mount.source.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the Docker engine needs UTF-8 paths: {mount.source!r}", fix="rename the folder"
            ) from error
    return spec


def _refuse_closed_nodes(daemon: Daemon, spec: ContainerSpec) -> None:
    """Rootless Docker drops the caller's groups, by which most users may open an AMD GPU."""
    for node in (Path(device.partition(":")[0]) for device in spec.devices):
        found = node.stat()
        own = found.st_uid == os.getuid() or found.st_gid == os.getgid()
        if not own and found.st_mode & 0o006 != 0o006:
            raise GpuError(
                f"containers of the rootless Docker at {daemon.endpoint} cannot open {node}: they lose the "
                f"group {found.st_gid} by which you may",
                fix="use podman, which keeps your groups, or a Docker engine of the system (DOCKER_HOST)",
            )


def refuse_another(ref: str, labels: Mapping[str, str], image: Image) -> None:
    """Raises EngineError for a tag that was moved to another of lab's images, whose packages are not what the
    run's record names."""
    title = labels.get(TITLE_LABEL, "")
    known = {f"lab/{target.name}" for target in targets()}
    if {title, repository_of(ref)} <= known - {repository_of(image.base)} and title != repository_of(ref):
        raise EngineError(
            f"the image {ref} is not itself: it is labelled {title}",
            fix=f"build or pull it again: lab images build {image.name}",
        )
