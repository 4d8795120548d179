"""A walk through a JSON document that is larger than memory: values are skipped or decoded, lists of objects
in pieces."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from lab.errors import BadDataError, MissingError, not_here
from lab.recordings.pieces import last_boundary

# A number beyond it is an error of the decoder rather than of a column.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Corr(msgspec.Struct, gc=False, frozen=True):
    internal: Int64 = -1


class Handle(msgspec.Struct, gc=False, frozen=True):
    handle: Int64 = -1


class Sizes(msgspec.Struct, gc=False, frozen=True):
    x: Int64 = -1
    y: Int64 = -1
    z: Int64 = -1


class DispatchInfo(msgspec.Struct, gc=False, frozen=True):
    kernel_id: Int64
    agent_id: Handle = Handle()
    dispatch_id: Int64 = -1
    group_segment_size: Int64 = -1
    workgroup_size: Sizes = Sizes()
    grid_size: Sizes = Sizes()


class Call(msgspec.Struct, gc=False, frozen=True):
    """An API call or a marker."""

    start_timestamp: Int64
    end_timestamp: Int64
    kind: Int64 = -1
    operation: Int64 = -1
    thread_id: Int64 = -1
    correlation_id: Corr = Corr()


class Dispatch(msgspec.Struct, gc=False, frozen=True):
    start_timestamp: Int64
    end_timestamp: Int64
    dispatch_info: DispatchInfo
    correlation_id: Corr = Corr()
    stream_id: Handle = Handle()
    graph_exec_id: Handle = Handle()
    graph_node_id: Handle = Handle()


class Copy(msgspec.Struct, gc=False, frozen=True):
    start_timestamp: Int64
    end_timestamp: Int64
    kind: Int64 = -1
    operation: Int64 = -1
    correlation_id: Corr = Corr()
    stream_id: Handle = Handle()
    dst_agent_id: Handle = Handle()
    src_agent_id: Handle = Handle()
    bytes_: Int64 = msgspec.field(name="bytes", default=-1)
    graph_exec_id: Handle = Handle()
    graph_node_id: Handle = Handle()


class Symbol(msgspec.Struct, gc=False, frozen=True):
    kernel_id: Int64
    formatted_kernel_name: str = ""
    kernel_name: str = ""
    group_segment_size: Int64 = -1
    arch_vgpr_count: Int64 = -1
    accum_vgpr_count: Int64 = -1


class Kind(msgspec.Struct, frozen=True):
    kind: str = ""
    operations: list[str] = []


class Marker(msgspec.Struct, gc=False, frozen=True):
    key: Int64
    value: str


class Process(msgspec.Struct, frozen=True):
    """Of the metadata only this."""

    pid: Int64 = -1
    init_time: Int64 = -1
    fini_time: Int64 = -1


Columns = dict[str, np.ndarray]
_TIMED = {
    "start_ns": "start_timestamp",
    "end_ns": "end_timestamp",
    "corr": "correlation_id.internal",
}
_OF_STREAM = {
    "stream": "stream_id.handle",
    "graph": "graph_exec_id.handle",
    "graph_node": "graph_node_id.handle",
}
_INFO = {
    "agent": "agent_id.handle",
    "kernel": "kernel_id",
    "dispatch": "dispatch_id",
    "shared": "group_segment_size",
    **{f"block_{axis}": f"workgroup_size.{axis}" for axis in "xyz"},
    **{f"items_{axis}": f"grid_size.{axis}" for axis in "xyz"},
}
_PATHS: dict[str, dict[str, str]] = {
    "call": _TIMED | {"kind": "kind", "operation": "operation", "tid": "thread_id"},
    "dispatch": _TIMED | _OF_STREAM | {name: f"dispatch_info.{path}" for name, path in _INFO.items()},
    "copy": _TIMED
    | _OF_STREAM
    | {"kind": "kind", "operation": "operation", "bytes": "bytes_"}
    | {"target": "dst_agent_id.handle", "origin": "src_agent_id.handle"},
}
CALLS = msgspec.json.Decoder(list[Call])
DISPATCHES = msgspec.json.Decoder(list[Dispatch])
COPIES = msgspec.json.Decoder(list[Copy])
MARKERS = msgspec.json.Decoder(list[Marker])
SYMBOLS = msgspec.json.Decoder(list[Symbol])


def columns_of(record: str, rows: Sequence[Any]) -> Columns:
    """Columns (n,) of int64 of one piece's rows; record is `call`, `dispatch` or `copy`."""
    return {
        name: np.fromiter(map(attrgetter(path), rows), dtype=np.int64, count=len(rows))
        for name, path in _PATHS[record].items()
    }


def together(record: str, pieces: Sequence[Columns]) -> Columns:
    """The columns of all pieces."""
    empty = np.empty(0, dtype=np.int64)
    return {name: np.concatenate([empty, *(piece[name] for piece in pieces)]) for name in _PATHS[record]}


CHUNK_BYTES = 1 << 20
# Larger than any single value that the tool writes: a bound on the memory that a hostile file can take.
LIMIT_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
_BLACK = re.compile(rb"[^ \t\r\n]")
_PLAIN = re.compile(rb"[^,\]}\s]+")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|"', re.DOTALL)


T = TypeVar("T")


class Scan:
    """A position in one document, plain or gzip; methods move it past what they return.

    Raises MissingError without the file; BadDataError, with the byte, where the document ends early, is
    damaged or holds a value larger than LIMIT_BYTES.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer, self._next = b"", 0  # _next: the first byte of the buffer that is not consumed
        self._dropped = 0  # bytes of the document before the buffer
        self._chunks = _chunks(path, CHUNK_BYTES)
        self._fill()
        if self._buffer.startswith(_BOM):
            self._next = len(_BOM)

    def members(self) -> Iterator[str]:
        """The keys of an object; the value of each must be consumed before the next."""
        self._take(b"{")
        while self._peek() != b"}":
            key = self.value()
            self._take(b":")
            yield str(key)
            self._comma(b"}")
        self._take(b"}")

    def items(self) -> Iterator[int]:
        """The positions of a list; its element must be consumed before the next."""
        self._take(b"[")
        index = 0
        while self._peek() != b"]":
            yield index
            index += 1
            self._comma(b"]")
        self._take(b"]")

    def is_list(self) -> bool:
        return self._peek() == b"["

    def is_object(self) -> bool:
        return self._peek() == b"{"

    def value(self, kind: Any = Any) -> Any:
        """The next value, decoded as `kind`."""
        text = self._text()
        try:
            return msgspec.json.decode(text, type=kind)
        except (ValueError, RecursionError) as error:
            raise self.bad(f"not what rocprofv3 writes: {error}", self._offset - len(text)) from error

    def skip(self) -> None:
        for _ in self._value_parts():
            pass

    def rows(self, decoder: msgspec.json.Decoder[list[T]]) -> Iterator[list[T]]:
        """The objects of a list, decoded, in pieces."""
        self._take(b"[")
        while self._peek() != b"]":
            if self._peek() != b"{":
                raise self.bad("a list of objects holds something else")
            yield self._piece(decoder)
            self._comma(b"]")
        self._take(b"]")

    def _piece(self, decoder: msgspec.json.Decoder[list[T]]) -> list[T]:
        while len(self._buffer) - self._next < CHUNK_BYTES and self._fill():
            pass
        text = self._buffer[self._next :]
        if end := last_boundary(text):
            try:
                rows = decoder.decode(b"[" + text[:end] + b"]")
            except (ValueError, RecursionError):
                pass  # The list ends before that place, or it lies inside an object.
            else:
                self._next += end
                return rows
        end = self._whole_objects()
        try:
            rows = decoder.decode(b"[" + self._buffer[self._next : self._next + end] + b"]")
        except (ValueError, RecursionError) as error:
            raise self.bad(f"rows that rocprofv3 does not write: {error}") from error
        self._next += end
        return rows

    def _whole_objects(self) -> int:
        """How many bytes the whole objects at the buffer's beginning take; reads on until there is one."""
        while True:
            depth, end = 0, self._next
            for token in _tokens(self._buffer, self._next):
                mark = token.group()
                if depth == 0 and self._buffer[end : token.start()].strip(b" \t\r\n,"):
                    raise self.bad("text between objects", self._dropped + end)
                depth += _step(mark)
                if depth < 0:
                    break
                if depth == 0:
                    end = token.end()
            if end > self._next:
                return end - self._next
            if len(self._buffer) - self._next > LIMIT_BYTES:
                raise self.bad(f"one object is larger than {LIMIT_BYTES >> 20} MiB")
            self._more()

    def bad(self, problem: str, offset: int | None = None) -> BadDataError:
        location = f"{self.path}, byte {self._offset if offset is None else offset} of the text"
        return BadDataError(problem, location=location, fix="record or copy the file again")

    @property
    def _offset(self) -> int:
        return self._dropped + self._next

    def _text(self) -> bytes:
        parts, size = [], 0
        for part in self._value_parts():
            parts.append(part)
            size += len(part)
            if size > LIMIT_BYTES:
                raise self.bad(f"one value is larger than {LIMIT_BYTES >> 20} MiB")
        return b"".join(parts)

    def _value_parts(self) -> Iterator[bytes]:
        """The text of the next value, in parts that end outside of strings."""
        if self._peek() not in (b'"', b"{", b"["):
            yield self._scalar()
            return
        depth = 0
        while True:
            end = self._next
            for token in _tokens(self._buffer, self._next):
                end = token.end()
                depth += _step(token.group())
                if depth <= 0:
                    yield self._consume(end)
                    return
            # What follows the last token may be the beginning of a text.
            quote = self._buffer.find(b'"', end)
            end = quote if quote >= 0 else len(self._buffer)
            if len(self._buffer) - end > LIMIT_BYTES:
                raise self.bad(f"one text is larger than {LIMIT_BYTES >> 20} MiB")
            yield self._consume(end)
            self._more()

    def _scalar(self) -> bytes:
        while (match := _PLAIN.match(self._buffer, self._next)) and match.end() == len(self._buffer):
            if match.end() - self._next > 1 << 16 or not self._fill():
                break
        if not match:
            raise self.bad("a value is missing")
        return self._consume(match.end())

    def _consume(self, end: int) -> bytes:
        text = self._buffer[self._next : end]
        self._next = end
        return text

    def _comma(self, closing: bytes) -> None:
        if self._peek() == b",":
            self._next += 1
        elif self._peek() != closing:
            raise self.bad(f"a comma or {closing.decode()} is missing")

    def _take(self, wanted: bytes) -> None:
        if self._peek() != wanted:
            raise self.bad(f"{wanted.decode()} is missing")
        self._next += 1

    def _peek(self) -> bytes:
        """The next byte that is not a space."""
        while not (match := _BLACK.search(self._buffer, self._next)):
            self._next = len(self._buffer)
            self._more()
        self._next = match.start()
        return match.group()

    def _more(self) -> None:
        if not self._fill():
            raise self.bad("the file is truncated: it ends inside a value", self._dropped + len(self._buffer))

    def _fill(self) -> bool:
        chunk = next(self._chunks, b"")
        if chunk:
            self._dropped += self._next
            self._buffer, self._next = self._buffer[self._next :] + chunk, 0
        return bool(chunk)


def _tokens(text: bytes, offset: int) -> Iterator[re.Match[bytes]]:
    """Strings and brackets, up to a string that does not end in `text`: it may hold brackets."""
    for token in _TOKEN.finditer(text, offset):
        if token.group() == b'"':
            return
        yield token


def _step(mark: bytes) -> int:
    return (mark in (b"{", b"[")) - (mark in (b"}", b"]"))


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            file = gzip.GzipFile(fileobj=plain) if packed else plain
            yield from iter(lambda: file.read(size), b"")
    except FileNotFoundError as error:
        raise not_here("no such file", path) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadDataError(f"the gzip file is truncated or damaged: {error}", location=path) from error
    except OSError as error:
        raise MissingError(f"cannot be read: {error.strerror}", location=path) from error
