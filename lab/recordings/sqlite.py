"""SQLite files of profilers, opened read-only: views, triggers and extensions of the file never run."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from lab.errors import BadDataError, LabError, MissingError, writing

MAGIC = b"SQLite format 3\x00"
_JOURNALS = ("-wal", "-journal")


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection; every error of SQLite becomes one that names the file."""
    _check_size(path)
    try:
        with ExitStack() as stack:
            file = stack.enter_context(_with_its_journal(path))
            uri = f"file:{quote(str(file.absolute()))}?mode=ro" + ("&immutable=1" if file == path else "")
            connection = stack.enter_context(closing(sqlite3.connect(uri, uri=True)))
            # A name with invalid UTF-8 must not make the whole recording unreadable.
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            connection.execute("PRAGMA query_only = 1")
            connection.execute("PRAGMA trusted_schema = 0")
            yield connection
    except sqlite3.Error as error:
        raise BadDataError(f"SQLite cannot read it: {error}", where=path, fix="export it again") from error


@contextmanager
def _with_its_journal(path: Path) -> Iterator[Path]:
    """The file, or a copy of it beside a copy of the journal that holds its last transactions: SQLite writes
    next to a database with a journal, and an immutable one is read without it."""
    journals = [path.with_name(path.name + end) for end in _JOURNALS]
    there = [one for one in journals if one.is_file() and one.stat().st_size]
    if not there:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="lab-sqlite-") as folder:
        for one in (path, *there):
            with writing(copy := Path(folder) / one.name):
                shutil.copyfile(one, copy)
        yield Path(folder) / path.name


def _check_size(path: Path) -> None:
    """Compare the size with the header: SQLite itself notices a missing page only when it reads it."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError as error:
        raise MissingError("no such file", where=path) from error
    except OSError as error:
        raise MissingError(f"cannot be read: {error.strerror}", where=path) from error
    if not header:
        raise BadDataError("the file is empty (0 bytes)", where=path, fix="export it again")
    if not header.startswith(MAGIC):
        raise BadDataError("not an SQLite file", where=path, fix="nsys export --type sqlite FILE.nsys-rep")
    page = int.from_bytes(header[16:18], "big")
    promised = int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
    if len(header) < 100 or path.stat().st_size < promised:
        raise BadDataError(
            f"the file is truncated: {path.stat().st_size} of {promised} bytes",
            where=path,
            fix="copy or export it again",
        )


def tables_of(connection: sqlite3.Connection) -> frozenset[str]:
    """Names of the base tables: views and virtual tables of a foreign file are code."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    return frozenset(
        name
        for name, sql in rows
        if isinstance(name, str) and not str(sql).upper().startswith("CREATE VIRTUAL")
    )


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def unzipped(path: Path) -> Iterator[Path]:
    """The database in a gzip file, as a temporary file within the block, because SQLite needs random access;
    errors about it name `path`.

    Raises BadDataError where the gzip is truncated or damaged, StorageError where it cannot be unpacked.
    """
    with tempfile.TemporaryDirectory(prefix="lab-sqlite-") as folder:
        target = Path(folder) / "unzipped.sqlite"
        with writing(target), target.open("wb") as file:
            _unzip(path, file)
        try:
            yield target
        except LabError as error:
            if not (error.where or str(target)).startswith(str(target)):
                raise
            raise type(error)(error.what, where=path, fix=error.fix) from error


def _unzip(path: Path, into: BinaryIO) -> None:
    try:
        with gzip.open(path) as file:
            shutil.copyfileobj(file, into, 1 << 20)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadDataError(f"the gzip file is truncated or damaged: {error}", where=path) from error
