"""Ids of the table StringIds -> indices into one list of the strings in use."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import Strings
from lab.recordings.nsys.export import Export
from lab.recordings.sqlite import lookup
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
