"""A columnar cache of traces, so that reading one again takes milliseconds.

One file per trace: a zip of one Parquet file per table and `about.json` (which trace, read by which reader,
the rest of the Trace). It is used only while size and content of the trace and the reader are the same;
otherwise the trace is read again and the entry rewritten. Deleting the folder is always safe.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.core.files import sha256_of, write_atomic
from lab.errors import LabError, needs, not_here
from lab.recordings import tables
from lab.recordings.integrity import integrity_of_trace
from lab.recordings.kineto import READER_VERSION, read_kineto
from lab.recordings.lacks import Lack
from lab.recordings.tables import Table, Trace, TraceMeta

SUFFIX = ".trace"
_ABOUT = "about.json"
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
    return f"{READER_VERSION}-{zlib.crc32(msgspec.json.encode(columns)):08x}"


def _cached(entry: Path, key: _Key, path: Path) -> tuple[Trace | None, str | None]:
    """The trace in `entry`; or None, and a sentence if the entry exists and cannot be used."""
    try:
        return _read(entry, key, path), None
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except (_Unusable, OSError) as error:
        return None, f"the cached columns were not used ({error}); the trace was read again"


def _read(entry: Path, key: _Key, path: Path) -> Trace | None:
    with needs("analysis"):
        import pyarrow.lib

    try:
        with zipfile.ZipFile(entry) as archive:
            about = msgspec.json.decode(archive.read(_ABOUT), type=_About)
            if not _is_of(about, key, path):
                return None
            found = {name: _table(archive, name, about) for name in tables.SCHEMAS}
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, zlib.error) as error:
        raise _Unusable(f"{entry.name} is damaged or not a cache entry: {type(error).__name__}") from error
    except (msgspec.MsgspecError, pyarrow.lib.ArrowException) as error:
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


def _is_of(about: _About, key: _Key, path: Path) -> bool:
    """Same reader and same bytes; with an equal date the bytes are not compared."""
    if (about.size, about.salvage, about.reader) != (key.size, key.salvage, key.reader):
        return False
    return about.mtime_ns == key.mtime_ns or about.sha256 == sha256_of(path)


def _table(archive: zipfile.ZipFile, name: str, about: _About) -> Table:
    import pyarrow.parquet

    schema = tables.SCHEMAS[name]
    stored = pyarrow.parquet.ParquetFile(io.BytesIO(archive.read(f"{name}.parquet"))).read(use_threads=False)
    if stored.column_names != list(schema):
        raise ValueError("columns differ from the schema")
    columns = {key: _from_arrow(stored.column(key), kind) for key, kind in schema.items()}
    for key in tables.TEXT_COLUMNS & schema.keys():
        if len(stored) and not -1 <= columns[key].min() <= columns[key].max() < len(about.strings):
            raise ValueError("ids out of range")
    return Table(columns)


def _keep(entry: Path, key: _Key, trace: Trace) -> Sequence[str]:
    """Write the entry; returns a sentence if it could not be written."""
    try:
        write_atomic(entry, _packed(key, trace))
    except (LabError, OSError) as error:
        reason = error.what if isinstance(error, LabError) else str(error)
        return [f"the columns could not be cached in {entry.parent}: {reason}"]
    return []


def _packed(key: _Key, trace: Trace) -> bytes:
    with needs("analysis"):
        import pyarrow.parquet

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
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
        )
        archive.writestr(zipfile.ZipInfo(_ABOUT, _NO_TIME), msgspec.json.encode(about))
        for name in tables.SCHEMAS:
            table: Any = getattr(trace, name)
            columns = pyarrow.table({column: _to_arrow(getattr(table, column)) for column in table})
            packed = io.BytesIO()
            pyarrow.parquet.write_table(
                columns, packed, compression="zstd", use_dictionary=False, write_statistics=False
            )
            archive.writestr(zipfile.ZipInfo(f"{name}.parquet", _NO_TIME), packed.getvalue())
    return buffer.getvalue()


# Through buffers, because pyarrow's own conversions import pandas: 0.25 s and 60 MB.


def _to_arrow(column: np.ndarray) -> Any:
    import pyarrow

    plain = np.ascontiguousarray(column.view(np.uint8) if column.dtype == bool else column)
    kind = pyarrow.from_numpy_dtype(plain.dtype)
    return pyarrow.Array.from_buffers(kind, len(plain), [None, pyarrow.py_buffer(plain)])


def _from_arrow(column: Any, kind: Any) -> np.ndarray:
    import pyarrow

    stored = np.dtype(np.uint8 if kind is np.bool_ else kind)
    if column.null_count or column.type != pyarrow.from_numpy_dtype(stored):
        raise ValueError("unexpected type")
    parts = [
        np.frombuffer(
            chunk.buffers()[1], dtype=stored, count=len(chunk), offset=chunk.offset * stored.itemsize
        )
        for chunk in column.chunks
        if len(chunk)
    ]
    joined = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=stored), *parts])
    return joined.astype(kind, copy=False)
