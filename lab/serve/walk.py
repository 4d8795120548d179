"""Find runs and recordings below one folder by their names, without following links."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from lab.core.findings import FINDINGS
from lab.core.run import MANIFEST
from lab.core.words import first_few, plural
from lab.errors import MissingError

MOST_FOLDERS = 50_000  # that one look visits
MOST_DEPTH = 6
MOST_RECORDINGS = 500  # outside of runs
MOST_LINKS = 5  # that are named
RECORDING = re.compile(
    r"((\.sqlite|\.rpd|\.pftrace|\.perfetto-trace|\.db)(\.gz)?|\.nsys-rep|trace[^/]*\.json(\.gz)?|\.json\.gz"
    r"|/torch_profiler/.*\.json(\.gz)?)\Z"
)
# What `lab run kernels profile` leaves beside each trace: operators and tensors, no times.
EXECUTION_TRACE = re.compile(r"/execution_trace[^/]*\Z")


class Stamp(msgspec.Struct, frozen=True):
    """A file as it was: equal stamps are equal content, because lab replaces files by a rename."""

    size: int
    mtime_ns: int
    inode: int


class RunFiles(msgspec.Struct, frozen=True):
    """A folder that holds a run or an analysis; None for a file that is not there.

    odd: names of these files that are links or anything else than a file: they are not read, and count.
    """

    folder: str
    manifest: Stamp | None
    findings: Stamp | None
    tables: Stamp | None
    odd: tuple[str, ...] = ()


class Walk(msgspec.Struct, frozen=True):
    """The folders with runs, and sentences about what was not looked at."""

    runs: tuple[RunFiles, ...]
    unseen: tuple[str, ...] = ()
    recordings: tuple[str, ...] = ()  # that belong to no run, by their names


def walk(root: Path) -> Walk:
    """Find every run below `root`, and `root` itself if it is one. Links and hidden folders are not entered.

    Only an analysis and `root` can have runs inside of them.
    """
    runs: list[RunFiles] = []
    unseen: list[str] = []
    links: list[str] = []
    real = os.path.realpath(root)
    recordings: list[str] = []
    queue: list[tuple[str, int]] = [("", 0)]
    visited = 0
    while queue:
        below, depth = queue.pop()
        folder = os.path.join(root, below) if below else str(root)
        visited += 1
        run = _run_in(folder, below)
        if run:
            runs.append(run)
            if below and run.manifest:
                continue
        try:
            folders, out, files = _inside(folder, real)
        except OSError as error:
            unseen.append(f"{below or '.'}: {error.strerror}")
            continue
        links += [_below(below, name) for name in out]
        recordings += [_below(below, name) for name in files if not run]
        if folders and depth >= MOST_DEPTH:
            unseen.append(f"{below}: folders deeper than {MOST_DEPTH} levels")
            continue
        queue += [(_below(below, name), depth + 1) for name in folders]
        if visited + len(queue) > MOST_FOLDERS:
            unseen.append(f"more than {MOST_FOLDERS:,} folders: name a folder closer to the runs")
            break
    if links:
        unseen.append(
            f"{plural(len(links), 'link')} out of this folder: {first_few(sorted(links), MOST_LINKS)}"
        )
    named = tuple(name for name in sorted(recordings)[:MOST_RECORDINGS] if is_text(name))
    if odd := sum(not is_text(name) for name in recordings):
        unseen.append(f"{plural(odd, 'recording')} with a name that is not UTF-8")
    if len(recordings) > MOST_RECORDINGS:
        unseen.append(f"{len(recordings):,} recordings outside of runs: {MOST_RECORDINGS} are listed")
    return Walk(tuple(sorted(runs, key=lambda run: run.folder)), tuple(unseen), named)


def _inside(folder: str, real: str) -> tuple[list[str], list[str], list[str]]:
    """Folders, links that lead out of `real`, and files named as recordings. Raises OSError."""
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
        return (
            [entry.name for entry in shown if entry.is_dir(follow_symlinks=False)],
            [entry.name for entry in shown if entry.is_symlink() and _leads_out(entry.path, real)],
            [
                entry.name
                for entry in shown
                if is_recording(entry.name) and entry.is_file(follow_symlinks=False)
            ],
        )


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def is_recording(name: str) -> bool:
    """Whether a file's name is one that profilers give; its content decides when it is opened."""
    return RECORDING.search(f"/{name}") is not None and not EXECUTION_TRACE.search(f"/{name}")


def group_of(name: str) -> str:
    """The folder above the ranks: `256thread/nccl_28channels` of `…/torch_profiler/rank0/trace.json`."""
    parts = name.split("/")
    ranked = (
        index for index, part in enumerate(parts[:-1]) if part.startswith("rank") or part == "torch_profiler"
    )
    return "/".join(parts[: next(ranked, len(parts) - 1)]) or "."


def by_step(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Recordings of one step together: the folder above the ranks, and its files."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(group_of(name), []).append(name)
    return list(groups.items())


def of_ranks(names: Sequence[str]) -> bool:
    """Whether recordings are named as ranks of one job."""
    return len(names) > 1 and all(any(part.startswith("rank") for part in name.split("/")) for name in names)


def folders_of_several(names: set[str]) -> set[str]:
    """The folders that hold more than one of these files."""
    folders = [name.rsplit("/", 1)[0] for name in names if "/" in name]
    return {folder for folder in folders if folders.count(folder) > 1}


def recordings_below(run: Path) -> dict[str, list[Path]]:
    """The recordings of a run by the step's folder they belong to; a recording itself is one of its own."""
    if run.is_file():
        return {run.name.split(".", 1)[0] or run.name: [run]}
    groups: dict[str, list[Path]] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/"))
        if not hidden and is_recording(name) and path.is_file() and not path.is_symlink():
            groups.setdefault(group_of(name), []).append(path)
    return groups


def is_text(name: str) -> bool:
    """Whether a file's name is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _run_in(folder: str, below: str) -> RunFiles | None:
    manifest, findings = stamp(os.path.join(folder, MANIFEST)), stamp(os.path.join(folder, FINDINGS))
    odd = tuple(
        name
        for name, file in ((MANIFEST, manifest), (FINDINGS, findings))
        if file is None and os.path.lexists(os.path.join(folder, name))
    )
    if manifest is None and findings is None and not odd:
        return None
    return RunFiles(below, manifest, findings, stamp(os.path.join(folder, "tables"), folder=True), odd)


def _leads_out(link: str, real: str) -> bool:
    """Whether a link leads to a folder that is not below `real`, which is seen anyway."""
    return os.path.isdir(link) and os.path.commonpath([os.path.realpath(link), real]) != real


def stamp(path: str | Path, *, folder: bool = False) -> Stamp | None:
    """A regular file's (or folder's) stamp; None for a link, anything else, and what is not there."""
    try:
        state = os.lstat(path)
    except (OSError, ValueError):
        return None
    wanted = stat.S_ISDIR if folder else stat.S_ISREG
    return Stamp(state.st_size, state.st_mtime_ns, state.st_ino) if wanted(state.st_mode) else None


# Turn a name from outside into a file of one folder: no way out, no link, nothing hidden.

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
