"""Cut a Kineto file into runs of whole events, with bounded memory and without decoding them.

A piece is the text of consecutive elements of `traceEvents`, the commas between them included. The rest of
the file (before and after that array) is `EventPieces.frame`, itself a small JSON document.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import Any

from lab.errors import BadDataError, MissingError, not_here

inflater: ModuleType
try:
    from isal import isal_zlib as inflater
except ModuleNotFoundError:  # igzip is 2-4 times faster, but zlib reads the same files
    inflater = zlib

# Small enough that a piece and its decoded events stay in the processor's cache: a third faster than 4 MiB.
PIECE_BYTES = 512 << 10
# Larger than any real event or header: a bound on the memory that a hostile file can take.
LIMIT_BYTES = 64 << 20
_INFLATE_ERRORS = (zlib.error, getattr(inflater, "IsalError", zlib.error))
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Piece:
    """Text of whole events; `offset` is its first byte in the (inflated) file."""

    text: bytes
    offset: int


@dataclass(frozen=True)
class Elements:
    """Where the objects of an array lie in a text.

    stray: the first byte outside objects, commas and spaces, or -1.
    """

    spans: list[tuple[int, int]]
    stray: int


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the document around the events (json's `object_pairs_hook`). Raises ValueError where it
    has traceEvents twice: readers of JSON take the last of equal names, and the first was read."""
    if sum(name == "traceEvents" for name, _ in pairs) > 1:
        raise ValueError("traceEvents is there twice")
    return dict(pairs)


class EventPieces:
    """The pieces of one file, to be iterated once; afterwards `frame` and `cut` are set.

    header is what stands before the events, frame the document with an empty traceEvents, cut says why the
    end is missing (None: it is not).
    Raises MissingError for no file; BadDataError for no traceEvents, and for a cut file unless `salvage`.
    """

    def __init__(self, path: Path, *, salvage: bool, piece_bytes: int = PIECE_BYTES) -> None:
        self.path = path
        self.salvage = salvage
        self.header = b""
        self.frame = b""
        self.cut: str | None = None
        self.packed = False
        self._buffer = b""
        self._offset = 0
        self._piece = Piece(b"", 0)
        self._gap = b""
        self._chunks = self._inflated(piece_bytes)

    def __iter__(self) -> Iterator[Piece]:
        self.header = header = self._header()
        while not self._buffer.startswith(b"]"):
            has_more = self._fill()
            room = has_more and len(self._buffer) < LIMIT_BYTES
            end = last_boundary(self._buffer) if room else 0
            if room and not end:
                continue
            if not end:
                spans = elements(self._buffer).spans
                end = spans[-1][1] if spans else 0
            if not end and not self._buffer.startswith(b"]"):
                self._ends_early(has_more)
                self.frame = header + b"]}"
                return
            if end:
                yield self._take(end)
        self.frame = header + self._footer()

    def give_back(self, end: int) -> None:
        """The decoder found that the last piece holds whole events only up to its byte `end`."""
        self._buffer = self._piece.text + self._gap + self._buffer
        self._offset = self._piece.offset
        self._take(end)

    def bad(self, fault: str, offset: int) -> BadDataError:
        """The error for this file at byte `offset` of its text."""
        position = f"byte {offset} of the inflated text" if self.packed else f"byte {offset}"
        fix = "record or copy the trace again; for a sweep, `lab gemm ... --salvage` keeps the readable part"
        return BadDataError(fault, location=f"{self.path}, {position}", fix=fix)

    def _header(self) -> bytes:
        while True:
            has_more = self._fill()
            end = _events_start(self._buffer)
            if end > 0:
                self._take(end)
                return self._piece.text.removeprefix(_BOM)
            if not has_more or end < 0 or len(self._buffer) > LIMIT_BYTES:
                raise self._foreign(is_whole=not has_more)

    def _foreign(self, *, is_whole: bool) -> BadDataError:
        if self.cut:
            return self.bad(f"the file is cut before its first event: {self.cut}", len(self._buffer))
        if not self._buffer.lstrip(_BOM + _SPACE):
            return self.bad("the file is empty", 0)
        depth = _depth(self._buffer) if is_whole else 0
        if depth > 0 or self._buffer == b"\x1f":  # one byte of gzip's two
            return self.bad("the file is cut before its first event", len(self._buffer))
        fix = "give a trace that torch.profiler wrote (export_chrome_trace or tensorboard_trace_handler)"
        return BadDataError(
            "not a Kineto trace: no JSON object with a list traceEvents", location=self.path, fix=fix
        )

    def _footer(self) -> bytes:
        while self._fill():
            if len(self._buffer) > LIMIT_BYTES:
                raise self.bad("the text after traceEvents is too large", self._offset)
        if self.cut and not self.salvage:
            raise self.bad(self.cut, self._offset + len(self._buffer))
        return self._buffer

    def _ends_early(self, has_more: bool) -> None:
        offset = self._offset + len(self._buffer)
        if has_more:
            raise self.bad(f"one event is larger than {LIMIT_BYTES >> 20} MiB, or is not JSON", self._offset)
        self.cut = self.cut or "the file ends inside traceEvents"
        if not self.salvage:
            raise self.bad(f"the trace is truncated: {self.cut}", offset)
        self.cut = f"{self.cut} (byte {offset}): events after that are missing"

    def _fill(self) -> bool:
        """Append one chunk to the buffer; False once the file has ended."""
        chunk = next(self._chunks, b"")
        self._buffer += chunk
        return bool(chunk)

    def _take(self, end: int) -> Piece:
        self._piece = Piece(self._buffer[:end], self._offset)
        remainder = self._buffer[end:]
        self._buffer = remainder.lstrip(_SPACE + b",")
        self._gap = remainder[: len(remainder) - len(self._buffer)]
        self._offset += end + len(self._gap)
        return self._piece

    def _inflated(self, size: int) -> Iterator[bytes]:
        self.packed = start_of(self.path, 2)[1]
        try:
            # zlib drops the output of the call that meets damage, so calls are small under salvage.
            yield from inflated(self.path, size, 1024 if self.salvage and self.packed else None)
        except BadDataError as error:
            self.cut = error.problem


def last_boundary(text: bytes) -> int:
    """Byte after the last `}` outside strings that a comma and a `{` follow; 0 if there is none.

    `text` must begin outside a string. Such a place separates two events, unless an event holds a list of
    objects or the array has ended before it; then decoding fails, and `elements` finds the exact places.
    """
    brace = text.rfind(b"{")
    while brace > 0:
        head = text[max(0, brace - 4096) : brace].rstrip(_SPACE)
        if head.endswith(b","):
            head = head[:-1].rstrip(_SPACE)
            end = max(0, brace - 4096) + len(head)
            if head.endswith(b"}") and not _inside_string(text[:end]):
                return end
        brace = text.rfind(b"{", 0, brace)
    return 0


def elements(text: bytes) -> Elements:
    """The exact method: walk all strings and brackets inside an array. Source: RFC 8259."""
    spans: list[tuple[int, int]] = []
    depth, start, end, stray = 0, 0, 0, -1
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if depth == 0:
            if stray < 0 and (text[end : token.start()].strip(_SPACE + b",") or mark not in (b"{", b"]")):
                stray = end
            if mark == b"]":
                return Elements(spans, stray)
            start = token.start()
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                end = token.end()
                spans.append((start, end))
        elif depth == 0:
            end = token.end()
    return Elements(spans, stray)


def _events_start(text: bytes) -> int:
    """Byte after the `[` of the top-level traceEvents; 0: not yet seen; -1: not a JSON object."""
    start = text[:4096].removeprefix(_BOM).lstrip(_SPACE)
    if start and not start.startswith(b"{"):
        return -1
    for match in _EVENTS_KEY.finditer(text):
        if _depth(text[: match.start()]) == 1:
            return match.end()
    return 0


def _depth(text: bytes) -> int:
    """How many brackets are open at the end of `text`."""
    marks = [token.group() for token in _TOKEN.finditer(text)]
    return sum(mark in (b"{", b"[") for mark in marks) - sum(mark in (b"}", b"]") for mark in marks)


def _inside_string(text: bytes) -> bool:
    """Whether a string is open at the end of `text`, which begins outside of any."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return text.count(b'"') % 2 == 1


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """A file to read. Raises MissingError where it cannot be read, also within the block."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise not_here("no such file", path) from error
    except OSError as error:
        raise MissingError(f"cannot be read: {error.strerror or error}", location=path) from error


def inflated(path: Path, size: int = 1 << 20, step: int | None = None) -> Iterator[bytes]:
    """The content of a file, inflated if gzipped, at most `size` bytes at a time, of which `step` are read.

    Raises MissingError where it cannot be read; BadDataError for damaged gzip.
    """
    with _opened(path) as file:
        packed = file.peek(2).startswith(_GZIP)
        chunks = iter(lambda: file.read(step or (size // 8 if packed else size)), b"")
        if not packed:
            yield from chunks
            return
        inflate = inflater.decompressobj(31)
        for chunk in chunks:
            while chunk:
                if inflate.eof:  # gzip members may follow each other
                    inflate = inflater.decompressobj(31)
                try:
                    text = inflate.decompress(chunk, size)
                except _INFLATE_ERRORS as error:
                    raise BadDataError(f"the gzip data are damaged ({error})", location=path) from error
                if text:
                    yield text
                chunk = inflate.unused_data.lstrip(b"\0") if inflate.eof else inflate.unconsumed_tail
        if not inflate.eof:
            raise BadDataError("the gzip stream ends before its end mark", location=path)


def read_whole(path: Path, most_bytes: int, fix: str = "") -> bytes:
    """The content of a file, `inflated`. Raises BadDataError for more than most_bytes."""
    content = bytearray()
    for chunk in inflated(path):
        content += chunk
        if len(content) > most_bytes:
            raise BadDataError(f"larger than {most_bytes / (1 << 30):.3g} GiB", location=path, fix=fix)
    return bytes(content)


MOST_FILES = 16_384  # of one folder


def files_in(folder: Path, fix: str) -> list[Path]:
    """The files in a folder by name, without hidden ones. Raises BadDataError for too many."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if len(files) > MOST_FILES:
        problem = f"{len(files):,} files in one folder: more than {MOST_FILES:,}"
        raise BadDataError(problem, location=folder, fix=fix)
    return files


def start_of(path: Path, size: int) -> tuple[bytes, bool]:
    """The first bytes of a file, `inflated` (b"" where its gzip is damaged); and whether it is gzipped."""
    with _opened(path) as file:
        start = file.read(size)
    if not start.startswith(_GZIP):
        return start, False
    start = b""
    try:
        for chunk in inflated(path, size):
            start += chunk
            if len(start) >= size:
                break
    except BadDataError:
        return b"", True
    return start[:size], True


def is_json(path: Path) -> bool:
    """Whether a file begins as JSON, or is damaged gzip, of which its reader says where."""
    start, is_packed = start_of(path, 4096)
    return start.lstrip(_BOM + _SPACE)[:1] in (b"{", b"[") or (is_packed and not start)
