"""`--capture FILE|FOLDER`: the recordings beside a replay that hold its operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lab.core.words import plural
from lab.errors import BadDataError, LabError, MissingError, not_here
from lab.recordings.capture import Capture
from lab.recordings.graphs.frames import Frames, read_frames
from lab.recordings.pieces import read_whole

DETAILS = "execution_details.json"
_DETAILS_BYTES = 16 << 20
MAX_FILES = 512
_SUFFIXES = (".json", ".json.gz")
_BATCH = re.compile(r"(?:^|_)bs_(\d{1,9})_")


@dataclass(frozen=True)
class Source:
    """One recording to take operators from. batch: as execution_details.json says, None unknown.

    folder: the one it was found in, None for a file that was named itself.
    """

    path: Path
    capture: Capture
    frames: Frames | None = None
    batch: int | None = None
    rank: int | None = None
    folder: Path | None = None


class _Detail(msgspec.Struct):
    file: str
    batch_size: int | None = None


@dataclass(frozen=True)
class _File:
    path: Path
    batch: int | None = None


def load_sources(
    paths: Sequence[Path], executed: Sequence[int | None] = (None,)
) -> tuple[list[Source], list[str]]:
    """The recordings at `paths`, files or folders, and what was odd.

    executed: the batch sizes of the replays. Where every one is known and the folder says which file is of
    which batch, only those files are read that a server would have replayed: the smallest captured batch that
    is large enough.

    Raises MissingError for an absent path or a folder without recordings; BadDataError for a damaged
    execution_details.json or a recording that cannot be read.
    """
    sources: list[Source] = []
    problems: list[str] = []
    for path in paths:
        if not path.exists():
            raise not_here("no such capture", path)
        files, notes = _listed(path) if path.is_dir() else ([_File(path)], [])
        problems += notes
        folder = path if path.is_dir() else None
        sources += [_read(one, folder) for one in _needed(files, executed)]
    return sources, problems


def own_source(path: Path, capture: Capture, *, stacks: bool) -> Source:
    """The replay's own recording as a source; stacks: it holds Python calls."""
    return Source(path, capture, read_frames(path) if stacks else None)


def _listed(folder: Path) -> tuple[list[_File], list[str]]:
    details = folder / DETAILS
    if details.is_file():
        return _from_details(folder, details)
    files = sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIXES) and path.is_file())
    if not files:
        raise MissingError(
            f"this folder holds neither {DETAILS} nor a trace",
            location=folder,
            fix="name the folder that vLLM or SGLang wrote its capture traces to, or a trace",
        )
    if len(files) > MAX_FILES:
        raise BadDataError(
            f"more than {MAX_FILES} traces", location=folder, fix="name the capture's own trace"
        )
    named = [_BATCH.search(path.name) for path in files]
    return [
        _File(path, int(match[1]) if match else None) for path, match in zip(files, named, strict=True)
    ], []


def _from_details(folder: Path, details: Path) -> tuple[list[_File], list[str]]:
    text = read_whole(details, _DETAILS_BYTES)
    try:
        rows = msgspec.json.decode(text, type=list[_Detail])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadDataError(f"not a list of captures: {error}", location=details) from error
    files, absent = [], []
    for row in rows[:MAX_FILES]:
        # A listed name with a path in it could lead out of the folder.
        inside = Path(row.file).name == row.file and row.file not in ("", ".", "..")
        if inside and (folder / row.file).is_file():
            files.append(_File(folder / row.file, row.batch_size))
        else:
            absent.append(row.file)
    if not files:
        raise MissingError("none of the captures that it lists is in this folder", location=details)
    if not absent:
        return files, []
    names = ", ".join(repr(name[:80]) for name in absent[:3])
    return files, [f"{details.name}: {plural(len(absent), 'capture')} not in the folder: {names}"]


def _needed(files: list[_File], executed: Sequence[int | None]) -> list[_File]:
    batches = sorted({file.batch for file in files if file.batch is not None})
    if not batches or any(file.batch is None for file in files) or any(call is None for call in executed):
        return files
    wanted = {next((size for size in batches if size >= (call or 0)), batches[-1]) for call in executed}
    return [file for file in files if file.batch in wanted]


def _read(file: _File, folder: Path | None) -> Source:
    from lab.recordings.load import load_torch_trace  # which reads graphs' captures as well

    try:
        capture = load_torch_trace(file.path)
    except LabError as error:
        raise type(error)(
            f"the capture: {error.problem}", location=error.location or file.path, fix=error.fix
        ) from error
    frames = read_frames(file.path) if capture.meta.stacks else None
    return Source(file.path, capture, frames, file.batch, capture.meta.rank, folder)
