"""Where a run's folder is, and where it may be."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from lab.core import manifest as manifests
from lab.core.manifest import MANIFEST, Manifest
from lab.errors import LabError, UsageError


def is_run(root: Path) -> bool:
    return (root / MANIFEST).exists()


def check_place(root: Path) -> None:
    """Refuse a folder that cannot be a run's own, before anything is written to it."""
    problem, fix = "", "choose another --output-dir, such as experiments/NAME"
    text = str(root).encode(errors="backslashreplace").decode()
    if is_run(root):
        problem = "this folder already holds a run"
        fix = f"continue it with `lab run --resume {root}` or {fix}"
    elif text != str(root):
        problem = "the name of the run folder is not UTF-8"
    elif ":" in str(root.absolute()):  # ends an entry of PYTHONPATH
        problem = "the run folder's path holds a colon, and the steps could not import the run's copy of lab"
    elif holds_home(root.resolve()):
        problem = "a run gets a folder of its own, not the root folder or a whole home"
    elif root.is_dir() and any(root.iterdir()):
        problem = "this folder holds files that no run of lab made"
    if problem:
        raise UsageError(problem, location=text, fix=fix)


def holds_home(real: Path) -> bool:
    """Whether this is the root folder, the caller's home, or a folder that the home lies in."""
    home = Path(os.path.expanduser("~")).resolve()
    return real == Path("/") or real == home or real in home.parents


def new_root(room: str, parent: Path, started: datetime | None = None) -> Path:
    """experiments/<room>_<YYYYMMDD_HHMMSS>, with a suffix when two start in one second."""
    stamp = (started or datetime.now()).strftime("%Y%m%d_%H%M%S")
    names = [f"{room}_{stamp}", *(f"{room}_{stamp}_{number}" for number in range(2, 100))]
    return parent / next((name for name in names if not (parent / name).exists()), names[-1])


def list_runs(parent: Path) -> list[tuple[Path, Manifest | LabError]]:
    """All runs under `parent`, oldest first; one that cannot be read is listed with its error."""
    runs: list[tuple[Path, Manifest | LabError]] = []
    for path in sorted(parent.glob(f"*/{MANIFEST}")):
        try:
            runs.append((path.parent, manifests.load(path)))
        except LabError as error:
            runs.append((path.parent, error))
    return runs


def home_of(folder: Path) -> Path:
    """Where an analysis goes by default: into a run, but never into a recording that lab did not make."""
    if is_run(folder):
        return folder
    return Path("experiments") / f"{folder.resolve().name}_analysis"
