"""The planes of an XSpace: each line's events as columns, their stats by name."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.errors import BadDataError, MissingError
from lab.recordings.capture import Strings
from lab.recordings.protobuf import PADDING, BadWire, Fields, fields, inside, padded, text_of, texts
from lab.recordings.sqlite import is_gzip, lookup
from lab.stats.columns import per_distinct

MOST_BYTES = 2 << 30  # no protobuf message is larger
_PS_PER_NS = 1000
Columns = dict[str, np.ndarray]


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
    """Read one file, plain or gzip.

    Raises MissingError where it cannot be read; BadDataError where it is truncated, damaged or too large.
    """
    data = padded(_content(path))
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


def _content(path: Path) -> bytes:
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
            content: bytes = file.read(MOST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadDataError(f"the gzip file is truncated or damaged: {error}", location=path) from error
    except OSError as error:
        raise MissingError(f"cannot be read: {error.strerror or error}", location=path) from error
    if len(content) > MOST_BYTES:
        raise BadDataError(f"larger than {MOST_BYTES >> 30} GiB", location=path)
    return content


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
        name=text_of(data, plane, 2),
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
