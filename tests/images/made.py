"""What an image is built from, what a probe found in an example of lab/cuda, programs in a built image."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lab.images.check import UNPRIVILEGED
from lab.images.probe import Contents

LOCK = (
    "torch==2.10.0 \\\n    --hash=sha256:aa\n"
    "numpy==2.2.6 ; python_full_version < '3.11' \\\n    --hash=sha256:bb\n"
    "numpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:cc\n"
)
CONTENTS = Contents(
    python="3.12",
    lab="0.1.0",
    wheel="w",
    command="/opt/lab/bin/lab",
    torch=True,
    uid=1234,
    root_writable=False,
    archs=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    cuda="12.8",
    packages={"torch": "2.10.0", "numpy": "2.5.5"},
    tools={"nsys": "/x", "ncu": "/x", "nvdisasm": "/x", "nvcc": None},
)


def copy_tree(source: Path, to: Path) -> None:
    """What an image is built from, so that edits meanwhile do not matter."""
    for name in ("lab", "images", "docker"):
        shutil.copytree(source / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".dockerignore"):
        shutil.copy(source / name, to)
    (to / "scripts").mkdir()
    shutil.copy(source / "scripts" / "hatch_build.py", to / "scripts")


def in_container(ref: str, *words: str) -> str:
    """What a program in this image printed, run as `lab images check` runs its own."""
    command = ["docker", "run", *UNPRIVILEGED, ref, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
