"""One nixnan log, streamed: its lines added up, in memory that does not grow with the file.

Lines of real logs repeat, so most are only counted: a line is read by its pattern once, when it is new. Sites
beyond those that the table holds are counted by their hashes, and the log says what is not listed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from lab.errors import MissingError, not_here
from lab.rooms.nan.nixnan.grammar import (
    FOREIGN,
    REPORT_KINDS,
    SECTION_TYPES,
    TORN,
    Event,
    Line,
    Other,
    read_line,
)
from lab.rooms.nan.nixnan.names import opcode_of
from lab.rooms.nan.nixnan.reading.blocks import Blocks

Cell = tuple[str, bool, str]  # type, memory, kind
_MAYBE = re.compile(rb".*#nixnan: (?:-|N|I|S|D)")
SITE_LIMIT = 32_768  # nixnan itself stops at 131,072 instructions; real logs have some thousand sites
FURTHER_LIMIT = 1 << 20  # sites that are counted beyond these
FUNCTION_LIMIT = 50_000
CELL_LIMIT = 65_536  # nixnan knows some hundred opcodes
OTHER_OPCODES = "other opcodes"
_MEMO_LINES, _MEMO_BYTES = 32_768, 16 << 20
_SAMPLES = 50
_PLACES = 8
_NAMES = 10_000
_WORST = {"NaN": 0, "infinity": 1, "-infinity": 1, "subnormal": 2}  # kinds of a line stand in this order
Progress = Callable[[int, int], None]


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


class Scan:
    """Everything read from one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = self.lines = self.error_lines = self.torn_lines = self.foreign_lines = 0
        self.sites: dict[tuple[str, str, int | None], SiteTally] = {}
        self.further_sites = self.unlisted_function_lines = 0  # that the tables had no room for
        self.functions: dict[str, dict[tuple[str, ...], int]] = {}  # name -> kinds -> lines
        # (opcode, operand, label, kinds) -> lines
        self.cells: Counter[tuple[str, int | None, str, tuple[str, ...]]] = Counter()
        self.other_lines: dict[str, Counter[tuple[str | None, ...]]] = {}  # what -> its words -> lines
        self.torn: list[tuple[int, str]] = []
        self.report = ReportReader()
        self.cut: str | None = None  # why the end is missing; None: it is not seen to be

    def add_to_function(self, name: str, kinds: tuple[str, ...], lines: int) -> None:
        """Count lines of a function; they are unlisted if it is new and the table is full."""
        listed = self.functions.get(name)
        if listed is None and len(self.functions) < FUNCTION_LIMIT:
            listed = self.functions[name] = {}
        if listed is None:
            self.unlisted_function_lines += lines
        else:
            listed[kinds] = listed.get(kinds, 0) + lines

    def count(self, name: str) -> int:
        return sum(self.other_lines.get(name, Counter()).values())

    def contexts(self) -> int:
        """How often nixnan began on a GPU."""
        return self.other_lines.get("context", Counter())[("Initializing",)]


def gather(path: Path, progress: Progress | None = None) -> Scan:
    """Read the log at `path`, compressed or not.

    progress is called with (bytes read, bytes in all). Raises MissingError for a missing file, BadDataError
    for one that is broken. An empty file and one without a line of nixnan's are read: that they say nothing
    is a result.
    """
    if not path.exists():
        raise not_here("no such log", path)
    if not path.is_file():
        raise MissingError("this is a folder, not a log", location=path)
    return _Reader(path, progress).read()


class _Reader:
    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.scan = Scan(path)
        self._progress, self._size = progress, path.stat().st_size
        self._counts: Counter[bytes] = Counter()  # lines since the last fold
        self._read: dict[bytes, tuple[Line, SiteTally | None]] = {}
        self._memo_bytes = 0
        self._further = set[int]()  # hashes of the sites that the table had no room for

    def read(self) -> Scan:
        with self.scan.path.open("rb") as file:
            blocks = Blocks(file, self.scan.path)
            for text in blocks:
                self._take(text)
                if self._progress:
                    self._progress(file.tell(), self._size)
        self.scan.bytes = self._size
        self._fold()
        self.scan.further_sites = len(self._further)
        self.scan.report.finish()
        self._ending(blocks)
        return self.scan

    def _take(self, text: bytes) -> None:
        """Count the lines of `text`, which ends with a line's end, and read those that are new."""
        lines = text.split(b"\n")[:-1]
        self._count(lines)
        self.scan.lines += len(lines)
        if len(self._counts) > _MEMO_LINES or self._memo_bytes > _MEMO_BYTES:
            self._fold()

    def _count(self, lines: list[bytes]) -> None:
        size = len(self._counts)
        self._counts.update(lines)
        if not (grown := len(self._counts) - size):
            return
        # A Counter keeps the order of insertion: the new lines are its last keys.
        new = list(islice(reversed(self._counts), grown))[::-1]
        # Reversed, so that of equal lines the first one's index stays.
        first_index = dict(zip(reversed(lines), range(len(lines) - 1, -1, -1), strict=True))
        has_report = False
        for raw in new:
            number = self.scan.lines + 1 + first_index[raw]
            line = read_line(raw)
            self._memo_bytes += len(raw)
            if isinstance(line, Other) and line.name in ReportReader.LINES:
                has_report = True
                del self._counts[raw]  # its meaning depends on the lines before it
                continue
            self._read[raw] = line, self._site(line, number, raw) if isinstance(line, Event) else None
            if line is TORN and len(self.scan.torn) < _SAMPLES:
                self.scan.torn.append((number, raw[:500].decode("utf-8", "backslashreplace")))
        if has_report:
            self.scan.report.take(lines)

    def _site(self, event: Event, number: int, raw: bytes) -> SiteTally | None:
        key = event.function, event.sass, event.operand
        tally = self.scan.sites.get(key)
        if tally is None and len(self.scan.sites) < SITE_LIMIT:
            tally = self.scan.sites[key] = SiteTally()
        if tally is not None:
            tally.see(event, number, raw)
        elif len(self._further) < FURTHER_LIMIT:
            self._further.add(hash(key))
        return tally

    def _fold(self) -> None:
        """Add what was counted to the scan, and start counting again."""
        for raw, lines in self._counts.items():
            line, tally = self._read[raw]
            if isinstance(line, Event):
                self._add_event(line, tally, lines)
            elif isinstance(line, Other):
                words = self.scan.other_lines.setdefault(line.name, Counter())
                words[line.groups if line.groups in words or len(words) < _NAMES else ()] += lines
            elif line is FOREIGN:
                self.scan.foreign_lines += lines
            else:
                self.scan.torn_lines += lines
        self._counts.clear()
        self._read.clear()
        self._memo_bytes = 0

    def _add_event(self, event: Event, tally: SiteTally | None, lines: int) -> None:
        scan = self.scan
        scan.error_lines += lines
        cell = opcode_of(event.sass), event.operand, event.label, event.kinds
        if len(scan.cells) >= CELL_LIMIT and cell not in scan.cells:
            cell = (OTHER_OPCODES, *cell[1:])
        scan.cells[cell] += lines
        scan.add_to_function(event.function, event.kinds, lines)
        if tally is None:
            return
        tally.add(event.kinds, event.label, lines)
        if event.place and len(tally.places) < _PLACES:
            tally.places[event.place] = None

    def _ending(self, blocks: Blocks) -> None:
        """Note whether the file was cut: in its compressed stream, or within its last line."""
        scan = self.scan
        scan.torn_lines += blocks.long_torn
        scan.foreign_lines += blocks.long_foreign
        scan.lines += blocks.long_torn + blocks.long_foreign
        if blocks.cut:
            scan.cut = blocks.cut
        elif blocks.unfinished and read_line(blocks.unfinished) is TORN:
            scan.cut = "the last line is cut"
