"""An export: its tables, and their columns as integer arrays; the one to SQLite among them."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import BadDataError
from lab.recordings.capture import Strings
from lab.recordings.sqlite import lookup, opened, quoted
from lab.recordings.tables import Table


class StringIds:
    """Translates ids of the table StringIds into indices of `strings`, which holds only those in use."""

    def __init__(self, export: Export) -> None:
        self.strings = Strings()
        self._export = export
        self._used: list[np.ndarray] = []
        self._indices: dict[int, int] = {}  # by id of StringIds

    def use(self, ids: np.ndarray) -> np.ndarray:
        """Mark these ids of StringIds as in use; returns them."""
        self._used.append(np.unique(ids))
        return ids

    def add(self, text: str) -> int:
        """An id below -1 for a text that is not in StringIds."""
        return -2 - self.strings.id(text)

    def named(self, table: Table, columns: tuple[str, ...]) -> Table:
        """The table with indices of `strings` in place of ids of StringIds."""
        self._read_used()
        keys = np.array(sorted(self._indices), dtype=np.int64)
        indices = np.array([self._indices[key] for key in keys.tolist()], dtype=np.int64)
        translated = {}
        for name in columns:
            ids = getattr(table, name)
            translated[name] = np.where(ids < -1, -2 - ids, lookup(keys, indices, ids)).astype(np.int32)
        return Table({name: translated.get(name, getattr(table, name)) for name in table})

    def _read_used(self) -> None:
        """Read the texts that are in use and have not been read."""
        used = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *self._used]))
        missing = set(used[used >= 0].tolist()) - self._indices.keys()
        self._used = [used]
        if missing and {"id", "value"} <= self._export.tables.get("StringIds", set()):
            for key, value in self._export.rows("StringIds", ("id", "value")):
                if key in missing:
                    self._indices[key] = self.strings.id(str(value))


SCHEMA_MAJOR = 3  # of the exports that were read so far: 3.20.3, 3.24.14, 3.25.0

_NSYS_TABLES = ("StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE")
PREFIX = "CUPTI_ACTIVITY_KIND_"
PARQUET = ".parquet"


Row = tuple[Any, ...]
Among = tuple[str, Sequence[int]]  # a column, and the values of it that are asked for


class Export(ABC):
    """The tables and columns that an export has, whatever it was exported to, and its columns as arrays."""

    kind = "an export"

    def __init__(self, path: Path, tables: dict[str, set[str]]) -> None:
        self.path, self.tables, self.problems = path, tables, list[str]()

    @abstractmethod
    def rows(self, table: str, columns: Sequence[str], among: Among | None = None) -> Iterable[Row]:
        """Rows of a table in its order, none where the table is absent; `rowid` counts them from 1."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Number of rows."""

    @abstractmethod
    def largest(self, table: str, column: str) -> int:
        """The largest value of a column of integers, 0 without rows."""

    @abstractmethod
    def _integers(self, table: str, columns: Sequence[str], among: Among | None) -> list[np.ndarray]:
        """Columns (n,) of int64, -1 for NULL; raises TypeError, ValueError or OverflowError for others."""

    def check(self) -> None:
        if not any(name in self.tables for name in _NSYS_TABLES):
            raise BadDataError(
                f"{self.kind}, but not an nsys export: it has none of the tables " + ", ".join(_NSYS_TABLES),
                location=self.path,
                fix="nsys export --type sqlite FILE.nsys-rep",
            )
        schema = self.pairs("META_DATA_EXPORT").get("EXPORT_SCHEMA_VERSION", "")
        if schema and schema.split(".")[0] != str(SCHEMA_MAJOR):
            self.problems.append(
                f"export schema {schema}: lab has been tested with schemas {SCHEMA_MAJOR}.x only"
            )

    def pairs(self, table: str) -> dict[str, str]:
        """name -> value of a META_DATA table; the first value of a repeated name."""
        if not {"name", "value"} <= self.tables.get(table, set()):
            return {}
        rows = list(self.rows(table, ("name", "value")))
        return {str(name): str(value) for name, value in reversed(rows)}

    def numbers(
        self,
        table: str,
        needed: Mapping[str, str],
        optional: Mapping[str, str] | None = None,
        among: Among | None = None,
    ) -> dict[str, np.ndarray]:
        """Columns of integers in the order of the rows; NULL and absent optional columns read as -1.

        Raises BadDataError where a needed column is absent or a value is not an integer.
        """
        columns = self.tables[table]
        absent = sorted(set(needed.values()) - columns - {"rowid"})
        if absent:
            raise BadDataError(
                f"{table} has no column {', '.join(absent)}: an export version that lab does not support",
                location=self.path,
            )
        wanted = dict(needed) | {k: v for k, v in (optional or {}).items() if v in columns}
        try:
            values = self._integers(table, list(wanted.values()), among)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadDataError(
                f"{table} has values that are not integers: {error}", location=self.path
            ) from error
        unknown = np.full(len(values[0]), -1)
        return dict.fromkeys(optional or {}, unknown) | dict(zip(wanted, values, strict=True))


class SqliteExport(Export):
    """An export of `--type sqlite`, opened read-only."""

    kind = "an SQLite file"

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        super().__init__(path, {name: self._columns(name) for (name,) in names if isinstance(name, str)})

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._connection.execute(f"PRAGMA table_info({quoted(table)})")}

    def rows(self, table: str, columns: Sequence[str], among: Among | None = None) -> Iterable[Row]:
        if table not in self.tables:
            return iter(())
        return self._select(", ".join(map(quoted, columns)), table, among)

    def _select(self, chosen: str, table: str, among: Among | None) -> sqlite3.Cursor:
        condition = f"WHERE {quoted(among[0])} IN ({', '.join(map(str, among[1]))})" if among else ""
        return self._connection.execute(f"SELECT {chosen} FROM {quoted(table)} {condition} ORDER BY rowid")

    def count(self, table: str) -> int:
        return int(self._connection.execute(f"SELECT COUNT(*) FROM {quoted(table)}").fetchone()[0])

    def largest(self, table: str, column: str) -> int:
        name = quoted(column)
        asked = f"SELECT MAX({name}) FROM {quoted(table)} WHERE typeof({name}) = 'integer'"
        return int(self._connection.execute(asked).fetchone()[0] or 0)

    def _integers(self, table: str, columns: Sequence[str], among: Among | None) -> list[np.ndarray]:
        cursor = self._select(", ".join(f"IFNULL({quoted(name)}, -1)" for name in columns), table, among)
        # From the cursor straight into the array: no list of rows, whatever the size of the export.
        flat = np.fromiter(chain.from_iterable(cursor), dtype=np.int64).reshape(-1, len(columns))
        return [np.ascontiguousarray(flat[:, index]) for index in range(len(columns))]


def is_folder(names: Collection[str]) -> bool:
    """Whether a folder with these files is an export to Parquet, finished or not."""
    tables = {name.removesuffix(PARQUET) for name in names if name.endswith(PARQUET)}
    return any(name.startswith(PREFIX) for name in tables) or {"StringIds", "META_DATA_EXPORT"} <= tables


def check(path: Path | str) -> None:
    """Raise what `load` raises for a file that is not a readable export, without reading its rows."""
    with opened(Path(path)) as connection:
        SqliteExport(connection, Path(path)).check()


def host_pid_of(packed: np.ndarray) -> np.ndarray:
    """The process id (n,), above it the machine's number: pids repeat between machines; -1 if neither."""
    return np.where(packed < 0, -1, packed >> 24)


def ids_of(packed: np.ndarray) -> dict[str, np.ndarray]:
    """pid, with the machine's number, and tid (n,) of globalTid."""
    return {"pid": host_pid_of(packed), "tid": tid_of(packed)}


def pid_of(host_pid: np.ndarray) -> np.ndarray:
    return np.where(host_pid < 0, -1, host_pid & 0xFFFFFF)


def tid_of(packed: np.ndarray) -> np.ndarray:
    return np.where(packed < 0, -1, packed & 0xFFFFFF)
