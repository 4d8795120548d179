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
    folder: Path | None = None


class _Detail(msgspec.Struct):
    file: str
    batch_size: int | None = None


_Files = dict[Path, int | None]  # each with its batch, None unknown


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
        folder = path if path.is_dir() else None
        files, notes = _listed(folder) if folder else ({path: None}, [])
        problems += notes
        sources += [_read(file, batch, folder) for file, batch in _needed(files, executed).items()]
    return sources, problems


def _listed(folder: Path) -> tuple[_Files, list[str]]:
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
    return {path: int(match[1]) if (match := _BATCH.search(path.name)) else None for path in files}, []


def _from_details(folder: Path, details: Path) -> tuple[_Files, list[str]]:
    text = read_whole(details, _DETAILS_BYTES)
    try:
        rows = msgspec.json.decode(text, type=list[_Detail])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadDataError(f"not a list of captures: {error}", location=details) from error
    files: _Files = {}
    absent = []
    for row in rows[:MAX_FILES]:
        # A listed name with a path in it could lead out of the folder.
        inside = Path(row.file).name == row.file and row.file not in ("", ".", "..")
        if inside and (folder / row.file).is_file():
            files[folder / row.file] = row.batch_size
        else:
            absent.append(row.file)
    if not files:
        raise MissingError("none of the captures that it lists is in this folder", location=details)
    if not absent:
        return files, []
    names = ", ".join(repr(name[:80]) for name in absent[:3])
    return files, [f"{details.name}: {plural(len(absent), 'capture')} not in the folder: {names}"]


def _needed(files: _Files, executed: Sequence[int | None]) -> _Files:
    batches = sorted(batch for batch in files.values() if batch is not None)
    if not batches or None in files.values() or None in executed:
        return files
    wanted = {next((size for size in batches if size >= (call or 0)), batches[-1]) for call in executed}
    return {file: batch for file, batch in files.items() if batch in wanted}


def _read(file: Path, batch: int | None, folder: Path | None) -> Source:
    from lab.recordings.load import load_torch_trace  # which reads graphs' captures as well

    try:
        capture = load_torch_trace(file)
    except LabError as error:
        raise type(error)(
            f"the capture: {error.problem}", location=error.location or file, fix=error.fix
        ) from error
    return Source(file, capture, read_frames(file) if capture.meta.stacks else None, batch, folder)
