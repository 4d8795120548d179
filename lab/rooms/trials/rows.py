"""The settings of a run and the rows of its trials, as files. Nothing here imports torch or numpy."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.core.run import Run
from lab.errors import BadDataError
from lab.rooms.trials.config import CONFIG, RESULT, Trial, TrialsConfig


def read_settings(path: Path) -> TrialsConfig:
    """Raises BadDataError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrialsConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"not the settings of a trials run: {error}", where=path) from error


def settings_of(run: Run) -> TrialsConfig:
    """A run's settings. Raises BadDataError where they are not those that it began with.

    Trials judged in two ways are no rate, and every trial reads the file again.
    """
    path = run.root / CONFIG
    config = read_settings(path)
    try:
        began = msgspec.convert(run.manifest.config, TrialsConfig)
    except msgspec.ValidationError as error:
        raise BadDataError(f"the manifest has no settings of trials: {error}", where=run.root) from error
    if config != began:
        names = [name for name in config.__struct_fields__ if getattr(config, name) != getattr(began, name)]
        raise BadDataError(
            f"the settings were changed after the run began: {', '.join(names)}",
            where=path,
            fix="start a new run; the old settings are `config` in manifest.json",
        )
    return config


def write_trial(folder: Path, row: Trial) -> None:
    write_atomic(folder / RESULT, msgspec.json.format(msgspec.json.encode(row), indent=1) + b"\n")


def read_trials(steps: Path) -> list[Trial]:
    """The rows so far. One that cannot be read is for the analysis to tell, and ends no trial after it."""
    rows = []
    for path in sorted(steps.iterdir()) if steps.is_dir() else ():
        with contextlib.suppress(BadDataError):
            if (row := read_trial(path)) is not None:
                rows.append(row)
    return rows


def ended_rows(run: Run) -> list[Trial]:
    """The rows that count: those of a trial whose driver was killed before it knew run again."""
    known = {r.step.name for r in run.manifest.steps if r.outcome is not None and r.outcome.ok}
    return [row for row in read_trials(run.root / "steps") if row.step in known]


def read_trial(folder: Path) -> Trial | None:
    """The row in a step's folder; None where it has none. Raises BadDataError."""
    path = folder / RESULT
    try:
        return msgspec.json.decode(path.read_bytes(), type=Trial)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"not the row of a trial: {error}", where=path) from error
