"""What the lines of one nixnan log add up to, before it becomes a `Log`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from lab.rooms.nan.nixnan.grammar import Event
from lab.rooms.nan.nixnan.reading.report_block import ReportReader


class SiteTally:
    """The lines of one site: (function, SASS, operand)."""

    __slots__ = ("by", "first_of", "line", "lines", "places", "rank", "raw")

    def __init__(self) -> None:
        self.lines, self.line, self.raw, self.rank = 0, 0, "", len(_WORST)
        self.by: dict[tuple[tuple[str, ...], str], int] = {}  # (kinds, label) -> lines
        self.first_of: dict[str, int] = {}  # kind -> its first line
        self.places: dict[str, None] = {}

    def see(self, event: Event, number: int, raw: bytes) -> None:
        """Take a new line of this site; the worst one is kept to be shown."""
        for kind in event.kinds:
            self.first_of.setdefault(kind, number)
        if (rank := _WORST.get(event.kinds[0], len(_WORST) - 1)) < self.rank:
            self.line, self.raw, self.rank = number, raw.decode("utf-8", "backslashreplace").strip(), rank

    def add(self, kinds: tuple[str, ...], label: str, lines: int) -> None:
        self.lines += lines
        self.by[kinds, label] = self.by.get((kinds, label), 0) + lines


_WORST = {"NaN": 0, "infinity": 1, "-infinity": 1, "subnormal": 2}  # kinds of a line stand in this order


class Gathered:
    """Everything read from one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = self.lines = self.error_lines = self.torn_lines = self.foreign_lines = 0
        self.sites: dict[tuple[str, str, int | None], SiteTally] = {}
        self.further_sites = self.unlisted_function_lines = 0
        self.functions: dict[str, dict[tuple[str, ...], int]] = {}  # name -> kinds -> lines
        self.cells: Counter[tuple[str, int | None, str, tuple[str, ...]]] = (
            Counter()
        )  # opcode, operand, label, kinds
        self.other_lines: dict[str, Counter[tuple[str | None, ...]]] = {}  # what -> its words -> lines
        self.torn: list[tuple[int, str]] = []
        self.report = ReportReader()
        self.cut: str | None = None  # why the end is missing; None: it is not seen to be

    def add_to_function(self, name: str | None, lines: Mapping[tuple[str, ...], int], limit: int = 0) -> None:
        """Count lines (by kinds) of a function; unlisted without a name, or if new and beyond the limit."""
        of = self.functions.get(name) if name is not None else None
        if of is not None:
            for kinds, count in lines.items():
                of[kinds] = of.get(kinds, 0) + count
        elif name is None or (limit and len(self.functions) >= limit):
            self.unlisted_function_lines += sum(lines.values())
        else:
            self.functions[name] = dict(lines)

    def count(self, name: str) -> int:
        return sum(self.other_lines.get(name, Counter()).values())

    def contexts(self) -> int:
        """How often nixnan began on a GPU."""
        return self.other_lines.get("context", Counter())[("Initializing",)]
