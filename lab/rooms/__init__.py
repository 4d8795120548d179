"""The rooms: one question each. A new room is a folder beside this file and one line in ROOMS."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from lab.core.run import Run
from lab.core.step import Step
from lab.engines.gpus import Gpu
from lab.errors import MissingError


class RoomEntry(msgspec.Struct, frozen=True):
    name: str
    question: str
    commands: dict[
        str, str
    ]  # command name -> help line; the click command is lab.rooms.<name>.cli:<command name>


ROOMS = (
    RoomEntry("sweep", "how collective settings starve GEMMs", {"sweep": "sweep channels x threads of NCCL/RCCL"}),
    RoomEntry("nan", "where NaN and Inf are born in an LLM",
              {"nan": "watch every module's outputs", "nixnan": "watch every instruction (bring nixnan.so)"}),
    RoomEntry("nsys", "what every phase of a Transformer costs the GPU", {"nsys": "profile five sizes, answer questions a to e"}),
    RoomEntry("kernels", "which kernels a model launches, and what each costs",
              {"kernels": "profile, replay and price every launch"}),
    RoomEntry("semicrf", "a semi-Markov CRF that is exact, and why others give NaN",
              {"semicrf": "train, diagnose and check a semi-Markov CRF"}),
)  # fmt: skip


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where steps will run, as far as a plan needs to know."""

    vendor: str  # "nvidia" | "amd" | "none"
    gpus: tuple[Gpu, ...] = ()
    resolved: bool = True  # False: a dry run for GPUs that are not in this machine


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a room wants run. Nothing has run yet."""

    steps: tuple[Step, ...]
    inputs: dict[str, str] = {}  # file name in the run folder -> text
    config: dict[str, Any] = {}
    skipped: dict[str, str] = {}  # step name -> why it need not or cannot run
    notes: tuple[str, ...] = ()


class Findings(Protocol):
    """What an analysis comes back with."""

    @property
    def verdict(self) -> list[str]: ...
    @property
    def status(self) -> str: ...  # "ok" | "warn" | "fail"
    @property
    def files(self) -> list[Path]: ...
    @property
    def terminal(self) -> str: ...
    @property
    def lacking(self) -> list[str]: ...  # what could not be analysed completely, in sentences


class Silent:
    """The watcher of a room that keeps no journal of its own: each step leaves its result when it ends."""

    def begin(self, *_: Any) -> None: ...
    def line(self, *_: Any) -> None: ...
    def end(self, *_: Any) -> None: ...


class Room(Protocol):
    """What `lab.rooms.<name>` offers."""

    def recognises(self, folder: Path) -> bool: ...
    def analyse(
        self, folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]
    ) -> Findings: ...
    def watcher(self, run: Run) -> Any: ...


def room(name: str) -> Room:
    if name not in {entry.name for entry in ROOMS}:
        raise MissingError(
            f"this lab has no room {name!r}", fix=f"its rooms: {', '.join(e.name for e in ROOMS)}"
        )
    return cast(Room, importlib.import_module(f"lab.rooms.{name}"))


def room_of(folder: Path) -> Room:
    """The room whose recordings `folder` holds, for a folder that lab did not make."""
    if not folder.is_dir():
        raise MissingError(
            "no such folder" if not folder.exists() else "this is a file, not a folder", where=folder
        )
    for entry in ROOMS:
        if room(entry.name).recognises(folder):
            return room(entry.name)
    raise MissingError(
        "no room recognises what lies in this folder",
        where=folder,
        fix="a sweep looks like {T}thread/nccl_{C}channels/torch_profiler/rank{r}/*.json[.gz]; what other rooms take is in "
        "docs/nan.md, docs/nsys.md and docs/kernels.md; one file: `lab nan parse`, `lab nsys summary`, `lab kernels unique`",
    )
