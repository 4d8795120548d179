"""The wheels that only this host's pip can find (a torch without CUDA), handed to a build as files."""

from __future__ import annotations

import platform
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from lab.core.files import make_folder, write_atomic
from lab.core.words import plural
from lab.errors import BadDataError, MissingError, UsageError
from lab.images.docker_cli import stream
from lab.images.targets import Target
from lab.images.tree import BUILD, Say
from lab.images.wheel import PIP

WHEELHOUSE = BUILD / "wheelhouse"
MUSL_TAGS = ("musllinux_1_2", "musllinux_1_1")
TAGS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "linux")


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
    for wheel in folder.glob("*.whl"):
        _refuse_gpu_build(wheel)
    write_atomic(stamp, wanted)


def download_argv(
    wheels: Sequence[str],
    python_version: str,
    folder: Path,
    *,
    machine: str | None = None,
    musl: bool = False,
) -> list[str]:
    """pip's command line that downloads wheels with what they need, for another Python and machine."""
    tags = MUSL_TAGS if musl else TAGS
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_{machine or platform.machine()}")]
    only = ["--quiet", "--only-binary=:all:", "--python-version", python_version, *platforms]
    return [*PIP, "download", *only, "--dest", str(folder), *wheels]


def _refuse_gpu_build(wheel: Path) -> None:
    needs = re.findall(r"^Requires-Dist: ((?:nvidia|cuda|triton)[^;\s]*)", _metadata(wheel), re.MULTILINE)
    if needs:
        further = f" and {plural(len(needs) - 1, 'more package')}" if needs[1:] else ""
        raise UsageError(
            f"this host's pip finds a GPU build (it needs {needs[0]}{further}), not one for the CPU",
            location=wheel.name,
            fix="point PIP_EXTRA_INDEX_URL at torch's index of CPU builds, or PIP_FIND_LINKS at a folder",
        )


def _metadata(wheel: Path) -> str:
    try:
        with zipfile.ZipFile(wheel) as archive:
            pattern = re.compile(r"[^/]+\.dist-info/METADATA")
            name = next(name for name in archive.namelist() if pattern.fullmatch(name))
            return archive.read(name).decode("utf-8", "replace")
    except (zipfile.BadZipFile, StopIteration, OSError) as error:
        raise BadDataError(f"not a wheel: {error}", location=wheel) from error
