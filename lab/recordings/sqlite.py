"""SQLite files of profilers, opened read-only: views, triggers and extensions of the file never run."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from urllib.parse import quote

import numpy as np

from lab.errors import BadDataError, LabError, writing
from lab.recordings.pieces import inflated, start_of

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
    except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite3 decodes a damaged schema on its own
        raise BadDataError(f"SQLite cannot read it: {error}", location=path, fix="export it again") from error


@contextmanager
def _with_its_journal(path: Path) -> Iterator[Path]:
    """The file, or a copy of it beside a copy of the journal that holds its last transactions: SQLite writes
    next to a database with a journal, and an immutable one is read without it."""
    journals = [path.with_name(path.name + end) for end in _JOURNALS]
    present = [file for file in journals if file.is_file() and file.stat().st_size]
    if not present:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="lab-sqlite-") as folder:
        for file in (path, *present):
            with writing(copy := Path(folder) / file.name):
                shutil.copyfile(file, copy)
        yield Path(folder) / path.name


def _check_size(path: Path) -> None:
    """Compare the size with the header: SQLite itself notices a missing page only when it reads it."""
    header, packed = start_of(path, 100)
    if not header and not packed:
        raise BadDataError("the file is empty (0 bytes)", location=path, fix="export it again")
    if packed or not header.startswith(MAGIC):
        raise BadDataError("not an SQLite file", location=path, fix="nsys export --type sqlite FILE.nsys-rep")
    page = int.from_bytes(header[16:18], "big")
    promised = int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
    if len(header) < 100 or path.stat().st_size < promised:
        raise BadDataError(
            f"the file is truncated: {path.stat().st_size} of {promised} bytes",
            location=path,
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
            file.writelines(inflated(path))
        try:
            yield target
        except LabError as error:
            if not (error.location or str(target)).startswith(str(target)):
                raise
            raise type(error)(error.problem, location=path, fix=error.fix) from error


# Longer than any name that a profiler writes; a hostile cell may hold a gigabyte.
MOST_TEXT = 1 << 16


class Database:
    """The base tables of an open file and their columns; columns as integer arrays, texts by id."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path, self.problems = connection, path, list[str]()
        self.columns = {name: self._columns_of(name) for name in sorted(tables_of(connection))}

    def _columns_of(self, table: str) -> frozenset[str]:
        rows = self.connection.execute(f"PRAGMA table_info({quoted(table)})")
        return frozenset(row[1] for row in rows)

    def integers(
        self,
        table: str,
        needed: Mapping[str, str],
        optional: Mapping[str, str] | None = None,
        condition: str = "",
        values: Sequence[object] = (),
    ) -> dict[str, np.ndarray]:
        """Columns (n,) of int64 by our names, in the order of rowid; -1 for NULL.

        An optional column is -1 where it is absent or holds something else than an integer. An absent table
        has no rows. Raises BadDataError where a needed column is absent or holds such a value.
        """
        columns, optional = self.columns.get(table), optional or {}
        names = [*needed, *optional]
        if columns is None:
            return {name: np.empty(0, dtype=np.int64) for name in names}
        if absent := sorted(set(needed.values()) - columns - {"rowid"}):
            raise BadDataError(
                f"{table} has no column {', '.join(absent)}: a version that lab does not support",
                location=self.path,
            )
        self._check_types(table, needed.values(), condition, values)
        chosen = [f"IFNULL({quoted(name)}, -1)" for name in needed.values()]
        for name in optional.values():
            cell = quoted(name)
            chosen.append(
                f"CASE typeof({cell}) WHEN 'integer' THEN {cell} ELSE -1 END" if name in columns else "-1"
            )
        rows = self.connection.execute(
            f"SELECT {', '.join(chosen)} FROM {quoted(table)} {condition} ORDER BY rowid", values
        )
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(-1, len(names))
        return {name: np.ascontiguousarray(flat[:, index]) for index, name in enumerate(names)}

    def _check_types(
        self, table: str, columns: Iterable[str], condition: str, values: Sequence[object]
    ) -> None:
        odd = " OR ".join(f"typeof({quoted(name)}) NOT IN ('integer', 'null')" for name in columns)
        conditions = f"{condition} AND ({odd})" if condition else f"WHERE {odd}"
        row = self.connection.execute(
            f"SELECT rowid FROM {quoted(table)} {conditions} LIMIT 1", values
        ).fetchone()
        if row:
            raise BadDataError(
                f"{table} has values that are not integers, for example in row {row[0]}", location=self.path
            )

    def texts(
        self,
        table: str,
        key: str,
        text: str,
        condition: str = "",
        values: Sequence[object] = (),
        only: Collection[int] | None = None,
    ) -> dict[int, str]:
        """Texts of at most MOST_TEXT characters by integer key, of `only` these keys or of all.

        Cells of other types are left out.
        """
        if not {key, text} <= self.columns.get(table, frozenset()):
            return {}
        cell = quoted(text)
        rows = self.connection.execute(
            f"SELECT {quoted(key)}, SUBSTR({cell}, 1, {MOST_TEXT}) FROM {quoted(table)} "
            f"{condition or 'WHERE 1'} AND typeof({cell}) = 'text' AND typeof({quoted(key)}) = 'integer'",
            values,
        )
        return {one: found for one, found in rows if only is None or one in only}


def lookup(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray, missing: int = -1) -> np.ndarray:
    """values (n,) of `keys` (m,) at `wanted` (n,), `missing` for an absent key; the first of a
    repeated key counts."""
    if not len(keys):
        return np.full(len(wanted), missing, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    position = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    values_of_keys: np.ndarray = np.where(keys[order][position] == wanted, values[order][position], missing)
    return values_of_keys
