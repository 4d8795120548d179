"""A columnar cache of traces, so that reading one again takes milliseconds.

One file per trace: a zip of `about.json` (which trace, read by which reader, the rest of the Trace, what
columns follow) and `columns`, one column behind the other, each as its distance from its least value in the
narrowest integers that hold it. It is used only while size and content of the trace and the reader are the
same; otherwise the trace is read again and the entry rewritten. Deleting the folder is always safe.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from lab.core.files import sha256_of, write_atomic
from lab.errors import LabError, not_here
from lab.recordings import tables
from lab.recordings.integrity import integrity_of_trace
from lab.recordings.kineto import READER_VERSION, read_kineto
from lab.recordings.lacks import Lack
from lab.recordings.tables import Table, Trace, TraceMeta

SUFFIX = ".trace"
_ABOUT, _COLUMNS = "about.json", "columns"
_FORMAT = 2  # of the entry
_SETTLED_NS = 2_000_000_000  # the coarsest dates of file systems: a change within them keeps the date
# Longer columns take a byte per row even if all are alike, so that a small file never fills the memory.
_MOST_ALIKE = 4096
# One date for every entry, so that the same trace makes the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def load_trace(path: Path | str, *, cache: Path | None = None, salvage: bool = False) -> Trace:
    """The trace at `path`, from the folder `cache` if it is there, otherwise read and stored there.

    cache=None reads without a cache.

    A cache that cannot be used or written never fails the call: it becomes a sentence in `problems`.
    Raises what `read_kineto` raises; a trace that cannot be read is not cached.
    """
    path = Path(path)
    if cache is None:
        return _read_new(path, salvage=salvage)
    entry, before = cache / entry_name(path, salvage=salvage), _key(path, salvage)
    trace, note = _cached(entry, before, path)
    if trace is not None:
        return trace
    trace = _read_new(path, salvage=salvage)
    notes = [note] if note else []
    if before == _key(path, salvage):  # otherwise it is still being written
        notes += _keep(entry, before, trace)
    return replace(trace, problems=[*trace.problems, *notes])


def _read_new(path: Path, *, salvage: bool) -> Trace:
    trace = read_kineto(path, salvage=salvage)
    return replace(trace, lacks=(*trace.lacks, *integrity_of_trace(trace)))


def entry_name(path: Path, *, salvage: bool = False) -> str:
    """The name of a trace's cache file: readable, and the same wherever the run's folder is copied to."""
    tail = "/".join(path.absolute().parts[-5:])
    digest = hashlib.sha256(f"{tail}{'+salvage' if salvage else ''}".encode()).hexdigest()[:16]
    readable = "".join(char if char.isalnum() or char in "._-" else "_" for char in path.name)[:80]
    return f"{readable}.{digest}{SUFFIX}"


@dataclass(frozen=True)
class _Key:
    """The state of a file; its SHA-256 is computed only where dates differ."""

    size: int
    mtime_ns: int
    salvage: bool
    reader: str


class _Stored(msgspec.Struct):
    """One column in `columns`: `rows` unsigned integers of so many bytes each, to which `least` is added."""

    table: str
    name: str
    rows: int
    width: Literal[0, 1, 2, 4, 8]  # 0: every row holds `least`
    least: int


class _About(msgspec.Struct):
    size: int
    mtime_ns: int
    salvage: bool
    reader: str
    sha256: str
    meta: TraceMeta
    strings: list[str]
    problems: list[str]
    truncated: bool
    lacks: tuple[Lack, ...]
    columns: list[_Stored]


class _Unusable(Exception):
    """Why a cache file cannot be used."""


def _key(path: Path, salvage: bool) -> _Key:
    try:
        found = path.stat()
    except OSError as error:
        raise not_here("no such trace", path) from error
    return _Key(found.st_size, found.st_mtime_ns, salvage, _reader())


def _reader() -> str:
    """The reader's version and a checksum of the schema it fills."""
    columns = {
        name: {k: np.dtype(v).str for k, v in schema.items()} for name, schema in tables.SCHEMAS.items()
    }
    return f"{READER_VERSION}-{_FORMAT}-{zlib.crc32(msgspec.json.encode(columns)):08x}"


def _cached(entry: Path, key: _Key, path: Path) -> tuple[Trace | None, str | None]:
    """The trace in `entry`; or None, and a sentence if the entry exists and cannot be used."""
    try:
        return _read(entry, key, path), None
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except (_Unusable, OSError) as error:
        return None, f"the cached columns were not used ({error}); the trace was read again"


def _read(entry: Path, key: _Key, path: Path) -> Trace | None:
    try:
        with zipfile.ZipFile(entry) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise ValueError("packed: a small file could fill the memory")
            about = msgspec.json.decode(archive.read(_ABOUT), type=_About)
            if not _is_of(about, key, path, entry):
                return None
            found = _tables(archive.read(_COLUMNS), about)
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        OverflowError,
        RuntimeError,  # encrypted, or packed in a way that zipfile does not know
        zlib.error,
        msgspec.MsgspecError,
    ) as error:
        raise _Unusable(f"{entry.name} is damaged or not a cache entry: {type(error).__name__}") from error
    if len(found["collectives"]) and found["collectives"].kernel.max() >= len(found["kernels"]):
        raise _Unusable(f"{entry.name} is inconsistent")
    return Trace(
        source=path,
        meta=about.meta,
        strings=about.strings,
        problems=about.problems,
        truncated=about.truncated,
        lacks=about.lacks,
        **found,
    )


def _is_of(about: _About, key: _Key, path: Path, entry: Path) -> bool:
    """Same reader and same bytes; with an equal date that no later change can have, they are not compared."""
    if (about.size, about.salvage, about.reader) != (key.size, key.salvage, key.reader):
        return False
    is_settled = entry.stat().st_mtime_ns > about.mtime_ns + _SETTLED_NS
    return (is_settled and about.mtime_ns == key.mtime_ns) or about.sha256 == sha256_of(path)


def _tables(raw: bytes, about: _About) -> dict[str, Table]:
    """The tables from their bytes. Raises ValueError for anything but exactly the schema's columns."""
    wanted = [(table, name) for table, schema in tables.SCHEMAS.items() for name in schema]
    if [(one.table, one.name) for one in about.columns] != wanted:
        raise ValueError("columns differ from the schema")
    found: dict[str, dict[str, np.ndarray]] = {name: {} for name in tables.SCHEMAS}
    at = 0
    for one in about.columns:
        kind = tables.SCHEMAS[one.table][one.name]
        values = _unpacked(raw, at, one, np.dtype(kind))
        at += one.rows * one.width
        points = one.rows and one.name in tables.TEXT_COLUMNS
        if points and not -1 <= values.min() <= values.max() < len(about.strings):
            raise ValueError("ids out of range")
        found[one.table][one.name] = values
    if at != len(raw):
        raise ValueError("more columns than the schema has")
    return {name: Table(columns) for name, columns in found.items()}


def _unpacked(raw: bytes, at: int, one: _Stored, kind: np.dtype[Any]) -> np.ndarray:
    stored = np.dtype(np.uint8) if kind.kind == "b" else kind
    limits = np.iinfo(stored)
    if not limits.min <= one.least <= limits.max:
        raise ValueError("a value outside of its type")
    if one.width == 0:
        if not 0 <= one.rows <= _MOST_ALIKE:
            raise ValueError("impossible number of rows")
        return np.full(one.rows, one.least, dtype=kind)
    packed = np.frombuffer(raw, dtype=f"<u{one.width}", count=one.rows, offset=at)
    if one.rows and int(packed.max()) + one.least > limits.max:
        raise ValueError("a value outside of its type")
    values = packed.astype(stored)
    values += stored.type(one.least)
    return values.astype(kind, copy=False)


def _keep(entry: Path, key: _Key, trace: Trace) -> Sequence[str]:
    """Write the entry; returns a sentence if it could not be written."""
    try:
        write_atomic(entry, _packed(key, trace))
    except (LabError, OSError) as error:
        reason = error.problem if isinstance(error, LabError) else str(error)
        return [f"the columns could not be cached in {entry.parent}: {reason}"]
    return []


def _packed(key: _Key, trace: Trace) -> bytes:
    columns = [
        _packed_column(table, name, getattr(getattr(trace, table), name))
        for table, schema in tables.SCHEMAS.items()
        for name in schema
    ]
    about = _About(
        size=key.size,
        mtime_ns=key.mtime_ns,
        salvage=key.salvage,
        reader=key.reader,
        sha256=sha256_of(trace.source),
        meta=trace.meta,
        strings=trace.strings,
        problems=trace.problems,
        truncated=trace.truncated,
        lacks=trace.lacks,
        columns=[stored for stored, _ in columns],
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_ABOUT, _NO_TIME), msgspec.json.encode(about))
        archive.writestr(zipfile.ZipInfo(_COLUMNS, _NO_TIME), b"".join(raw for _, raw in columns))
    return buffer.getvalue()


def _packed_column(table: str, name: str, values: np.ndarray) -> tuple[_Stored, bytes]:
    plain = values.view(np.uint8) if values.dtype == bool else values
    least, most = (int(plain.min()), int(plain.max())) if len(plain) else (0, 0)
    span = most - least
    alike = span == 0 and len(plain) <= _MOST_ALIKE
    width: Any = 0 if alike else next(size for size in (1, 2, 4, 8) if span < 1 << 8 * size)
    stored = _Stored(table, name, len(plain), width, least)
    if width == 0:
        return stored, b""
    # Modulo 2^64: right for every distance, even from the least int64 to the largest.
    distance = plain.astype(np.int64).view(np.uint64) - np.uint64(least % 2**64)
    return stored, distance.astype(f"<u{width}").tobytes()
