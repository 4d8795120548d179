"""The wheels of a build: lab's own, and those that only this host's pip can find (a torch without CUDA).

lab's is made once and given to every image; the same tree and C compiler give the same bytes.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lab.core.files import make_folder, write_atomic
from lab.errors import MissingError, writing
from lab.images.docker_cli import stream
from lab.images.targets import BUILD, Say, Target, file_hash

DIST = BUILD / "dist"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
REPRODUCIBLE = {"SOURCE_DATE_EPOCH": "1580601600"}


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sha256: str


def make_wheel(root: Path, say: Say) -> Wheel:
    """The wheel of this tree, in build/images/dist beside its SHA256SUMS."""
    say("making the wheel of lab")
    with tempfile.TemporaryDirectory(prefix="lab-wheel-") as folder:
        argv = [*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, "."]
        code, tail = stream(argv, env=REPRODUCIBLE, cwd=root, say=say)
        wheels = sorted(Path(folder).glob("lab-*.whl"))
        if code or len(wheels) != 1:
            raise MissingError(
                "the wheel of lab cannot be made:\n" + "\n".join(tail[-8:]),
                location=root,
                fix=f"{sys.executable} needs pip, and pip an index with hatchling",
            )
        wheel = Wheel(name=wheels[0].name, sha256=file_hash(wheels[0]))
        with writing(root / DIST):
            shutil.rmtree(root / DIST, ignore_errors=True)
            make_folder(root / DIST)
            shutil.copyfile(wheels[0], root / DIST / wheel.name)
        write_atomic(root / DIST / "SHA256SUMS", f"{wheel.sha256}  {wheel.name}\n")
    if "-none-any." in wheel.name:
        reason = "no C compiler works here (`LAB_WHEEL=native pip wheel .` says why)"
        say(f"the wheel is the pure one, without the compiled scanner of tensors: {reason}")
    return wheel


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
