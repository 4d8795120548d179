"""What may be mounted into a container: every source is checked before the engine sees it.

Allowed are the run folder, lab's two caches and the files that tools name in a variable; never a system
folder, a socket, a device, or the whole home.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import msgspec

from lab.core.files import make_folder
from lab.core.run import holds_home
from lab.core.step import SOURCE
from lab.errors import MissingError, UsageError
from lab.images.container import HUB_CACHE, ContainerSpec, Mount

SYSTEM = ["/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"]
SYSTEM += ["/var/lib", "/var/run"]
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
    """The same container with every mount's source made absolute, or an error that names the option it came
    from.

    Raises MissingError for a source that does not exist, UsageError for one that may not be mounted.
    """
    return msgspec.structs.replace(spec, mounts=tuple(_checked(mount) for mount in spec.mounts))


def _checked(mount: Mount) -> Mount:
    option = OPTION_OF.get(mount.target, mount.target)
    if mount.source.startswith("<path in $"):
        raise MissingError(
            f"{option} is not set: it must name a file",
            where=mount.target,
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
        raise MissingError(f"{option} names a path that does not exist: {error}", where=path) from error
    _refuse(real, option)
    if mount.target == "/opt/lab/nixnan.so":
        check_shared_object(real)
    return msgspec.structs.replace(mount, source=str(real))


def _own_folder(path: Path) -> None:
    """A run folder behind a link could be swapped for another while the run goes on."""
    if path.is_symlink():
        raise UsageError("the run folder is a symbolic link", where=path, fix="name the folder itself")
    if path.is_dir() and path.stat().st_uid != os.geteuid() and os.geteuid() != 0:
        raise UsageError(
            "the run folder belongs to another user", where=path, fix="choose another --output-dir"
        )


def _refuse(real: Path, option: str) -> None:
    kind = real.stat().st_mode
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise UsageError(
            f"{option} names a socket, pipe or device, which cannot be mounted into a container", where=real
        )
    refuse_place(real, option)


def check_run_folder(run_dir: str) -> None:
    """Refuse, before anything is written to it, a run folder that no container may get."""
    refuse_place(Path(run_dir).resolve(), OPTION_OF["/out"])
    _own_folder(Path(run_dir))


def refuse_place(real: Path, option: str) -> None:
    """Raises UsageError for a folder of the system, or one that the home lies in."""
    if holds_home(real) or _below_system(real):
        raise UsageError(
            f"{option} names a folder that cannot be mounted into a container",
            where=real,
            fix="name a folder of your own data",
        )


def _below_system(real: Path) -> bool:
    # /run/user/<uid> is the caller's own; everything else below these is the system's.
    own = Path(f"/run/user/{os.geteuid()}")
    return own not in real.parents and any(real == Path(p) or Path(p) in real.parents for p in SYSTEM)


def check_shared_object(path: Path) -> None:
    """Refuse a file that an x86-64 container could not load. Reads only its ELF header."""
    with path.open("rb") as file:
        head = file.read(20)
    what = None
    if head[:4] != b"\x7fELF":
        what = "is an empty file, not an ELF shared object" if not head else "is not an ELF shared object"
    elif len(head) < 20 or head[4] != 2:
        what = "is not a 64-bit ELF file"
    else:
        kind, machine = struct.unpack_from("<HH", head, 16)
        if kind != 3:
            what = "is an ELF file, but not a shared object"
        elif machine != 62:
            what = "is not built for x86-64"
    if what:
        raise UsageError(
            f"NIXNAN_SO {what}", where=path, fix="name the nixnan.so that you built for this machine"
        )
