"""The settings of a run and the rows of its trials, as files. Nothing here imports torch or numpy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.core.manifest import StepRecord
from lab.core.run import Run
from lab.core.step import Step
from lab.errors import BadDataError
from lab.rooms.trials.config import CONFIG, NOT_RUN, RESULT, Trial, TrialsConfig


def read_settings(path: Path) -> TrialsConfig:
    """Raises BadDataError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrialsConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"not the settings of a trials run: {error}", location=path) from error


def settings_of(run: Run) -> TrialsConfig:
    """A run's settings. Raises BadDataError where they are not those that it began with.

    Trials judged in two ways are no rate, and every trial reads the file again.
    """
    path = run.root / CONFIG
    config = read_settings(path)
    try:
        began = msgspec.convert(run.manifest.config, TrialsConfig)
    except msgspec.ValidationError as error:
        raise BadDataError(f"the manifest has no settings of trials: {error}", location=run.root) from error
    if config != began:
        names = [name for name in config.__struct_fields__ if getattr(config, name) != getattr(began, name)]
        raise BadDataError(
            f"the settings were changed after the run began: {', '.join(names)}",
            location=path,
            fix="start a new run; the old settings are `config` in manifest.json",
        )
    return config


def write_trial(folder: Path, row: Trial) -> None:
    write_atomic(folder / RESULT, msgspec.json.format(msgspec.json.encode(row), indent=1) + b"\n")


def read_trials(steps: Path) -> list[Trial]:
    """The rows so far. One that cannot be read is for the analysis to tell, and ends no trial after it."""
    return _readable(sorted(steps.iterdir()) if steps.is_dir() else ())


def _readable(folders: Iterable[Path]) -> list[Trial]:
    rows = []
    for folder in folders:
        with contextlib.suppress(BadDataError):  # for the analysis to tell
            if (row := read_trial(folder)) is not None:
                rows.append(row)
    return rows


def ended_rows(run: Run) -> list[Trial]:
    """The rows that count, and one without a result for each trial that needs none, or was lost.

    The row of a trial whose driver was killed before it knew does not count: that trial runs again.
    """
    ended = {record.step.name: record for record in run.manifest.steps if record.outcome is not None}
    rows = [row for row in read_trials(run.root / "steps") if row.step in ended and _is_ok(ended[row.step])]
    left = ended.keys() - {row.step for row in rows}
    return rows + [_without_result(ended[name].step) for name in sorted(left)]


def rows_of_cell(run: Run, cell: str) -> list[Trial]:
    """The rows of one cell's trials that have ended."""
    records = (step for step in run.manifest.steps if step.step.labels["cell"] == cell and _is_ok(step))
    return _readable(run.folder(record.step) for record in records)


def _is_ok(record: StepRecord) -> bool:
    return record.outcome is not None and record.outcome.ok


def _without_result(step: Step) -> Trial:
    cell, trial = str(step.labels["cell"]), int(step.labels["trial"])
    return Trial(cell=cell, trial=trial, verdict=NOT_RUN, step=step.name)


def read_trial(folder: Path) -> Trial | None:
    """The row in a step's folder; None where it has none. Raises BadDataError."""
    path = folder / RESULT
    try:
        return msgspec.json.decode(path.read_bytes(), type=Trial)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"not the row of a trial: {error}", location=path) from error
