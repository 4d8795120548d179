"""The wheel of lab, made once and given to every image; the same tree and C compiler give the same bytes."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from lab.core.files import make_folder, write_atomic
from lab.errors import MissingError, writing
from lab.images.docker_cli import stream
from lab.images.tree import BUILD, Say, file_hash

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
