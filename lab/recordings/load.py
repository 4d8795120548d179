"""Any recording, recognised by its first bytes rather than by its name."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from lab.errors import BadDataError, MissingError
from lab.recordings import nsys
from lab.recordings.capture import Capture
from lab.recordings.kineto import read_kineto
from lab.recordings.kineto.capture import from_kineto


def load_capture(path: Path | str) -> Capture:
    """Read an nsys export or a Kineto trace, both also gzipped; or a .nsys-rep (needs nsys).

    Raises MissingError without the file, or without nsys for a .nsys-rep; BadDataError if it is empty,
    truncated, damaged or something else.
    """
    path = Path(path)
    start = _first_bytes(path)
    if start.startswith(nsys.MAGIC):
        return nsys.load(path)
    if path.suffix in nsys.REPORT_SUFFIXES:
        return nsys.load_report(path)
    if start[:2] == b"\x1f\x8b" and _unzipped_start(path).startswith(nsys.MAGIC):
        return nsys.load_zipped(path)
    if start[:2] == b"\x1f\x8b" or start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return from_kineto(read_kineto(path))
    raise BadDataError(
        "neither an nsys export (SQLite) nor a Kineto trace (JSON)",
        where=path,
        fix="give FILE.sqlite (nsys export --type sqlite), FILE.nsys-rep, or a trace FILE.json[.gz]",
    )


def _first_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise MissingError("not a recording but a folder", where=path)
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError as error:
        raise MissingError("no such file", where=path) from error
    except OSError as error:
        raise MissingError(f"cannot be read: {error.strerror}", where=path) from error
    if not start:
        raise BadDataError("the file is empty (0 bytes)", where=path, fix="record or export it again")
    return start


def _unzipped_start(path: Path) -> bytes:
    """The first bytes inside a gzip file; b"" for a damaged one, whose reader reports the place."""
    try:
        with gzip.open(path) as file:
            return file.read(64)
    except (OSError, EOFError, zlib.error):
        return b""
