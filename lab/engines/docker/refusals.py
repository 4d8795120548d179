"""What is refused before a container starts: dangerous mounts, GPUs that it could not open.

Mounted are the run folder, lab's two caches and the files that tools name in a variable; never a system
folder, a socket, a device, or the whole home.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lab.core.files import make_folder
from lab.core.run_folder import holds_home
from lab.core.step import SOURCE
from lab.errors import GpuError, MissingError, UsageError
from lab.images.container import HUB_CACHE, ContainerSpec, Mount
from lab.images.foreign import SYSTEM

if TYPE_CHECKING:
    from lab.engines.docker.client import Daemon

OPTION_OF = {
    "/out": "--output-dir",
    "/in": "the run folder",
    SOURCE: "the folder of the command",
    HUB_CACHE: "HF_HUB_CACHE or HF_HOME",
    "/cache": "XDG_CACHE_HOME",
    "/opt/lab/nixnan.so": "NIXNAN_SO",
    "/corpus": "LAB_CORPUS",
}


def checked(spec: ContainerSpec) -> ContainerSpec:
    """Make every mount's source absolute; errors name the option that it came from.

    Raises MissingError for a source that does not exist, UsageError for one that may not be mounted.
    """
    return msgspec.structs.replace(spec, mounts=tuple(_checked(mount) for mount in spec.mounts))


def _checked(mount: Mount) -> Mount:
    option = OPTION_OF.get(mount.target, "--mount")
    if mount.source.startswith("<path in $"):
        raise MissingError(
            f"{option} is not set: it must name a file",
            location=mount.target,
            fix=f"{option}=/path/to/file lab run ...",
        )
    path = Path(mount.source)
    if mount.target in (HUB_CACHE, "/cache"):
        make_folder(path)
    elif mount.target == "/out":
        _own_folder(path)
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise MissingError(f"{option} names a path that does not exist: {error}", location=path) from error
    _refuse(real, option)
    return msgspec.structs.replace(mount, source=str(real))


def check_mount(mount: Mount) -> None:
    """Refuse a source of --mount that no container may get, before anything runs."""
    path = Path(mount.source)
    if not path.exists():
        raise MissingError("--mount names a path that does not exist", location=path)
    _refuse(path.resolve(), "--mount")


def _own_folder(path: Path) -> None:
    """A run folder behind a link could be swapped for another while the run goes on."""
    if path.is_symlink():
        raise UsageError("the run folder is a symbolic link", location=path, fix="name the folder itself")
    if path.is_dir() and path.stat().st_uid != os.geteuid() and os.geteuid() != 0:
        raise UsageError(
            "the run folder belongs to another user", location=path, fix="choose another --output-dir"
        )


def _refuse(real: Path, option: str) -> None:
    kind = real.stat().st_mode
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise UsageError(
            f"{option} names a socket, pipe or device, which cannot be mounted into a container",
            location=real,
        )
    refuse_system_folder(real, option)


def check_run_folder(run_dir: str) -> None:
    """Refuse, before anything is written to it, a run folder that no container may get."""
    refuse_system_folder(Path(run_dir).resolve(), OPTION_OF["/out"])
    _own_folder(Path(run_dir))


def refuse_system_folder(real: Path, option: str) -> None:
    """Raises UsageError for a folder of the system, or one that the home lies in."""
    # /run/user/<uid> is the caller's own; everything else below these is the system's.
    is_own = Path(f"/run/user/{os.geteuid()}") in real.parents
    is_system = not is_own and any(
        Path(folder) in (real, *real.parents) for folder in (*SYSTEM, "/var/lib", "/var/run")
    )
    if holds_home(real) or is_system:
        raise UsageError(
            f"{option} names a folder that cannot be mounted into a container",
            location=real,
            fix="name a folder of your own data",
        )


def allowed(daemon: Daemon, spec: ContainerSpec) -> ContainerSpec:
    """The spec as it is. Raises GpuError for GPUs that it cannot reach, UsageError for paths not in UTF-8."""
    # podman would run the step without a GPU, and say nothing (containers/podman#22645).
    if daemon.is_podman and any(request.driver == "nvidia" for request in spec.device_requests):
        raise GpuError(
            f"the engine at {daemon.endpoint} is podman, which gives NVIDIA GPUs by CDI only, and no CDI "
            "specification of this host names these",
            location=", ".join(spec.device_requests[0].device_ids),
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
        status = node.stat()
        is_own = status.st_uid == os.getuid() or status.st_gid == os.getgid()
        if not is_own and status.st_mode & 0o006 != 0o006:
            raise GpuError(
                f"containers of the rootless Docker at {daemon.endpoint} cannot open {node}: they lose the "
                f"group {status.st_gid} by which you may",
                fix="use podman, which keeps your groups, or a Docker engine of the system (DOCKER_HOST)",
            )
