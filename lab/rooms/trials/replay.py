"""The settings of a replay, and its steps: one per run of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lab.core.files import read_json
from lab.core.plan import Plan, Site
from lab.core.step import SOURCE, Step
from lab.rooms.trials.config import plan_of
from lab.workload.recorder.format import OF_STEPS

CONFIG = "replay.json"
WORKLOAD = "lab.rooms.trials.workload.replay.main"
SETTINGS = "LAB_REPLAY"  # OUT|STEPS|REPEATS|LEVEL|LEAVE
START = "lab.rooms.trials.workload.replay.training:start_from_env"


class ReplayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`runs` processes of the command, each recording `steps` steps with `repeats` repeats of each."""

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    runs: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    steps: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 3
    repeats: Annotated[int, msgspec.Meta(ge=0, le=99)] = 2
    level: Literal["op", "module"] = "op"
    to_the_end: bool = False
    cwd: str | None = None  # where the command runs, in an image mounted read-only; None: the run folder
    in_image: bool = False


def read_replay(path: Path) -> ReplayConfig:
    """Raises MissingError, BadDataError."""
    return read_json(path, ReplayConfig, "the settings of a replay")


def plan(config: ReplayConfig, site: Site) -> Plan:
    """Every run gets all GPUs that were picked, one run after the other. Pure."""
    notes = []
    if config.runs == 1:
        notes.append("one run: steps are repeated inside it, and nothing says whether a second run agrees")
    if config.level == "module":
        notes.append("--level module: modules are named, operators are not")
    return plan_of(config, CONFIG, (_step(config, n, len(site.gpus)) for n in range(config.runs)), notes)


def _step(config: ReplayConfig, number: int, num_gpus: int) -> Step:
    name = f"run-{number}"
    folder = f"steps/{name}"
    cwd = SOURCE if config.cwd and config.in_image else config.cwd
    in_folder = ("--cwd", cwd) if cwd else ()
    return Step(
        name=name,
        source=config.cwd if config.in_image else None,
        folder=folder,
        num_gpus=num_gpus,
        argv=("python", "-m", WORKLOAD, "--config", CONFIG, "--out", folder, *in_folder),
        expects=(f"{folder}/{OF_STEPS}",),
        labels={"run": number},
    )
