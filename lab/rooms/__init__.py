"""The rooms: one question each. A new one is a folder beside this file and an entry in `lab.cli.registry`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from lab.core.plan import Findings
from lab.core.run import Run
from lab.errors import MissingError, UsageError


class Room(Protocol):
    """What `lab.rooms.<name>` offers."""

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


def room_of(folder: Path) -> Room:
    """The room whose recordings `folder` holds, for a folder that lab did not make.

    Raises MissingError where none recognises it, UsageError where several do.
    """
    if not folder.is_dir():
        raise MissingError(
            "no such folder" if not folder.exists() else "this is a file, not a folder", where=folder
        )
    found = [name for name in names() if room(name).recognises(folder)]
    if len(found) > 1:
        raise UsageError(
            f"this folder holds recordings of several rooms: {', '.join(found)}",
            where=folder,
            fix="name the folder of one of them",
        )
    if found:
        return room(found[0])
    raise MissingError(
        "no room recognises what lies in this folder",
        where=folder,
        fix="a sweep looks like {T}thread/nccl_{C}channels/torch_profiler/rank{r}/*.json[.gz]; for other "
        "rooms see docs/nan.md, docs/nsys.md and docs/kernels.md; "
        "one file: `lab nan parse`, `lab nsys summary`, `lab kernels unique`",
    )
