"""The planes of an XSpace: each line's events as columns, their stats by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.errors import BadDataError
from lab.recordings.capture import Strings
from lab.recordings.pieces import read_whole
from lab.recordings.sqlite import lookup
from lab.recordings.tables import Columns
from lab.stats.columns import per_distinct

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
PADDING = 16  # zero bytes behind the data, so that no read needs a check of its own
_FEW = 48  # messages below which serial decoding is faster than lockstep


class BadWire(ValueError):
    """Bytes that are not a protobuf message; `offset` is where the message begins."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"not a protobuf message at offset {offset}")
        self.offset = offset


class Fields(NamedTuple):
    """Fields (n,) of messages, in the order of the messages and within one as written.

    message is the index of the message; value the number (uint64 as int64), or of a field of bytes its
    offset, whose end is `end`. Doubles, which no reader asks for, are 0.
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
    behind[fixed] += np.where(kind[fixed] == FIXED64, 8, 4)
    value[simple], behind[simple] = _varints(data, np.minimum(behind[simple], len(data) - PADDING))
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


def _serial(data: np.ndarray, message: int, offset: int, end: int) -> Fields:
    """The fields of one message from `offset` on, one after the other, in Python's own types."""
    raw = data[offset:end].tobytes()
    rows: list[tuple[int, int, int]] = []
    begin = position = 0
    try:
        while position < len(raw):
            begin = position
            tag, position = raw[position], position + 1
            if tag > 0x7F:
                tag, position = _varint(raw, begin)
            kind = tag & 7
            if kind in (VARINT, LENGTH):
                value, position = raw[position], position + 1
                if value > 0x7F:
                    value, position = _varint(raw, position - 1)
                if kind == LENGTH:
                    value, position = offset + position, position + value
                elif value >> 63:
                    value -= 1 << 64
            elif kind in (FIXED64, FIXED32):
                value, position = 0, position + (8 if kind == FIXED64 else 4)
            else:
                raise BadWire(offset + begin)
            if position > len(raw) or tag < 8:
                raise BadWire(offset + begin)
            rows.append((tag >> 3, value, offset + position))
    except (IndexError, OverflowError) as error:
        raise BadWire(offset + begin) from error
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Fields(np.full(len(rows), message), columns[:, 0], columns[:, 1], columns[:, 2])


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
    raw = data.data
    cache: dict[bytes, int] = {}
    ids = np.full(length, -1, dtype=np.int64)
    rows = (column.tolist() for column in (named.message, named.value, named.end))
    for message, start, end in zip(*rows, strict=True):
        text = bytes(raw[start:end])
        if (text_id := cache.get(text)) is None:
            text_id = cache[text] = strings.id(text.decode("utf-8", "replace"))
        ids[message] = text_id
    return ids


MOST_BYTES = 2 << 30  # no protobuf message is larger
_PS_PER_NS = 1000


class Stats(NamedTuple):
    """Stats (m,) of events or of a plane: the owner's row, the id of the name, the number, the text's id."""

    owner: np.ndarray
    key_id: np.ndarray
    number: np.ndarray
    text_id: np.ndarray


@dataclass(frozen=True)
class Plane:
    """One plane; its events (n,) are in the order of the file, `line` is an index of `lines`.

    line is -1 for an event that sums many (TPUs write such): it has no time of its own.
    """

    name: str
    lines: tuple[tuple[int, str], ...]  # id and name
    line: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    name_id: np.ndarray
    stats: Stats
    own_stats: Stats
    strings: Strings

    def numbers(self, key: str) -> np.ndarray:
        """The number (n,) of each event's stat, -1 where it has none."""
        return self._column(key, self.stats.number)

    def texts(self, key: str) -> np.ndarray:
        """The text id (n,) of each event's stat, -1 where it has none."""
        return self._column(key, self.stats.text_id)

    def _column(self, key: str, values: np.ndarray) -> np.ndarray:
        column = np.full(len(self.line), -1, dtype=np.int64)
        mask = self.stats.key_id == self.strings.id(key)
        column[self.stats.owner[mask]] = values[mask]
        return column

    def times(self, rows: np.ndarray, profile_ns: int) -> Columns:
        """start_ns and end_ns of these rows; profile_ns: when a profile began whose lines count from then."""
        shift_ns = profile_ns if self.start_ns.max(initial=0) < profile_ns else 0
        return {"start_ns": self.start_ns[rows] + shift_ns, "end_ns": self.end_ns[rows] + shift_ns}

    def by_text(self, ids: np.ndarray, value_of: Callable[[str], int]) -> np.ndarray:
        """value_of the text of each of `ids` (n,), -1 for the id -1."""
        texts = self.strings.texts
        return per_distinct(ids, lambda text: value_of(texts[text]) if text >= 0 else -1)

    def operators(self) -> np.ndarray:
        """The id (n,) of what each event belongs to: `module/operation` of XLA, else its module, else the
        framework's operation; -1 for none of them."""
        strings = self.strings

        def id_of(ids: list[int]) -> int:
            module, hlo, framework = ids
            if module >= 0 and hlo >= 0:
                return strings.id(f"{strings.texts[module]}/{strings.texts[hlo]}")
            return next((text for text in (hlo, module, framework) if text >= 0), -1)

        columns = [self.texts(key) for key in ("hlo_module", "hlo_op", "tf_op")]
        return per_distinct(np.stack(columns, axis=1), id_of)

    def about(self) -> dict[str, int | str]:
        """The stats of the plane itself: a text where it has one, else the number."""
        names = self.strings.texts
        rows = zip(*(column.tolist() for column in self.own_stats[1:]), strict=True)
        return {names[key]: names[text] if text >= 0 else number for key, number, text in rows if key >= 0}


@dataclass(frozen=True)
class Space:
    """One file, and what the recorder says about it."""

    planes: tuple[Plane, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    hosts: tuple[str, ...]


def read_space(path: Path, strings: Strings) -> Space:
    """Read one file, plain or gzip."""
    data = padded(read_whole(path, MOST_BYTES))
    try:
        space = fields(data, np.array([0]), np.array([len(data) - PADDING]))
        spans = space.of(1)
        planes = [
            _plane(data, fields(data, start[None], end[None]), strings)
            for start, end in zip(spans.value, spans.end, strict=True)
        ]
    except BadWire as error:
        raise BadDataError(
            f"an XPlane file that is truncated or damaged: {error}",
            location=path,
            fix="copy or record it again",
        ) from error
    return Space(tuple(planes), *(_listed(data, space.of(number)) for number in (2, 3, 4)))


def _listed(data: np.ndarray, part: Fields) -> tuple[str, ...]:
    spans = zip(part.value.tolist(), part.end.tolist(), strict=True)
    return tuple(data[start:end].tobytes().decode("utf-8", "replace") for start, end in spans)


def _plane(data: np.ndarray, plane: Fields, strings: Strings) -> Plane:
    lines = inside(data, plane.of(3))
    num_lines = len(plane.of(3).value)
    line_names = texts(data, lines.of(2), strings, num_lines)
    events = lines.of(4)
    rows, count = inside(data, events), len(events.value)
    stat_names = _names(data, plane.of(5), strings)
    start_ps = rows.column(2, count, 0)
    base_ns = lines.column(3, num_lines, 0)[events.message]
    return Plane(
        name=(_listed(data, plane.of(2)) or ("",))[-1],
        lines=tuple(
            (number, strings.texts[name] if name >= 0 else "")
            for number, name in zip(lines.column(1, num_lines, 0).tolist(), line_names.tolist(), strict=True)
        ),
        line=np.where(rows.column(5, count) < 0, events.message, -1),
        start_ns=base_ns + start_ps // _PS_PER_NS,
        end_ns=base_ns + (start_ps + np.maximum(rows.column(3, count, 0), 0)) // _PS_PER_NS,
        name_id=lookup(*_names(data, plane.of(4), strings), rows.column(1, count, 0)),
        stats=_stats(data, rows.of(4), stat_names, strings),
        own_stats=_stats(data, plane.of(6), stat_names, strings),
        strings=strings,
    )


def _names(data: np.ndarray, entries: Fields, strings: Strings) -> tuple[np.ndarray, np.ndarray]:
    """Keys (n,) of a map from numbers to metadata, and the ids (n,) of their names."""
    pairs = inside(data, entries)
    metadata = pairs.of(2)
    names = texts(data, inside(data, metadata).of(2), strings, len(metadata.value))
    return pairs.column(1, len(entries.value), 0)[metadata.message], names


def _stats(data: np.ndarray, owners: Fields, names: tuple[np.ndarray, np.ndarray], strings: Strings) -> Stats:
    rows, count = inside(data, owners), len(owners.value)
    number = rows.column(4, count)
    number = np.where(number < 0, rows.column(3, count), number)
    own_text = texts(data, rows.of(5), strings, count)
    interned = lookup(*names, rows.column(7, count))
    return Stats(
        owner=owners.message,
        key_id=lookup(*names, rows.column(1, count, 0)),
        number=number,
        text_id=np.where(own_text < 0, interned, own_text),
    )
