"""The tree of errors. Each class has one exit code; each error says what, where, and what to do.

| exit | class            | meaning                                                        |
|------|------------------|----------------------------------------------------------------|
| 1    | StepFailed       | steps ran and did not all succeed                              |
| 2    | UsageError       | a flag or argument is wrong (also click's own)                 |
| 3    | ConfigError      | a TOML, YAML or manifest does not fit its schema               |
| 4    | MissingError     | a file, folder, rank or package is missing                     |
| 5    | BadDataError     | an input is truncated, inconsistent or of another format       |
| 6    | EngineError      | the engine (Docker, Slurm, local processes) failed             |
| 7    | GpuError         | the requested GPUs are not present                             |
| 8    | NetworkError     | a server on the network cannot be reached, or does not answer  |
| 9    | StorageError     | disk full, folder not writable                                 |
| 10   | BusyError        | another lab process holds this run or this GPU                 |
| 70   | LabError         | anything else that lab understands                             |
| 130  | Interrupted      | stopped by Ctrl-C or SIGTERM; the run can be resumed           |
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its import takes a third of what `lab --help` takes beside click
    from pathlib import Path

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_ALIKE = 0.8  # difflib's ratio; names below it often share only an ending, such as .json
_MOST_NAMES = 10_000  # read from a folder to suggest the name that was meant


class LabError(Exception):
    """Base of every error that lab raises on purpose.

    `problem`: what happened; `location`: the file, key or step; `fix`: the next thing to do.
    """

    exit_code = 70

    def __init__(self, problem: str, *, location: str | Path | None = None, fix: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.location = str(location) if location is not None else None
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process pools; keyword arguments would be lost by the default pickling.
        return _rebuild, (type(self), self.problem, self.location, self.fix)

    def __str__(self) -> str:
        lines = [self.problem]
        if self.location:
            lines.append(f"  where: {self.location}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


def _rebuild(cls: type[LabError], problem: str, location: str | None, fix: str | None) -> LabError:
    return cls(problem, location=location, fix=fix)


class UsageError(LabError):
    exit_code = 2


class ConfigError(LabError):
    exit_code = 3


class MissingError(LabError):
    exit_code = 4


class BadDataError(LabError):
    exit_code = 5


class EngineError(LabError):
    exit_code = 6


class EngineLost(EngineError):
    """The connection to the engine was lost while a step ran; the step itself may still run."""


class GpuError(LabError):
    exit_code = 7


class NetworkError(LabError):
    exit_code = 8


class StepFailed(LabError):
    exit_code = 1


class StorageError(LabError):
    exit_code = 9


class BusyError(LabError):
    exit_code = 10


class Interrupted(LabError):
    exit_code = 130


def not_here(message: str, path: Path, fix: str = "") -> MissingError:
    """Build the error for a missing path: the message, and the names beside it that are spelled alike."""
    import difflib
    from itertools import islice

    names: list[str] = []
    base = ""
    with contextlib.suppress(OSError):  # the folder is not there either, or is not for us to read
        base = "" if path.is_absolute() else os.getcwd()
        names = [one.name for one in islice(path.parent.iterdir(), _MOST_NAMES)]
    alike = difflib.get_close_matches(path.name, names, n=3, cutoff=_ALIKE)
    meant = f"did you mean {' or '.join(repr(str(path.parent / name)) for name in alike)}?" if alike else ""
    read_from = f"the path is read from {base}" if base else ""
    return MissingError(
        message, location=path, fix="; ".join(filter(None, (meant or read_from, fix))) or None
    )


def storage_error(error: OSError, path: str | Path) -> LabError:
    """Build lab's error for an OSError from writing `path`."""
    if isinstance(error, shutil.Error):
        error = _first_of(error)
    file = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            "no space left on the disk",
            location=file,
            fix="free some space, then repeat the command with --resume: finished steps are kept",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageError(
            "not allowed to write here", location=file, fix="choose a writable folder with --output-dir"
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return StorageError(
            "a file exists where a folder is needed", location=file, fix="move it, or choose another folder"
        )
    return StorageError(f"cannot write: {error.strerror or error}", location=file)


def path_error(error: OSError) -> LabError:
    """Build lab's error for an OSError that no caller translated: a name that is too long, an unreadable
    folder, a loop of links."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return storage_error(error, str(error.filename))
    fix = "check the path, and that you may read it"
    return MissingError(f"cannot be used: {error.strerror}", location=str(error.filename), fix=fix)


def _first_of(error: shutil.Error) -> OSError:
    """Take the first of the errors that shutil.copytree collects as texts while it goes on."""
    failed = error.args[0] if error.args and isinstance(error.args[0], list) else []
    text = str(failed[0][-1]) if failed else str(error)
    number = re.match(r"\[Errno (\d+)\] ", text)
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(text)


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Wrap every write of lab, so that a full disk gives the same error everywhere."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def not_installed(package: str, extra: str) -> MissingError:
    """Build the error for a missing package of an extra: the command that installs it."""
    return MissingError(
        f"the Python package {package!r} is not installed here", fix=f"pip install 'lab[{extra}]'"
    )


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn a missing optional package into the command that installs it; analyses load numpy frugally."""
    try:
        with _no_collection(), one_blas_thread() if extra == "analysis" else contextlib.nullcontext():
            yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "lab":
            raise
        raise not_installed(str(error.name), extra) from error


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Pause garbage collection: imports leave no garbage, and looking for it costs a report 5 ms."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let numpy, imported inside, start one OpenBLAS thread; one per CPU takes 50 ms and more.

    The variable is restored, so that steps which this process starts do not inherit it.
    """
    previous = os.environ.get(BLAS_THREADS)
    os.environ.setdefault(BLAS_THREADS, "1")
    try:
        yield
    finally:
        if previous is None:
            os.environ.pop(BLAS_THREADS, None)
