"""The settings of the trials room, and the rows of its trials, as files. No torch or numpy here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from lab.core.files import read_json, write_atomic
from lab.core.plan import Plan
from lab.core.run import Run
from lab.core.step import Step
from lab.errors import LabError
from lab.rooms.trials.sprt import Until

CONFIG = "trials.json"
RESULT = "trial.json"
JUDGED = ("pass", "fail")  # the verdicts that count in a rate; an error counts in none
DECIDED = "decided before"  # why a trial need not run
LEFT = "although it left processes running, which were ended with it"
NOT_RUN = "not run"  # planned, and either the question was decided before or the run ended
# The threshold of ROCm/aorta's matrix of mitigations.
RATIO = 1.15  # a cell slower than the baseline by more is not told apart from slowness
ALPHA = 0.05


class Cell(msgspec.Struct, frozen=True, kw_only=True):  # unknown fields: runs of earlier versions have some
    """One way to run the command: its variables and arguments on top of the baseline's.

    settings: torch's own, switched in every Python process of the command that imports torch. read_by:
    regular expressions on libraries' names, one of which must be loaded if the variables change anything.
    """

    name: str
    env: dict[str, str] = {}
    args: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    read_by: tuple[str, ...] = ()
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None  # of its first trial, instead of the run's
    gpu: str | None = None  # number or UUID of the one GPU it runs on
    node: str | None = None  # Slurm's name of the host it runs on
    image: str | None = None  # the image it runs in, instead of the run's


class TrialsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of the room; `trials` per cell."""

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    cells: Annotated[tuple[Cell, ...], msgspec.Meta(min_length=1)]
    baseline: str
    trials: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    fail: str
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    same_seed: bool = False  # every trial gets `seed`: a replay of one trial
    cwd: str | None = None  # where the command runs, in an image mounted read-only; None: the run folder
    image: str | None = None  # of cells that name none; None: they run in the caller's environment
    step_time: str | None = None  # a number in the output: the time of one step
    stop: bool = False  # end a cell as soon as it is decided
    until: Until | None = None
    trial_timeout_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    num_gpus: Annotated[int, msgspec.Meta(ge=0)] = 1


def seed_of(config: TrialsConfig, trial: int, cell: Cell) -> int:
    """Trials of one block share a seed, so that cells meet the same draws; unless a cell has its own."""
    first_seed = config.seed if cell.seed is None else cell.seed
    return first_seed if config.same_seed else first_seed + trial


def words_of(config: TrialsConfig, cell: Cell, trial: int) -> list[str]:
    """The words to start, with {seed}, {trial} and {cell} filled in."""
    values = {"{seed}": str(seed_of(config, trial, cell)), "{trial}": str(trial), "{cell}": cell.name}
    words = [*config.command, *cell.args]
    for mark, value in values.items():
        words = [word.replace(mark, value) for word in words]
    return words


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One trial as its row; `trial` counts within the cell and names the block."""

    cell: str
    trial: int
    verdict: str
    reason: str = ""
    order: int | None = None
    seed: int | None = None
    exit_code: int | None = None
    seconds: float | None = None
    step_time: float | None = None  # median of what the output said
    started_utc: str = ""
    host: str = ""
    gpus: str = ""
    image: str = ""  # by its name; "": no image
    temperature_c: float | None = None  # the highest while it ran
    sm_clock_mhz: float | None = None  # the median while it ran
    throttled: bool | None = None  # a GPU was slowed by heat or power at some time
    attempts: int = 1  # starts of this trial: a job that Slurm requeued, or a run that was resumed
    effect: str = ""  # "yes"; why its cell's settings had none; "" is not known
    judged: str = ""  # a hash of the numbers that were judged; "": none were
    first_bad_line: int | None = None
    step: str = ""
    log: str = ""


def plan_of(config: msgspec.Struct, file: str, steps: Iterable[Step], notes: Iterable[str]) -> Plan:
    """A plan whose steps read `config` from `file`."""
    text = msgspec.json.format(msgspec.json.encode(config), indent=1).decode() + "\n"
    inputs = {file: text}
    return Plan(steps=tuple(steps), inputs=inputs, config=msgspec.to_builtins(config), notes=tuple(notes))


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
