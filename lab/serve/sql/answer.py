"""What a question and its answer look like between the two processes."""

from __future__ import annotations

from typing import Any

import msgspec


class Question(msgspec.Struct, frozen=True, kw_only=True):
    root: str
    sql: str  # "": only the list of tables
    most_rows: int = 1000
    timeout_s: float = 30.0
    memory_mb: int = 512


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A table that can be asked; columns are known for those that lab makes itself."""

    name: str
    what: str
    files: int = 0
    columns: tuple[str, ...] = ()


class Answer(msgspec.Struct, kw_only=True):
    """rows hold JSON values; NaN and infinities are the texts `nan`, `inf`, `-inf`.

    cut: there are more rows than asked for, or than an answer holds; notes: what was left out. error is empty
    where the query succeeded.
    """

    columns: list[str] = []
    types: list[str] = []
    rows: list[list[Any]] = []
    cut: bool = False
    notes: list[str] = []
    error: str = ""
    limited: bool = False  # the error is a limit of time or memory, not the question's
    tables: list[TableInfo] = []
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return not (self.cut or self.notes or self.error)
