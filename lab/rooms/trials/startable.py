"""Refuse a command that cannot start, before its first trial. Looks at files and starts nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.errors import MissingError, not_here

PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?\Z")
PER_TRIAL = re.compile(r"\{(seed|trial)\}")  # a word with one of these is another file in every trial


def refuse_missing(words: Sequence[str], env: Mapping[str, str], cwd: Path, cell: str = "") -> None:
    """Raises MissingError where the program, or the script right behind `python`, is not there."""
    of_cell = f" of cell {cell!r}" if cell else ""
    if not cwd.is_dir():
        raise MissingError("the folder in which the command runs is not there", location=cwd)
    program, *arguments = words
    if PER_TRIAL.search(program):
        return
    path = env.get("PATH") or os.defpath
    folders = os.pathsep.join(str(cwd / folder) for folder in path.split(os.pathsep))
    if shutil.which(str(cwd / program) if "/" in program else program, path=folders) is None:
        raise MissingError(
            f"the command{of_cell} cannot start: no program {program!r} that may be executed",
            location=program if "/" in program else f"PATH={path}",
            fix="check the name, give its path, or make it executable (chmod +x)",
        )
    script = arguments[0] if arguments and PYTHON.match(Path(program).name) else "-"
    if not (script.startswith("-") or PER_TRIAL.search(script) or (cwd / script).exists()):
        raise not_here(
            f"the script{of_cell} is not there", Path(script) if cwd == Path.cwd() else cwd / script
        )
