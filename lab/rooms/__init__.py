"""The rooms: one question each. A new one is a folder beside this file and an entry in `lab.cli.registry`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from lab.errors import MissingError, UsageError, not_here

if TYPE_CHECKING:  # a hook in a program that knows nothing of lab comes through here, without lab's packages
    from lab.core.plan import Findings
    from lab.core.run import Run


class Room(Protocol):
    """What `lab.rooms.<name>` offers.

    Some also have `reads` (recordings of any kind) or `spare`: of a run, why a step is not needed any more.
    """

    def recognises(self, folder: Path) -> bool: ...
    def analyse(
        self, folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]
    ) -> Findings: ...
    def watcher(self, run: Run) -> Any: ...


def names() -> list[str]:
    """The rooms that are here: the folders beside this file."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def room(name: str) -> Room:
    """Raises MissingError for a room that this lab does not have."""
    if name not in names():
        raise MissingError(f"this lab has no room {name!r}", fix=f"its rooms: {', '.join(names())}")
    return cast(Room, importlib.import_module(f"lab.rooms.{name}"))


def room_of(path: Path) -> Room:
    """The room that analyses a recording, or a folder of some, that lab did not make.

    A room that knows the layout of a folder comes first, then the one that reads recordings of any kind.
    Raises MissingError where none does, BadDataError for a file that is not a recording, UsageError where
    several know the layout.
    """
    if not path.exists():
        raise not_here("no such file or folder", path)
    room_names = [name for name in names() if path.is_dir() and room(name).recognises(path)]
    if len(room_names) > 1:
        raise UsageError(
            f"this folder holds recordings of several rooms: {', '.join(room_names)}",
            location=path,
            fix="name the folder of one of them",
        )
    room_names = room_names or [name for name in names() if _reads(room(name), path)]
    if room_names:
        return room(room_names[0])
    if path.is_file():
        from lab.recordings.load import format_of

        format_of(path)  # says what it is instead, and what to do
    raise MissingError(
        "no room recognises what lies in this folder" if path.is_dir() else "not a recording that lab reads",
        location=path,
        fix="a sweep looks like {T}thread/nccl_{C}channels/torch_profiler/rank{r}/*.json[.gz]; for other "
        "rooms see docs/nan.md, docs/nsys.md and docs/kernels.md; recordings are traces of torch.profiler, "
        "exports of nsys, databases and traces of rocprofv3; a nixnan log: `lab nan parse`",
    )


def _reads(candidate: Room, path: Path) -> bool:
    """Only a room for recordings of any kind has `reads`."""
    reads: Callable[[Path], bool] | None = getattr(candidate, "reads", None)
    return reads is not None and reads(path)
