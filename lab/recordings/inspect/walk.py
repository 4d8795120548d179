"""From arguments to the things to look at: files, folders that are one recording, runs of lab."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.core.run import Run
from lab.errors import LabError, not_here
from lab.recordings.load import format_of

_XPLANE = ".xplane.pb"


@dataclass(frozen=True)
class Item:
    """named: given by the user, so that it must be something; run: a folder that lab made."""

    path: Path
    named: bool
    run: bool = False


def items_of(paths: Sequence[Path]) -> Iterator[Item]:
    """Each path once, in the given order; folders in the order of their names. Links to folders are not
    followed. Raises MissingError for a path that is not there."""
    for path in paths:
        if not path.exists():
            raise not_here("no such file or folder", path)
    resolved: set[Path] = set()
    for path in paths:
        for item in _below(path):
            if (real := item.path.resolve()) not in resolved:
                resolved.add(real)
                yield item


def _below(path: Path) -> Iterator[Item]:
    if not path.is_dir():
        yield Item(path, named=True)
        return
    if is_recording(path):
        yield Item(path, named=True)
        return
    for folder, folders, files in os.walk(path):
        parent = Path(folder)
        if parent != path and is_recording(parent):
            folders.clear()
            yield Item(parent, named=False)
            continue
        if Run.is_run(parent):
            yield Item(parent, named=False, run=True)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        # JAX writes an extract of each XPlane file beside it.
        spaces = (name.removesuffix(_XPLANE) for name in files if name.endswith(_XPLANE))
        extracts = {f"{host}.trace.json.gz" for host in spaces}
        for name in sorted(set(files) - extracts):
            if not name.startswith(".") and (parent / name).is_file():
                yield Item(parent / name, named=False)


def is_recording(folder: Path) -> bool:
    """Whether the folder as a whole is one recording: an export of nsys to Parquet, the files of one job.

    A folder that holds anything else beside them is walked: nothing in it may be passed over.
    """
    try:
        inside = [one for one in folder.iterdir() if not one.name.startswith(".")]
    except OSError:
        return False
    kinds = {one.name.removesuffix(".gz").rpartition(".")[2] for one in inside}
    if len(kinds) != 1 or not all(one.is_file() for one in inside):
        return False
    if len(inside) == 1 and kinds != {"parquet"}:
        return False
    try:
        format_of(folder)
    except LabError:
        return False
    return True
