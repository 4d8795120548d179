"""Protobuf's wire format in numpy: the fields of many messages at once.

Messages are decoded in lockstep, one field of each per turn, so the cost is a few array operations per turn
and not a Python call per field (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
PADDING = 16  # zero bytes behind the data, so that no read needs a check of its own
_FEW = 48  # messages below which one after the other is faster than in lockstep


class BadWire(ValueError):
    """Bytes that are no protobuf message; `at` is the offset of the message."""

    def __init__(self, at: int) -> None:
        super().__init__(f"not a protobuf message at offset {at}")
        self.at = at


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
        mask = self.number == number
        return Fields(*(column[mask] for column in self))

    def column(self, number: int, length: int, default: int = -1) -> np.ndarray:
        """The value (length,) of a field in each message; the last one counts, as the format says."""
        found = np.full(length, default, dtype=np.int64)
        mask = self.number == number
        found[self.message[mask]] = self.value[mask]
        return found


def padded(data: bytes) -> np.ndarray:
    """The bytes as an array with PADDING behind them."""
    return np.frombuffer(data + bytes(PADDING), dtype=np.uint8)


def fields(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Fields:
    """Every field of the messages data[starts:ends]; data from `padded`.

    Raises BadWire for a field that reaches beyond its message, or of a kind that the format does not have.
    """
    position = starts.astype(np.int64)
    active = np.flatnonzero(position < ends)
    parts = []
    while len(active):
        if len(active) < _FEW:
            parts += [_rest(data, int(row), int(position[row]), int(ends[row])) for row in active]
            break
        found, after = _turn(data, active, position[active], ends[active])
        parts.append(found)
        position[active] = after
        active = active[after < ends[active]]
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return Fields(empty, empty, empty, empty)
    every = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    order = np.argsort(every[0], kind="stable")
    return Fields(*(column[order] for column in every))


def _turn(
    data: np.ndarray, message: np.ndarray, at: np.ndarray, ends: np.ndarray
) -> tuple[Fields, np.ndarray]:
    """The next field of each message, and where each goes on."""
    tag, after = _varints(data, at)
    kind, number = tag & 7, tag >> 3
    value = np.zeros(len(at), dtype=np.int64)
    is_varint, is_bytes = kind == VARINT, kind == LENGTH
    is_wide, is_narrow = kind == FIXED64, kind == FIXED32
    simple = is_varint | is_bytes
    value[simple], after[simple] = _varints(data, np.minimum(after[simple], len(data) - PADDING))
    for mask, width in ((is_wide, 8), (is_narrow, 4)):
        if mask.any():
            value[mask] = _fixed(data, np.minimum(after[mask], len(data) - PADDING), width)
            after[mask] += width
    room = ends - after
    bad = ~(simple | is_wide | is_narrow) | (room < 0) | (number <= 0)
    bad |= is_bytes & ((value < 0) | (value > room))
    if bad.any():
        raise BadWire(int(at[bad][0]))
    end = np.where(is_bytes, after + value, after)
    return Fields(message, number, np.where(is_bytes, after, value), end), end


def _varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of up to 64 bits (n,), and the offsets behind them."""
    first = data[at]
    value = (first & 0x7F).astype(np.int64)
    after = at + 1
    more = np.flatnonzero(first & 0x80)
    for shift in range(7, 70, 7):
        if not len(more):
            return value, after
        digit = data[after[more]]
        value[more] |= (digit & 0x7F).astype(np.int64) << min(shift, 63)
        after[more] += 1
        more = more[(digit & 0x80) != 0]
    if len(more):
        raise BadWire(int(at[more][0]))
    return value, after


def _fixed(data: np.ndarray, at: np.ndarray, width: int) -> np.ndarray:
    whole = np.zeros(len(at), dtype=np.int64)
    for index in range(width):
        whole |= data[at + index].astype(np.int64) << (8 * index)
    return whole


def _rest(data: np.ndarray, message: int, at: int, end: int) -> Fields:
    """The fields of one message from `at` on, one after the other."""
    raw, start = data[at:end].tobytes(), at
    rows: list[tuple[int, int, int]] = []
    position = 0
    while position < len(raw):
        tag, after = _varint(raw, position, start)
        kind, number = tag & 7, tag >> 3
        if kind in (VARINT, LENGTH):
            value, after = _varint(raw, after, start)
            stop = after + value if kind == LENGTH else after
            value = start + after if kind == LENGTH else value
        elif kind in (FIXED64, FIXED32):
            stop = after + (8 if kind == FIXED64 else 4)
            value = int.from_bytes(raw[after:stop], "little")
        else:
            raise BadWire(start + position)
        if stop > len(raw) or number <= 0:
            raise BadWire(start + position)
        rows.append((number, _signed(value), start + stop))
        position = stop
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Fields(np.full(len(rows), message), columns[:, 0], columns[:, 1], columns[:, 2])


def _varint(raw: bytes, at: int, start: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(at, min(at + 10, len(raw))):
        value |= (raw[index] & 0x7F) << shift
        if raw[index] < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, index + 1
        shift += 7
    raise BadWire(start + at)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
