"""The settings of a run and the rows of its trials, as files. Nothing here imports torch or numpy."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from lab.core.files import read_json, write_atomic
from lab.core.run import Run
from lab.core.step import Step
from lab.errors import LabError
from lab.rooms.trials.config import NOT_RUN, RESULT, Trial, TrialsConfig


def read_settings(path: Path) -> TrialsConfig:
    """Raises MissingError, BadDataError."""
    return read_json(path, TrialsConfig, "the settings of a trials run")


def write_trial(folder: Path, row: Trial) -> None:
    write_atomic(folder / RESULT, msgspec.json.format(msgspec.json.encode(row), indent=1) + b"\n")


def read_trials(steps: Path) -> list[Trial]:
    """The rows so far. One that cannot be read is for the analysis to name, and ends no trial after it."""
    rows = []
    for folder in sorted(steps.iterdir()) if steps.is_dir() else ():
        with contextlib.suppress(LabError):
            if (row := read_trial(folder)) is not None:
                rows.append(row)
    return rows


def ended_rows(run: Run) -> list[Trial]:
    """The rows that count, and one without a result for each trial that needs none, or was lost.

    The row of a trial whose driver was killed before it knew does not count: that trial runs again.
    """
    ended = {
        record.step.name: (record.step, record.outcome)
        for record in run.manifest.steps
        if record.outcome is not None
    }
    rows = [row for row in read_trials(run.root / "steps") if row.step in ended and ended[row.step][1].ok]
    lost = [ended[name][0] for name in sorted(ended.keys() - {row.step for row in rows})]
    return rows + [row_of(step, NOT_RUN) for step in lost]


def row_of(step: Step, verdict: str) -> Trial:
    """The row of a trial that left none itself."""
    cell, trial, order, seed = (step.labels[name] for name in ("cell", "trial", "order", "seed"))
    return Trial(
        cell=str(cell), trial=int(trial), order=int(order), seed=int(seed), verdict=verdict, step=step.name
    )


def read_trial(folder: Path) -> Trial | None:
    """The row in a step's folder; None where it has none. Raises BadDataError."""
    path = folder / RESULT
    return read_json(path, Trial, "the row of a trial") if path.is_file() else None
