"""A copy of what an image is built from."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

from tests.conftest import ROOT


def copy_tree(source: Path, to: Path) -> None:
    """What an image is built from, so that edits meanwhile do not matter."""
    for name in ("lab", "images", "docker"):
        shutil.copytree(source / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".dockerignore"):
        shutil.copy(source / name, to)
    (to / "scripts").mkdir()
    shutil.copy(source / "scripts" / "hatch_build.py", to / "scripts")


def script(name: str) -> ModuleType:
    """scripts/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(f"lab_script_{name}", ROOT / f"scripts/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
