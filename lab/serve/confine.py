"""Turn a name from outside into a file of one folder: no way out, no link, nothing hidden."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from lab.errors import MissingError

NOT_HERE = "no such file in this run"


def inside(folder: Path, name: str) -> Path:
    """The path of `name` below `folder`. Raises MissingError for a name that leaves it, is hidden, or a link.

    The error is always the same: a stranger learns nothing about other folders.
    """
    pure = PurePosixPath(*_parts(name))
    path = folder / pure
    try:
        same = path.resolve(strict=True) == folder.resolve() / pure
    except (OSError, RuntimeError, ValueError) as error:
        raise MissingError(NOT_HERE, location=printable_name(name)) from error
    if not same or not (path.is_file() or path.is_dir()):
        raise MissingError(NOT_HERE, location=printable_name(name))
    return path


def recording_inside(folder: Path, name: str) -> Path:
    """A file, or a folder of files in which no link leads elsewhere. Raises MissingError as `inside` does."""
    path = inside(folder, name)
    if path.is_dir():
        for parent, folders, files in os.walk(path):
            if any(os.path.islink(os.path.join(parent, name)) for name in (*folders, *files)):
                raise MissingError(NOT_HERE, location=printable_name(name))
    return path


def opened(folder: Path, name: str) -> BinaryIO:
    """A regular file below `folder`, open for reading. Raises MissingError for everything else.

    Folder by folder without following a link, so that nothing can be exchanged between a check and its use.
    """
    parts = _parts(name)
    try:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                below = os.open(
                    part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent
                )
                os.close(parent)
                parent = below
            # A pipe must not block.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(parts[-1], flags, dir_fd=parent)
        finally:
            os.close(parent)
    except (OSError, ValueError) as error:
        raise MissingError(NOT_HERE, location=printable_name(name)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise MissingError(NOT_HERE, location=printable_name(name))
    return os.fdopen(handle, "rb")


def _parts(name: str) -> tuple[str, ...]:
    """The parts of a name that stays below its folder. Raises MissingError for any other."""
    pure = PurePosixPath(name)
    bad = not name or "\0" in name or "\\" in name or pure.is_absolute() or ".." in pure.parts
    if bad or not pure.parts or any(part.startswith(".") for part in pure.parts):
        raise MissingError(NOT_HERE, location=printable_name(name))
    return pure.parts


def printable_name(name: str) -> str:
    return ascii(name[:200])
