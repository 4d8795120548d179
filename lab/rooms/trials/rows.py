"""The settings of a run and the rows of its trials, as files. Nothing here imports torch or numpy."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.errors import BadDataError
from lab.rooms.trials.config import RESULT, Trial, TrialsConfig


def read_settings(path: Path) -> TrialsConfig:
    """Raises BadDataError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrialsConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"not the settings of a trials run: {error}", where=path) from error


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


def read_trial(folder: Path) -> Trial | None:
    """The row in a step's folder; None where it has none. Raises BadDataError."""
    path = folder / RESULT
    try:
        return msgspec.json.decode(path.read_bytes(), type=Trial)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"not the row of a trial: {error}", where=path) from error
