"""One nixnan log, streamed: its lines added up, in memory that does not grow with the file.

Lines of real logs repeat, so most are only counted: a line is read by its pattern once, when it is new. If
there are more distinct sites than the table holds, `bulk` counts without the texts, and the log says what is
not listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import MissingError, needs, not_here
from lab.rooms.nan.nixnan.grammar import FOREIGN, TORN, Event, Line, Other, read_line
from lab.rooms.nan.nixnan.opcodes import opcode_of
from lab.rooms.nan.nixnan.reading.counts import Counts
from lab.rooms.nan.nixnan.reading.report_block import ReportReader

if TYPE_CHECKING:
    from lab.rooms.nan.nixnan.reading.bulk.counter import BulkCounter
from lab.rooms.nan.nixnan.reading.blocks import Blocks
from lab.rooms.nan.nixnan.reading.gathered import Gathered, SiteTally

BULK_BYTES = 1 << 20  # what numpy counts at a time
SITE_LIMIT = 32_768  # nixnan itself stops at 131,072 instructions; real logs have some thousand sites
FUNCTION_LIMIT = 50_000
_MEMO_LINES, _MEMO_BYTES = 32_768, 16 << 20
_SAMPLES = 50
_PLACES = 8
_NAMES = 10_000
Progress = Callable[[int, int], None]


def gather(path: Path, progress: Progress | None = None) -> Gathered:
    """Read the log at `path`, compressed or not.

    progress is called with (bytes read, bytes in all). Raises MissingError if there is no file, BadDataError
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
        self.got = Gathered(path)
        self._progress, self._size = progress, path.stat().st_size
        self._counts = Counts()  # since the last fold
        self._read: dict[bytes, tuple[Line, SiteTally | None]] = {}
        self._memo_bytes = 0
        self._beyond: list[tuple[str, str, int | None]] = []  # sites the table had no room for
        self._bulk: BulkCounter | None = None

    def read(self) -> Gathered:
        with self.got.path.open("rb") as file:
            blocks = Blocks(file, self.got.path)
            for text in blocks:
                self._take(text)
                if self._bulk:
                    blocks.size = BULK_BYTES
                if self._progress:
                    self._progress(file.tell(), self._size)
        self.got.bytes = self._size
        self._fold()
        self._add_bulk()
        self.got.report.finish()
        self._ending(blocks)
        return self.got

    def _take(self, text: bytes) -> None:
        """Count the lines of `text`, which ends with a line's end; read those that are new."""
        if self._bulk and (counted := self._bulk.take(text)):
            total, numbers = counted
            self.got.error_lines += total - len(numbers)
            if len(numbers) == total:
                self._count(text)
            elif numbers:
                lines = text.split(b"\n")
                self._count(b"".join(lines[number] + b"\n" for number in numbers), numbers)
        else:
            total = self._count(text)
        self.got.lines += total
        if len(self._counts) > _MEMO_LINES or self._memo_bytes > _MEMO_BYTES:
            self._fold()

    def _count(self, text: bytes, numbers: list[int] | None = None) -> int:
        """Count lines, which are the block's `numbers` (None: from its first on), and read the new ones."""
        total, new = self._counts.add(text)
        ordered = False
        for raw, index in new:
            number = self.got.lines + 1 + (numbers[index] if numbers else index)
            line = read_line(raw)
            self._memo_bytes += len(raw)
            if isinstance(line, Other) and line.name in ReportReader.LINES:
                ordered = True
                self._counts.forget(raw)  # its meaning depends on the lines before it
                continue
            self._read[raw] = line, self._site(line, number, raw) if isinstance(line, Event) else None
            if line is TORN and len(self.got.torn) < _SAMPLES:
                self.got.torn.append((number, raw[:500].decode("utf-8", "backslashreplace")))
        if ordered:
            self.got.report.take(text.split(b"\n")[:-1])
        return total

    def _site(self, event: Event, number: int, raw: bytes) -> SiteTally | None:
        key = event.function, event.sass, event.operand
        tally = self.got.sites.get(key)
        if tally is None and len(self.got.sites) < SITE_LIMIT:
            tally = self.got.sites[key] = SiteTally()
        if tally is not None:
            tally.see(event, number, raw)
        return tally

    def _fold(self) -> None:
        """Add what was counted to what was gathered, and start counting again."""
        for raw, lines in self._counts.items():
            line, tally = self._read[raw]
            if isinstance(line, Event):
                self._add_event(line, tally, lines)
            elif isinstance(line, Other):
                words = self.got.other_lines.setdefault(line.name, Counter())
                words[line.groups if line.groups in words or len(words) < _NAMES else ()] += lines
            elif line is FOREIGN:
                self.got.foreign_lines += lines
            else:
                self.got.torn_lines += lines
        self._counts.clear()
        self._read.clear()
        self._memo_bytes = 0
        if len(self.got.sites) >= SITE_LIMIT:
            self._overflow()

    def _add_event(self, event: Event, tally: SiteTally | None, lines: int) -> None:
        got = self.got
        got.error_lines += lines
        got.cells[opcode_of(event.sass), event.operand, event.label, event.kinds] += lines
        if (of := got.functions.get(event.function)) is not None:
            of[event.kinds] = of.get(event.kinds, 0) + lines
        else:
            got.add_to_function(event.function, {event.kinds: lines}, FUNCTION_LIMIT)
        if tally is None:
            self._beyond.append((event.function, event.sass, event.operand))
            return
        tally.add(event.kinds, event.label, lines)
        if event.place and len(tally.places) < _PLACES:
            tally.places[event.place] = None

    def _overflow(self) -> None:
        with needs("analysis"):
            from lab.rooms.nan.nixnan.reading.bulk.counter import BulkCounter, hashes_of_sites

        if self._bulk is None:
            self._bulk = BulkCounter(list(self.got.sites), list(self.got.functions), FUNCTION_LIMIT)
        if self._beyond:
            self._bulk.distinct.add(hashes_of_sites(self._beyond))
            self._beyond = []

    def _add_bulk(self) -> None:
        if self._bulk is None:
            return
        got, tallies = self.got, list(self.got.sites.values())
        for row, label, kinds, lines in self._bulk.listed():
            tallies[row].add(kinds, label, lines)
        for name, lines_of in self._bulk.by_function():
            got.add_to_function(name, lines_of)
        for opcode, operand, label, kinds, lines in self._bulk.cells():
            got.cells[opcode, operand, label, kinds] += lines
        got.further_sites = self._bulk.distinct.count()

    def _ending(self, blocks: Blocks) -> None:
        """Note whether the file was cut: in its compressed stream, or within its last line."""
        got = self.got
        got.torn_lines += blocks.long_torn
        got.foreign_lines += blocks.long_foreign
        got.lines += blocks.long_torn + blocks.long_foreign
        if blocks.cut:
            got.cut = blocks.cut
        elif blocks.unfinished and read_line(blocks.unfinished) is TORN:
            got.cut = "the last line is cut"
