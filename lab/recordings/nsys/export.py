"""An export: its tables, and their columns as integer arrays."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import BadDataError
from lab.recordings.capture import Strings
from lab.recordings.sqlite import Database, opened, quoted
from lab.stats.columns import per_distinct


class StringIds(Strings):
    """The texts in use by number; of the table StringIds none else is kept."""

    def __init__(self, export: Export) -> None:
        super().__init__()
        self._export = export

    def indices(self, ids: np.ndarray) -> np.ndarray:
        """The numbers (n,) of ids of StringIds (n,), -1 for one that it has no text of."""
        texts = self._export.texts("StringIds", "id", "value", only=set(ids.tolist()))
        return per_distinct(ids, lambda key: self.id(texts[key]) if key in texts else -1)


SCHEMA_MAJOR = 3  # of the exports that were read so far: 3.20.3, 3.24.14, 3.25.0

_NSYS_TABLES = ("StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE")
PREFIX = "CUPTI_ACTIVITY_KIND_"
PARQUET = ".parquet"


Row = tuple[Any, ...]
Among = tuple[str, Sequence[int]]  # a column, and the values of it that are asked for


class Export(Database):
    """The tables and columns that an export has, and its columns as arrays; kind says what was opened."""

    def __init__(self, connection: sqlite3.Connection, path: Path, kind: str = "an SQLite file") -> None:
        super().__init__(connection, path)
        self.kind, self.tables = kind, self.columns

    def rows(self, table: str, columns: Sequence[str], among: Among | None = None) -> Iterable[Row]:
        """Rows of a table in its order, none where the table is absent; `rowid` counts them from 1."""
        if table not in self.tables:
            return iter(())
        chosen = ", ".join(map(quoted, columns))
        select = f"SELECT {chosen} FROM {quoted(table)} {_condition(among)} ORDER BY rowid"
        return self.connection.execute(select)

    def count(self, table: str) -> int:
        """Number of rows."""
        select = f"SELECT COUNT(*) FROM {quoted(table)}"
        return int(self.connection.execute(select).fetchone()[0])

    def numbers(
        self,
        table: str,
        needed: Mapping[str, str],
        optional: Mapping[str, str] | None = None,
        among: Among | None = None,
    ) -> dict[str, np.ndarray]:
        """Columns of integers in the order of the rows; NULL and absent optional columns read as -1.

        Raises BadDataError where a needed column is absent or holds anything but integers.
        """
        return self.integers(table, needed, optional, _condition(among))

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


def _condition(among: Among | None) -> str:
    return f"WHERE {quoted(among[0])} IN ({', '.join(map(str, among[1]))})" if among else ""


def is_folder(names: Collection[str]) -> bool:
    """Whether a folder with these files is an export to Parquet, finished or not."""
    tables = {name.removesuffix(PARQUET) for name in names if name.endswith(PARQUET)}
    return any(name.startswith(PREFIX) for name in tables) or {"StringIds", "META_DATA_EXPORT"} <= tables


def check(path: Path | str) -> None:
    """Raise what `load` raises for a file that is not a readable export, without reading its rows."""
    with opened(Path(path)) as connection:
        Export(connection, Path(path)).check()


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
