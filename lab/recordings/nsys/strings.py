"""Ids of the table StringIds -> indices into one list of the strings in use."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import Strings
from lab.recordings.nsys.export import Export
from lab.recordings.tables import Table


class StringIds:
    """Translates ids of the table StringIds into indices of `strings`, which holds only those in use."""

    def __init__(self, export: Export) -> None:
        self.strings = Strings()
        self._export = export
        self._used: list[np.ndarray] = []

    def use(self, ids: np.ndarray) -> np.ndarray:
        """Mark these ids of StringIds as in use; returns them."""
        self._used.append(np.unique(ids))
        return ids

    def add(self, text: str) -> int:
        """An id below -1 for a text that is not in StringIds."""
        return -2 - self.strings.id(text)

    def named(self, table: Table, columns: tuple[str, ...]) -> Table:
        """The table with indices of `strings` in place of ids of StringIds."""
        known, indices = self._known_indices()
        fixed = {}
        for name in columns:
            ids = getattr(table, name)
            at = np.minimum(np.searchsorted(known, ids), max(len(known) - 1, 0))
            found = indices[at] if len(known) else np.full(len(ids), -1)
            hit = (known[at] == ids) if len(known) else np.zeros(len(ids), dtype=bool)
            fixed[name] = np.where(ids < -1, -2 - ids, np.where(hit, found, -1)).astype(np.int32)
        return Table({name: fixed.get(name, getattr(table, name)) for name in table})

    def _known_indices(self) -> tuple[np.ndarray, np.ndarray]:
        used = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *self._used]))
        wanted = set(used[used >= 0].tolist())
        self._used = [used]
        if not hasattr(self, "_found"):
            self._found: dict[int, int] = {}
        missing = wanted - self._found.keys()
        if missing and {"id", "value"} <= self._export.tables.get("StringIds", set()):
            for index, value in self._export.rows("StringIds", ("id", "value")):
                if index in missing:
                    self._found[index] = self.strings.id(str(value))
        known = np.array(sorted(self._found), dtype=np.int64)
        return known, np.array([self._found[index] for index in known.tolist()], dtype=np.int64)
