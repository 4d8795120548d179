"""The report that nixnan writes when a process ends: unique events and repeats of each type and kind."""

from __future__ import annotations

import re

from lab.rooms.nan.nixnan.grammar import REPORT_KINDS, SECTION_TYPES, Other, read_line

Cell = tuple[str, bool, str]  # type, memory, kind


class ReportReader:
    """Report blocks, added up as their lines come. Several processes in one log write one each.

    After `finish`, `partial` is the number of blocks without their last section, and `strays` the number of
    counts outside any section.
    """

    LINES = ("report", "section", "count")

    def __init__(self) -> None:
        self.blocks = self.partial = self.strays = 0
        self.unique: dict[Cell, int] = {}
        self.repeats: dict[Cell, int | None] = {}  # None: a build that did not count them
        self._section: tuple[str, bool] | None = None
        self._block: set[Cell] | None = None  # the cells of the block that is being read

    def take(self, lines: list[bytes]) -> None:
        for raw in lines:
            if not _MAYBE.match(raw) or not isinstance(line := read_line(raw), Other):
                continue
            if line.name == "report":
                self._begin()
            elif line.name == "section":
                if self._block is None:
                    self._begin()
                self._section = SECTION_TYPES[str(line.groups[0])], line.groups[1] is not None
            elif line.name == "count":
                self._count(*line.groups)

    def finish(self) -> None:
        """Count the block as partial unless its last section is there.

        Builds differ: each ends with its FP64 section, those with -Infinity with the FP64 memory section.
        """
        if self._block is not None:
            memory = any(in_memory or kind == "-infinity" for _, in_memory, kind in self._block)
            self.partial += (("f64", True, "NaN") if memory else ("f64", False, "div0")) not in self._block
        self._block = None

    def _begin(self) -> None:
        self.finish()
        self.blocks, self._section, self._block = self.blocks + 1, None, set()

    def _count(self, kind: str | None, unique: str | None, repeats: str | None) -> None:
        if self._section is None or self._block is None:
            self.strays += 1
            return
        cell = (*self._section, REPORT_KINDS[str(kind)])
        self._block.add(cell)
        self.unique[cell] = self.unique.get(cell, 0) + int(unique or 0)
        self.repeats[cell] = None if repeats is None else (self.repeats.get(cell) or 0) + int(repeats)


_MAYBE = re.compile(rb".*#nixnan: (?:-|N|I|S|D)")
