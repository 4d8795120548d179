"""Protobuf's wire format in numpy: the fields of many messages at once.

Messages are decoded in lockstep, one field of each per turn, so the cost is a few array operations per turn
and not a Python call per field (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lab.recordings.capture import Strings

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
PADDING = 16  # zero bytes behind the data, so that no read needs a check of its own
_FEW = 48  # messages below which serial decoding is faster than lockstep
_RAW_FROM = 64  # texts from which slices of bytes are faster than slices of the array


class BadWire(ValueError):
    """Bytes that are not a protobuf message; `offset` is where the message begins."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"not a protobuf message at offset {offset}")
        self.offset = offset


class Fields(NamedTuple):
    """Fields (n,) of messages, in the order of the messages and within one as written.

    message is the index of the message; value the number (uint64 as int64), or of a field of bytes its
    offset, whose end is `end`.
    """

    message: np.ndarray
    number: np.ndarray
    value: np.ndarray
    end: np.ndarray

    def of(self, number: int) -> Fields:
        """The fields of one number."""
        return self.where(self.number == number)

    def where(self, mask: np.ndarray) -> Fields:
        return Fields(*(column[mask] for column in self))

    def column(self, number: int, length: int, default: int = -1) -> np.ndarray:
        """The value (length,) of a field in each message; the last one counts, as the format says."""
        values = np.full(length, default, dtype=np.int64)
        mask = self.number == number
        values[self.message[mask]] = self.value[mask]
        return values


def padded(data: bytes) -> np.ndarray:
    """The bytes as an array with PADDING behind them."""
    return np.frombuffer(data + bytes(PADDING), dtype=np.uint8)


def inside(data: np.ndarray, parents: Fields) -> Fields:
    """Every field of the messages that `parents` hold; `message` is the index in `parents`."""
    return fields(data, parents.value, parents.end)


def fields(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Fields:
    """Every field of the messages data[starts:ends]; data from `padded`.

    Raises BadWire for a field that reaches beyond its message, or of a kind that the format does not have.
    """
    position = starts.astype(np.int64)
    active = np.flatnonzero(position < ends)
    parts = []
    while len(active):
        if len(active) < _FEW:
            parts += [_serial(data, int(row), int(position[row]), int(ends[row])) for row in active]
            break
        decoded, behind = _turn(data, active, position[active], ends[active])
        parts.append(decoded)
        position[active] = behind
        active = active[behind < ends[active]]
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return Fields(empty, empty, empty, empty)
    columns = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return Fields(*(column[order] for column in columns))


def _turn(
    data: np.ndarray, message: np.ndarray, offset: np.ndarray, ends: np.ndarray
) -> tuple[Fields, np.ndarray]:
    """The next field of each message, and where each goes on."""
    tag, behind = _varints(data, offset)
    kind, number = tag & 7, tag >> 3
    value = np.zeros(len(offset), dtype=np.int64)
    is_bytes = kind == LENGTH
    simple = (kind == VARINT) | is_bytes
    fixed = (kind == FIXED64) | (kind == FIXED32)
    value[simple], behind[simple] = _varints(data, np.minimum(behind[simple], len(data) - PADDING))
    for width in (8, 4):
        mask = kind == (FIXED64 if width == 8 else FIXED32)
        if mask.any():
            value[mask] = _fixed(data, np.minimum(behind[mask], len(data) - PADDING), width)
            behind[mask] += width
    room = ends - behind
    bad = ~(simple | fixed) | (room < 0) | (number <= 0)
    bad |= is_bytes & ((value < 0) | (value > room))
    if bad.any():
        raise BadWire(int(offset[bad][0]))
    end = np.where(is_bytes, behind + value, behind)
    return Fields(message, number, np.where(is_bytes, behind, value), end), end


def _varints(data: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of up to 64 bits (n,), and the offsets behind them."""
    digit = data[offset]
    value = (digit & 0x7F).astype(np.int64)
    behind = offset + 1
    unfinished = np.flatnonzero(digit & 0x80)
    for shift in range(7, 70, 7):
        if not len(unfinished):
            return value, behind
        digit = data[behind[unfinished]]
        value[unfinished] |= (digit & 0x7F).astype(np.int64) << min(shift, 63)
        behind[unfinished] += 1
        unfinished = unfinished[(digit & 0x80) != 0]
    if len(unfinished):
        raise BadWire(int(offset[unfinished][0]))
    return value, behind


def _fixed(data: np.ndarray, offset: np.ndarray, width: int) -> np.ndarray:
    value = np.zeros(len(offset), dtype=np.int64)
    for index in range(width):
        value |= data[offset + index].astype(np.int64) << (8 * index)
    return value


def _serial(data: np.ndarray, message: int, offset: int, end: int) -> Fields:
    """The fields of one message from `offset` on, one after the other."""
    raw = data[offset:end].tobytes()
    rows = [
        (number, value + offset if is_bytes else value - (1 << 64) if value >> 63 else value, offset + stop)
        for number, value, stop, is_bytes in _items(raw, offset)
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Fields(np.full(len(rows), message), columns[:, 0], columns[:, 1], columns[:, 2])


def _items(data: bytes, offset: int) -> Iterator[tuple[int, int, int, bool]]:
    """(number, value, end, is_bytes) of each field of a message, in Python's own types; value is a number of
    64 bits, or where a field of bytes begins."""
    begin = position = 0
    end = len(data)
    try:
        while position < end:
            begin = position
            tag, position = data[position], position + 1
            if tag > 0x7F:
                tag, position = _varint(data, begin)
            kind = tag & 7
            if kind in (VARINT, LENGTH):
                value, position = data[position], position + 1
                if value > 0x7F:
                    value, position = _varint(data, position - 1)
                if kind == LENGTH:
                    value, position = position, position + value
            elif kind in (FIXED64, FIXED32):
                body, position = position, position + (8 if kind == FIXED64 else 4)
                value = int.from_bytes(data[body:position], "little")
            else:
                raise BadWire(offset + begin)
            if position > end or tag < 8:
                raise BadWire(offset + begin)
            yield tag >> 3, value, position, kind == LENGTH
    except (IndexError, OverflowError) as error:
        raise BadWire(offset + begin) from error


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """A number and the offset behind it; IndexError at the end of the data, OverflowError beyond 64 bits."""
    value = shift = 0
    while True:
        digit = data[offset]
        value |= (digit & 0x7F) << shift
        offset += 1
        if digit < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, offset
        shift += 7
        if shift > 63:
            raise OverflowError("a number of more than 64 bits")


def texts(data: np.ndarray, named: Fields, strings: Strings, length: int) -> np.ndarray:
    """The text id (length,) of each message from its fields `named`, -1 for none; the last field counts."""
    raw = data.tobytes() if len(named.value) > _RAW_FROM else b""
    cache: dict[bytes, int] = {}
    ids = np.full(length, -1, dtype=np.int64)
    rows = (column.tolist() for column in (named.message, named.value, named.end))
    for message, start, end in zip(*rows, strict=True):
        text = raw[start:end] if raw else data[start:end].tobytes()
        if (text_id := cache.get(text)) is None:
            text_id = cache[text] = strings.id(text.decode("utf-8", "replace"))
        ids[message] = text_id
    return ids


def text_of(data: np.ndarray, message: Fields, number: int) -> str:
    """The text of a field of one message, "" where it is absent."""
    part = message.of(number)
    if not len(part.message):
        return ""
    return data[part.value[-1] : part.end[-1]].tobytes().decode("utf-8", "replace")
