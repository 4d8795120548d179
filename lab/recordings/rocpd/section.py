"""The tables of one process group (guid) of a rocpd database, and the lookups that its rows need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.recordings.sqlite import Database, lookup, quoted

TABLE = re.compile(r"rocpd_kernel_dispatch(_[0-9A-Fa-f]{8}(?:_[0-9A-Fa-f]{4}){3}_[0-9A-Fa-f]{12}|)")
_WITH_ROWS = ("info_process", "kernel_dispatch", "memory_copy", "region", "sample")


@dataclass(frozen=True)
class Section:
    """One guid's rows: of the tables `rocpd_*<suffix>` those with its guid; all, if it is alone in them."""

    database: Database
    suffix: str
    guid: str | None
    alone: bool = True

    def name(self, table: str) -> str:
        return f"rocpd_{table}{self.suffix}"

    @property
    def _only(self) -> tuple[str, tuple[object, ...]]:
        return ("", ()) if self.alone else ("WHERE guid IS ?", (self.guid,))

    def integers(self, table: str, needed: str, optional: str = "") -> dict[str, np.ndarray]:
        """Columns (n,): names as in the file, or `ours=theirs`; see `Database.integers`."""
        only, values = self._only
        return self.database.integers(self.name(table), _pairs(needed), _pairs(optional), only, values)

    def numbers(self, table: str, column: str) -> np.ndarray:
        """A column (n,) of float64; see `Database.numbers`."""
        return self.database.numbers(self.name(table), column, *self._only)

    def texts(self, table: str, text: str, key: str = "id") -> dict[int, str]:
        return self.database.texts(self.name(table), key, text, *self._only)

    @cached_property
    def strings(self) -> dict[int, str]:
        return self.texts("string", "string")

    @cached_property
    def events(self) -> dict[str, np.ndarray]:
        return self.integers("event", "id category_id stack_id")

    def of_event(self, column: str, event_ids: np.ndarray) -> np.ndarray:
        return lookup(self.events["id"], self.events[column], event_ids)


def _pairs(names: str) -> dict[str, str]:
    return {name.split("=")[0]: name.split("=")[-1] for name in names.split()}


def sections_of(database: Database) -> list[Section]:
    """One section per guid, in the order of the tables' names."""
    sections: list[Section] = []
    for table in database.columns:
        if match := TABLE.fullmatch(table):
            suffix = match[1]
            guids = _guids(database, suffix) or [suffix.strip("_").replace("_", "-") or None]
            sections += [Section(database, suffix, guid, alone=len(guids) == 1) for guid in guids]
    return sections


def _guids(database: Database, suffix: str) -> list[str | None]:
    """The guids in the rows of tables of one suffix: one, unless a merge wrote several files into them."""
    guids: set[str | None] = set()
    for name in _WITH_ROWS:
        table = f"rocpd_{name}{suffix}"
        if "guid" in database.columns.get(table, ()):
            rows = database.connection.execute(f"SELECT DISTINCT guid FROM {quoted(table)} LIMIT 10000")
            guids |= {None if guid is None else str(guid) for (guid,) in rows}
    return sorted(guids, key=str)
