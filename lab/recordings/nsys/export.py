"""An SQLite export, opened read-only: its tables, and their columns as integer arrays."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import BadDataError
from lab.recordings.sqlite import opened, quoted

SCHEMA_MAJOR = 3  # of the exports that were read so far: 3.20.3, 3.24.14, 3.25.0

_NSYS_TABLES = ("StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE")
PREFIX = "CUPTI_ACTIVITY_KIND_"


class Export:
    """The tables and columns that this file has, and columns as integer arrays."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path, self.problems = connection, path, list[str]()
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {name: self._columns(name) for (name,) in names if isinstance(name, str)}

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self.connection.execute(f"PRAGMA table_info({quoted(table)})")}

    def check(self) -> None:
        if not any(name in self.tables for name in _NSYS_TABLES):
            raise BadDataError(
                "an SQLite file, but not an nsys export: it has none of the tables "
                + ", ".join(_NSYS_TABLES),
                where=self.path,
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
        rows = self.connection.execute(f"SELECT name, value FROM {quoted(table)}").fetchall()
        return {str(name): str(value) for name, value in reversed(rows)}

    def rows(self, table: str, columns: str, condition: str = "") -> list[tuple[Any, ...]]:
        """Rows of a table, none where the table is absent."""
        if table not in self.tables:
            return []
        return self.connection.execute(f"SELECT {columns} FROM {quoted(table)} {condition}").fetchall()

    def numbers(
        self,
        table: str,
        needed: Mapping[str, str],
        optional: Mapping[str, str] | None = None,
        where: str = "",
    ) -> dict[str, np.ndarray]:
        """Columns of integers in the order of rowid; NULL and absent optional columns read as -1.

        Raises BadDataError where a needed column is absent or a value is not an integer.
        """
        there = self.tables[table]
        absent = sorted(set(needed.values()) - there - {"rowid"})
        if absent:
            raise BadDataError(
                f"{table} has no column {', '.join(absent)}: an export version that lab does not support",
                where=self.path,
            )
        wanted = dict(needed) | {k: v for k, v in (optional or {}).items() if v in there}
        selected = ", ".join(f"IFNULL({quoted(name)}, -1)" for name in wanted.values())
        cursor = self.connection.execute(f"SELECT {selected} FROM {quoted(table)} {where} ORDER BY rowid")
        try:
            # From the cursor straight into the array: no list of rows, whatever the size of the export.
            flat = np.fromiter(chain.from_iterable(cursor), dtype=np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadDataError(
                f"{table} has values that are not integers: {error}", where=self.path
            ) from error
        values = flat.reshape(-1, len(wanted))
        found = {name: np.ascontiguousarray(values[:, i]) for i, name in enumerate(wanted)}
        missing = {name: np.full(len(values), -1) for name in (optional or {}) if name not in found}
        return found | missing


def check(path: Path | str) -> None:
    """Raise what `load` raises for a file that is not a readable export, without reading its rows."""
    with opened(Path(path)) as connection:
        Export(connection, Path(path)).check()


def pid_of(packed: np.ndarray) -> np.ndarray:
    return np.where(packed < 0, -1, packed >> 24 & 0xFFFFFF)


def tid_of(packed: np.ndarray) -> np.ndarray:
    return np.where(packed < 0, -1, packed & 0xFFFFFF)
