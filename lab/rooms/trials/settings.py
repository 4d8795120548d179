"""From flags, a MATRIX.yaml or an earlier trial to the settings of a run; what cannot be meant is refused."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.core.options import Options
from lab.engines.docker.refusals import refuse_system_folder
from lab.errors import BadDataError, ConfigError, MissingError, UsageError, not_here
from lab.rooms.trials.cells import Matrix, cell, cells_of, checked, read_matrix
from lab.rooms.trials.config import CONFIG, TrialsConfig, read_settings, read_trial
from lab.rooms.trials.failure import parse
from lab.secrets import redact, secret_values

TRIALS_UNTIL = 160  # of a sequential test, which usually ends long before
OF_MATRIX = ("fail", "step_time", "seed")  # what a flag replaces in a matrix
PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?\Z")
PER_TRIAL = re.compile(r"\{(seed|trial)\}")  # a word with one of these is another file in every trial


def settings_of(flags: dict[str, Any], image: str | None) -> TrialsConfig:
    """`image`: of the run, for cells that name none."""
    words = flags["command"]
    if flags["again"] is not None:
        return _again(flags, image)
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
        if flags["cells"] or flags["until"]:
            raise UsageError("a matrix names its own cells", fix="drop --cell and --until")
        matrix = read_matrix(Path(words[0]))
        cells = cells_of(matrix)
    else:
        if not words:
            raise UsageError("no command to try", fix="lab run trials -n 40 -- python train.py")
        matrix = Matrix(command=words)
        cells = checked([cell(flag) for flag in flags["cells"]] or [cell("none")])
    until = _until(flags, len(cells))
    flagged = {name: flags[name] for name in OF_MATRIX if flags[name] is not None}
    settings = {
        **{name: getattr(matrix, name) for name in OF_MATRIX},
        **flagged,
        "command": _words(matrix.command),
        "cells": [msgspec.to_builtins(one_cell) for one_cell in cells],
        "baseline": _baseline(flags["baseline"] or matrix.baseline, [one_cell.name for one_cell in cells]),
        "trials": flags["trials"] or (TRIALS_UNTIL if until else matrix.trials),
        "stop": flags["stop"] or matrix.stop,
        "until": until,
        "trial_timeout_s": flags["trial_timeout_s"],
        "num_gpus": flags["num_gpus"],
        "cwd": folder_of([one_cell.image for one_cell in cells], image),
        "image": image,
    }
    parse(settings["fail"])
    values = (word for one_cell in cells for word in (*one_cell.env.values(), *one_cell.args))
    refuse_secrets([*settings["command"], *values])
    try:
        return msgspec.convert(settings, TrialsConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"these settings do not fit: {error}") from error


def folder_of(of_cells: Sequence[str | None], image: str | None) -> str | None:
    """The caller's folder, in which the command runs; None: in the run folder, in the image of the run.

    Raises UsageError where images of cells cannot get it: cells would run in different folders.
    """
    folder = Path.cwd()
    if image is None and not any(of_cells):
        return str(folder)
    try:
        refuse_system_folder(folder.resolve(), "the folder of the command")
    except UsageError as error:
        if any(of_cells):
            raise UsageError(
                "the command runs in this folder, which cannot be mounted into the containers of its cells",
                location=folder,
                fix="start lab in the folder of your program, not in a home or a system folder",
            ) from error
        return None
    return str(folder.resolve())


def _again(flags: dict[str, Any], image: str | None) -> TrialsConfig:
    """One cell and one seed, as an earlier run had them, in its image unless another is named."""
    folder: Path = flags["again"]
    taken = ("cells", "baseline", "fail", "stop", "until", "was", "fixed_at", "seed", "command")
    if any(flags[name] for name in taken):
        raise UsageError(
            "--again takes command, cell and seed from the earlier run", fix="give -n alone with it"
        )
    row = read_trial(folder)
    if row is None:
        raise MissingError("no trial ended in this folder", location=folder, fix="name RUN/steps/CELL-0000")
    config = read_settings(folder.parent.parent / CONFIG)
    cells = tuple(of_run for of_run in config.cells if of_run.name == row.cell)
    if not cells or row.seed is None:
        raise BadDataError("the trial and its run do not belong together", location=folder)
    return msgspec.structs.replace(
        config,
        cells=cells,
        baseline=row.cell,
        trials=flags["trials"] or 1,
        seed=row.seed,
        same_seed=True,
        image=image or config.image,
        stop=False,
        until=None,
    )


def _until(flags: dict[str, Any], cells: int) -> dict[str, float] | None:
    was, fixed = flags["was"], flags["fixed_at"]
    if not flags["until"]:
        if was is not None or fixed is not None:
            raise UsageError("--was and --fixed-at belong to --until fixed", fix="add --until fixed")
        return None
    if was is None:
        raise UsageError("--until fixed needs the old rate of failure", fix="add --was 0.3")
    if cells > 1:
        raise UsageError("--until fixed asks about one cell", fix="name one --cell, or compare with --stop")
    if flags["stop"]:
        raise UsageError("--stop compares cells, --until asks about one", fix="drop one of them")
    fixed = was / 6 if fixed is None else fixed
    if fixed >= was:
        raise UsageError(f"--fixed-at {fixed:g} is not below --was {was:g}")
    return {"was": was, "fixed": fixed}


def _baseline(asked: str | None, names: list[str]) -> str:
    if asked is not None and asked not in names:
        raise UsageError(f"no cell {asked!r} to compare with", fix=f"one of: {', '.join(names)}")
    return asked or next((name for name in ("none", "baseline") if name in names), names[0])


def _words(command: str | tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command)) if isinstance(command, str) else command
    except ValueError as error:
        raise ConfigError(
            f"the command cannot be split into words: {error}", location=str(command)
        ) from error


def refuse_secrets(words: Sequence[str]) -> None:
    secrets = secret_values()
    if any(redact(word, secrets) != word for word in words):
        raise UsageError(
            "a secret stands in the command or in a cell, and a run keeps both on disk",
            fix="leave it in its environment variable, which every trial inherits",
        )


def refuse_commands_that_cannot_start(config: TrialsConfig, options: Options, root: Path) -> None:
    """Raises MissingError for a command that cannot start in this environment; a container's is not seen."""
    if options.engine not in (None, "local"):
        return
    for of_run in config.cells:
        if not (of_run.image or config.image):
            words = [word.replace("{cell}", of_run.name) for word in (*config.command, *of_run.args)]
            name = of_run.name if len(config.cells) > 1 else ""
            refuse_missing(words, {**os.environ, **of_run.env}, Path(config.cwd or root), name)


def refuse_missing(words: Sequence[str], env: Mapping[str, str], cwd: Path, cell_name: str = "") -> None:
    """Raises MissingError where the program, or the script right behind `python`, is not there."""
    of_cell = f" of cell {cell_name!r}" if cell_name else ""
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
