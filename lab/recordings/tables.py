"""Tables: columns of equal length, read as attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

KERNEL, MEMCPY, MEMSET = 0, 1, 2
NO_SYMBOL = (
    "(no symbol recorded)"  # at the end of what stands for a kernel's name that is not in the recording
)
GRAPH = 3  # a whole graph replay, recorded as one row without its kernels
Schema = Mapping[str, Any]
Columns = dict[str, np.ndarray]


class Table:
    """Immutable columns of equal length n, read as attributes: `table.start_ns` is an array (n,).

    A table with start_ns and end_ns has dur_ns, too. Raises ValueError when columns differ in length;
    AttributeError names the columns there are.
    """

    __slots__ = ("_columns", "_length")

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns differ in length: { ({k: len(v) for k, v in columns.items()}) }")
        self._columns = {name: _frozen(column) for name, column in columns.items()}
        self._length = lengths.pop() if lengths else 0

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("_"):
            raise AttributeError(name)
        column = self._columns.get(name)
        if column is None and name == "dur_ns" and "end_ns" in self._columns:
            column = self._columns["end_ns"] - self._columns["start_ns"]
        if column is None:
            raise AttributeError(f"no column {name!r}; there are {', '.join(self._columns)}")
        return column

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self._columns,)

    def with_columns(self, **columns: np.ndarray) -> Table:
        """The table with these columns (n,) in place of those it has, or beside them."""
        return Table({**self._columns, **columns})

    def part(self, start: int) -> Table:
        """Rows from `start` on, without copying them."""
        return Table({name: column[start:] for name, column in self._columns.items()})

    def where(self, mask: np.ndarray) -> Table:
        """Rows whose boolean `mask` (n,) is true, as a new table."""
        return self.take(np.flatnonzero(mask))

    def take(self, index: np.ndarray) -> Table:
        """Rows at `index` (m,), in that order, as a new table of length m."""
        return Table({name: column[index] for name, column in self._columns.items()})

    def as_dict(self) -> dict[str, np.ndarray]:
        """The columns by name, in their order: what a DataFrame is made of."""
        return dict(self._columns)


def _frozen(column: np.ndarray) -> np.ndarray:
    view: np.ndarray = np.asarray(column).view()
    view.flags.writeable = False
    return view


def filled(schema: Schema, *parts: Mapping[str, np.ndarray] | Table) -> Table:
    """One table of `schema` from parts with columns of equal length; -1 in the columns that a part lacks."""
    chunks = [part.as_dict() if isinstance(part, Table) else part for part in parts]
    lengths = [len(next(iter(chunk.values()), ())) for chunk in chunks]

    def column(name: str, kind: Any) -> np.ndarray:
        pieces = [
            np.asarray(chunk[name], dtype=kind) if name in chunk else np.full(length, -1, dtype=kind)
            for chunk, length in zip(chunks, lengths, strict=True)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype=kind), *pieces])

    return Table({name: column(name, kind) for name, kind in schema.items()})
