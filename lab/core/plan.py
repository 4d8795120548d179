"""What a room decides before anything runs, and what its analysis returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from lab.core.gpu import Gpu
from lab.core.options import Options
from lab.core.step import Outcome, Step
from lab.hub import ModelNeed


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where steps will run, as far as a plan needs to know."""

    vendor: str  # "nvidia" | "amd" | "none"
    gpus: tuple[Gpu, ...] = ()
    resolved: bool = True  # False: the GPUs are placeholders, because they are not in this machine
    notes: tuple[str, ...] = ()  # on GPUs that are in this machine and are left out


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a room wants to run. Nothing has run yet."""

    steps: tuple[Step, ...]
    inputs: dict[str, str] = {}  # file name in the run folder -> text
    config: dict[str, Any] = {}
    skipped: dict[str, str] = {}  # step name -> why it need not or cannot run
    notes: tuple[str, ...] = ()
    models: tuple[ModelNeed, ...] = ()  # the driver says of each whether the cache has it


class Findings(msgspec.Struct, frozen=True):
    """What an analysis returns; a room that finds more has a class of its own below this one.

    lacking says what was asked for and could not be analysed completely, incomplete what the recordings lack,
    one sentence each; answer joins the JSON on stdout.
    """

    verdict: list[str]
    status: Literal["ok", "warn", "fail"]
    files: list[Path]
    terminal: str
    lacking: list[str] = []
    incomplete: list[str] = []
    answer: dict[str, Any] = {}


class Watcher:
    """Sees each step begin, print and end: the terminal, a room's own journal."""

    def begin(self, step: Step) -> None: ...
    def line(self, step: Step, line: str) -> None: ...
    def end(self, step: Step, outcome: Outcome) -> None: ...


Silent = Watcher  # of a room without a journal: each step leaves its result when it ends


class Experiment(msgspec.Struct, frozen=True):
    """What a room's command under `lab run` returns, for the driver to plan and run."""

    room: str
    make_plan: Callable[[Site, Path], Plan]  # of the site and the run folder
    options: Options
    on_success: Callable[[Path], None] | None = None  # called with the run folder if all of it succeeds
    settle: Callable[[Site], Site] | None = None  # which of the site's GPUs the experiment can use
