"""The wheels that only this host's pip can find (a torch without CUDA), handed to a build as files."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from lab.core.files import make_folder, write_atomic
from lab.errors import MissingError
from lab.images.docker_cli import stream
from lab.images.targets import Target
from lab.images.tree import BUILD, Say
from lab.images.wheel import PIP

WHEELHOUSE = BUILD / "wheelhouse"
TAGS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "linux")
MUSL_TAGS = ("musllinux_1_2", "musllinux_1_1")  # Alpine's C library loads no manylinux wheel


def fill_wheelhouse(target: Target, python_version: str, root: Path, say: Say) -> None:
    """Download `target.wheels` for the Python of its base, unless they are there already."""
    folder, stamp = root / WHEELHOUSE / target.name, root / WHEELHOUSE / f"{target.name}.for"
    wanted = f"{python_version} {' '.join(target.wheels)}\n"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted and any(folder.glob("*.whl")):
        return
    names = ", ".join(target.wheels)
    say(f"asking this host's pip for {names} (Python {python_version})")
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    code, tail = stream(
        [*download_argv(target.wheels, python_version, folder), "--no-deps"], env={}, cwd=root, say=say
    )
    if code:
        raise MissingError(
            f"this host's pip cannot find {names} for Python {python_version}:\n" + "\n".join(tail[-5:]),
            fix="point PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS at one",
        )
    write_atomic(stamp, wanted)


def download_argv(
    wheels: Sequence[str],
    python_version: str,
    folder: Path,
    *,
    machine: str = platform.machine(),
    libc: str = "glibc",
) -> list[str]:
    """pip's command line that downloads wheels with what they need, for another Python and machine."""
    tags = TAGS if libc == "glibc" else MUSL_TAGS
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_{machine}")]
    only = ["--quiet", "--only-binary=:all:", "--python-version", python_version, *platforms]
    return [*PIP, "download", *only, "--dest", str(folder), *wheels]
