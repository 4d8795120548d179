"""One nixnan log, streamed: its lines added up, in memory that does not grow with the file.

Lines of real logs repeat, so a line is read by its pattern once, when it is new, and then only counted. Sites
beyond those that the table holds are counted by their hashes, and the log says what is not listed.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from lab.errors import BadDataError, MissingError, not_here
from lab.rooms.nan.nixnan.grammar import (
    FOREIGN,
    PREFIX,
    REPORT_KINDS,
    SECTION_TYPES,
    TORN,
    Event,
    Line,
    Other,
    is_store,
    opcode_of,
    read_line,
)
from lab.rooms.nan.nixnan.log import Cell, Site

ReportCell = tuple[str, bool, str]  # type, memory, kind
BLOCK_BYTES = 128 << 10  # small enough that a block and its lines stay in the processor's cache
LINE_BYTES = 1 << 20  # a longer line is not nixnan's; it is dropped piece by piece
SITE_LIMIT = 32_768  # nixnan itself stops at 131,072 instructions; real logs have some thousand sites
FURTHER_LIMIT = 1 << 20  # sites that are counted beyond these
FUNCTION_LIMIT = 50_000
CELL_LIMIT = 65_536  # nixnan knows some hundred opcodes
OTHER_OPCODES = "other opcodes"
_MEMO_LINES, _MEMO_BYTES = 32_768, 16 << 20
_SAMPLES = 50
_NAMES = 10_000
Progress = Callable[[int, int], None]


class ReportReader:
    """Report blocks, added up as their lines come. Several processes in one log write one each.

    After `finish`, `partial` is the number of blocks without their last section, and `strays` the number of
    counts outside any section.
    """

    LINES = ("report", "section", "count")

    def __init__(self) -> None:
        self.blocks = self.partial = self.strays = 0
        self.unique: dict[ReportCell, int] = {}
        self.repeats: dict[ReportCell, int | None] = {}  # None: a build that did not count them
        self._section: tuple[str, bool] | None = None
        self._block: set[ReportCell] | None = None  # the cells of the block that is being read

    def take(self, line: Other) -> None:
        if line.name == "report":
            self._begin()
        elif line.name == "section":
            if self._block is None:
                self._begin()
            self._section = SECTION_TYPES[str(line.groups[0])], line.groups[1] is not None
        else:
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


class Scan:
    """Everything read from one log, compressed or not.

    progress is called with (bytes read, bytes in all). Raises MissingError for a missing file, BadDataError
    for one that is broken. An empty file and one without a line of nixnan's are read: that they say nothing
    is a result.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        if not path.exists():
            raise not_here("no such log", path)
        if not path.is_file():
            raise MissingError("this is a folder, not a log", location=path)
        self.path, self.size_bytes = path, path.stat().st_size
        self.lines = self.error_lines = self.torn_lines = self.foreign_lines = 0
        self.sites: dict[tuple[str, str, int | None], Site] = {}
        self.further_sites = set[int]()  # hashes of those that the table had no room for
        self.unlisted_function_lines = 0
        self.functions: dict[str, dict[tuple[str, ...], int]] = {}  # name -> kinds -> lines
        self.cells: Counter[Cell] = Counter()
        self.other_lines: dict[str, Counter[tuple[str | None, ...]]] = {}  # what -> its words -> lines
        self.torn: list[tuple[int, str]] = []
        self.report = ReportReader()
        self.cut: str | None = None  # why the end is missing; None: it is not seen to be
        self._counts: Counter[bytes] = Counter()  # lines since the last fold
        self._read: dict[bytes, tuple[Line, Site | None]] = {}  # what they are
        self._read_bytes = 0
        with path.open("rb") as file:
            is_compressed = file.peek(2)[:2] == b"\x1f\x8b"
            for lines in self._lines(gzip.GzipFile(fileobj=file) if is_compressed else file):
                self._take(lines)
                if progress:
                    progress(file.tell(), self.size_bytes)
        self._fold()
        self.report.finish()

    def words(self, name: str) -> list[tuple[tuple[str, ...], int]]:
        """(words, lines) of each distinct line of this name; "" for a word that its build omits."""
        counts = self.other_lines.get(name, Counter())
        return [(tuple(word or "" for word in words), lines) for words, lines in counts.items() if words]

    def first_words(self, *names: str) -> list[str]:
        return [words[0] for name in names for words, _ in self.words(name)]

    def contexts(self) -> int:
        """How often nixnan began on a GPU."""
        return dict(self.words("context")).get(("Initializing",), 0)

    def cell_lines(self) -> Counter[ReportCell]:
        """Lines of each (type as printed, memory, kind); a line of two kinds counts for both."""
        lines: Counter[ReportCell] = Counter()
        for (opcode, _, label, kinds), count in self.cells.items():
            for kind in kinds:
                lines[label, is_store(opcode), kind] += count
        return lines

    def _lines(self, file: io.BufferedReader | gzip.GzipFile) -> Iterator[list[bytes]]:
        """All lines, block by block; of those too long for nixnan only whether its prefix was in them."""
        unfinished, skipping, is_nixnan = b"", False, False
        while chunk := self._chunk(file):
            *lines, unfinished = (unfinished + chunk).split(b"\n")
            if skipping:
                is_nixnan = is_nixnan or PREFIX in (lines[0] if lines else unfinished)
                if not lines:
                    unfinished = unfinished[-len(PREFIX) :]
                    continue
                self._drop(is_nixnan)
                skipping = False
                del lines[0]  # the end of the long line
            yield lines
            if len(unfinished) > LINE_BYTES // 2:
                # A hole of NULs stands where another process cut the file.
                unfinished = unfinished.replace(b"\0", b"")
                if len(unfinished) > LINE_BYTES:
                    skipping, is_nixnan, unfinished = True, PREFIX in unfinished, unfinished[-len(PREFIX) :]
        if skipping:
            self._drop(is_nixnan)
        elif unfinished:
            if not self.cut and read_line(unfinished) is TORN:
                self.cut = "the last line is cut"
            yield [unfinished]

    def _chunk(self, file: io.BufferedReader | gzip.GzipFile) -> bytes:
        """Some bytes; of a cut .gz what can be read. Raises BadDataError for a broken one."""
        try:
            return file.read1(BLOCK_BYTES)
        except EOFError:
            self.cut = "the compressed file is cut"
            return b""
        except (zlib.error, gzip.BadGzipFile) as error:
            raise BadDataError(
                f"the compressed log is broken: {error}",
                location=self.path,
                fix="copy it again, or inflate what can be with zcat",
            ) from error

    def _drop(self, is_nixnan: bool) -> None:
        self.lines += 1
        self.torn_lines += is_nixnan
        self.foreign_lines += not is_nixnan

    def _take(self, lines: list[bytes]) -> None:
        num_distinct = len(self._counts)
        self._counts.update(lines)
        if len(self._counts) > num_distinct:
            for number, raw in enumerate(lines, start=self.lines + 1):
                if raw not in self._read:
                    self._take_new(raw, number)
        self.lines += len(lines)
        if len(self._read) > _MEMO_LINES or self._read_bytes > _MEMO_BYTES:
            self._fold()

    def _take_new(self, raw: bytes, number: int) -> None:
        line = read_line(raw)
        if isinstance(line, Other) and line.name in ReportReader.LINES:
            self.report.take(line)
            self._counts.pop(raw, None)  # its meaning depends on the lines before it: always new
            return
        if line is TORN and len(self.torn) < _SAMPLES:
            self.torn.append((number, raw[:500].decode("utf-8", "backslashreplace")))
        self._read[raw] = line, self._site(line, number, raw) if isinstance(line, Event) else None
        self._read_bytes += len(raw)

    def _site(self, event: Event, number: int, raw: bytes) -> Site | None:
        key = event.function, event.sass, event.operand
        site = self.sites.get(key)
        if site is None and len(self.sites) < SITE_LIMIT:
            site = self.sites[key] = Site(*key, file=str(self.path))
        if site is not None:
            site.see(event, number, raw)
        elif len(self.further_sites) < FURTHER_LIMIT:
            self.further_sites.add(hash(key))
        return site

    def _fold(self) -> None:
        """Add what was counted to the scan, and start counting again."""
        for raw, lines in self._counts.items():
            self._add(*self._read[raw], lines)
        self._counts.clear()
        self._read.clear()
        self._read_bytes = 0

    def _add(self, line: Line, site: Site | None, lines: int) -> None:
        if isinstance(line, Event):
            self.error_lines += lines
            cell = opcode_of(line.sass), line.operand, line.label, line.kinds
            if len(self.cells) >= CELL_LIMIT and cell not in self.cells:
                cell = (OTHER_OPCODES, *cell[1:])
            self.cells[cell] += lines
            of_function = self.functions.get(line.function)
            if of_function is None and len(self.functions) < FUNCTION_LIMIT:
                of_function = self.functions[line.function] = {}
            if of_function is None:
                self.unlisted_function_lines += lines
            else:
                of_function[line.kinds] = of_function.get(line.kinds, 0) + lines
            if site is not None:
                site.add(line.kinds, line.label, lines)
        elif isinstance(line, Other):
            words = self.other_lines.setdefault(line.name, Counter())
            words[line.groups if line.groups in words or len(words) < _NAMES else ()] += lines
        elif line is FOREIGN:
            self.foreign_lines += lines
        else:
            self.torn_lines += lines
