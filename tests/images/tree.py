"""A copy of what an image is built from."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_tree(source: Path, to: Path) -> None:
    """What an image is built from, so that edits meanwhile do not matter."""
    for name in ("lab", "images", "docker"):
        shutil.copytree(source / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".dockerignore"):
        shutil.copy(source / name, to)
    (to / "scripts").mkdir()
    shutil.copy(source / "scripts" / "hatch_build.py", to / "scripts")
