"""The settings of the trials room: a command, its cells, and what a failure is."""

from __future__ import annotations

from typing import Annotated

import msgspec

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
