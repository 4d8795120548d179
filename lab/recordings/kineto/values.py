"""Fields of many events -> numpy columns: times, numbers, ids of texts, ids of JSON lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import chain, compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from lab.recordings.capture import Strings
from lab.recordings.kineto.decode import NO_SIZE, ODD, Args

INT64 = range(-(2**63), 2**63)
_LONGEST_US = float(2**43)  # 101 days; up to here three decimals of a float64 are exact


def durations_ns(durations_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds with up to three decimals (n,) as exact int64 ns (n,), and which are durations (n,)."""
    valid = np.isfinite(durations_us) & (durations_us >= 0) & (durations_us < _LONGEST_US)
    durations_us = np.where(valid, durations_us, 0.0)
    # The whole part is set aside before scaling, so that no digit is rounded away.
    floor_us = np.floor(durations_us)
    decimals_ns = np.rint((durations_us - floor_us) * 1000)
    return floor_us.astype(np.int64) * 1000 + decimals_ns.astype(np.int64), valid


def times_ns(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """JSON numbers of microseconds (n,) as exact int64 ns (n,), and which could be read (n,).

    All at once if each has at most three decimals and no sign; otherwise one by one.
    """
    at_once = _whole_ns(texts)
    if at_once is not None:
        return at_once, np.ones(len(texts), dtype=bool)
    exact = [_decimal_ns(text) for text in texts]
    readable = np.array([ns is not None for ns in exact], dtype=bool)
    return np.array([ns or 0 for ns in exact], dtype=np.int64), readable


def _whole_ns(texts: Sequence[bytes]) -> np.ndarray | None:
    joined = b",".join(texts)
    digits = joined.replace(b".", b"")
    marks = np.frombuffer(joined + b",", dtype=np.uint8)
    points, ends = np.flatnonzero(marks == ord(".")), np.flatnonzero(marks == ord(","))
    lengths = np.diff(ends, prepend=-1) - 1
    if len(ends) != len(texts) or lengths.min() < 1 or not digits.replace(b",", b"").isdigit():
        return None
    row = np.searchsorted(ends, points)
    decimals = np.zeros(len(texts), dtype=np.int64)
    decimals[row] = ends[row] - points - 1
    # More than 18 digits overflow int64.
    if decimals.max() > 3 or (lengths - (decimals > 0)).max() > 18:
        return None
    numbers = np.array(digits.split(b","), dtype="S18").astype(np.int64)
    scale = 10 ** (3 - decimals)
    return numbers * scale if (numbers < 2**62 // scale).all() else None


def _decimal_ns(text: bytes) -> int | None:
    try:
        time_us = Decimal(text.decode().strip('"'))
    except (InvalidOperation, UnicodeDecodeError):
        return None
    # 2**52 us are 142 years: as ns they still fit int64.
    if not time_us.is_finite() or abs(time_us) > 2**52:
        return None
    return int((time_us * 1000).to_integral_value())


class Lookup(dict[Any, Any]):
    """A cache that computes each value once."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self._compute(key)
        return value


class Ids:
    """Ids of the texts and lists of one file: equal ones share an id; problems counts odd values."""

    def __init__(self, problems: Counter[str]) -> None:
        self.strings = Strings()
        self.strings[""] = -1
        self.of_number = Lookup(self._number_id)
        self.of_raw = Lookup(self._raw_id)
        self.problems = problems

    def value(self, raw: bytes) -> Any:
        """A JSON value that the event decoder skipped without parsing it."""
        try:
            return msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            pass
        try:
            value = json.loads(raw.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            value = None
        self.problems[ODD] += 1
        return value

    def _raw_id(self, raw: bytes) -> int:
        """Lists are kept as compact JSON, so that the layout of a file does not change them."""
        if not raw:
            return -1
        value = self.value(raw)
        try:
            return self.strings[msgspec.json.encode(value).decode()]
        except (ValueError, RecursionError):
            return self.strings[json.dumps(value)]

    def _number_id(self, value: int | str) -> int:
        """A pid or tid: its number, or for a text -2 minus the text's id.

        Numbers below -1, as of threads that are hashes, count as texts: they stand where those do.
        """
        if isinstance(value, int) and -1 <= value < INT64.stop:
            return value
        return -2 - self.strings[str(value)]


class Fields:
    """Columns (n,) of the fields of some events. Names are those of `decode.Event` and `decode.Args`."""

    def __init__(self, events: Sequence[Any], ids: Ids) -> None:
        self.events, self._ids = events, ids

    @cached_property
    def _args(self) -> list[Args]:
        return list(map(attrgetter("args"), self.events))

    def __len__(self) -> int:
        return len(self.events)

    def ids(self, name: str) -> np.ndarray:
        """pid or tid: the number, or -2 minus the id of a text."""
        numbers = map(self._ids.of_number.__getitem__, map(attrgetter(name), self.events))
        return np.fromiter(numbers, np.int64, len(self))

    def names(self) -> np.ndarray:
        """Ids of the events' names."""
        return self._text_ids(map(attrgetter("name"), self.events))

    def by_category(self, value_of: Callable[[str], Any], kind: type) -> np.ndarray:
        """`value_of` each event's category, as numbers of `kind`."""
        return np.fromiter(map(value_of, map(attrgetter("cat"), self.events)), kind, len(self))

    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """Starts in ns, and which can be read."""
        # JSON has no NUL; joining and splitting is five times faster than bytes() of each.
        return times_ns(b"\0".join(map(attrgetter("ts"), self.events)).split(b"\0"))

    def durations(self) -> tuple[np.ndarray, np.ndarray]:
        """Durations in ns, and which can be read."""
        return durations_ns(np.fromiter(map(attrgetter("dur"), self.events), np.float64, len(self)))

    def ints(self, name: str) -> np.ndarray:
        """A number of the arguments."""
        return self._integers(lambda: map(attrgetter(name), self._args), len(self))

    def sizes(self, name: str) -> np.ndarray:
        """grid or block (n, 3), -1 where there is none."""
        values = attrgetter(name)
        return self._integers(lambda: chain.from_iterable(map(values, self._args)), 3 * len(self)).reshape(
            -1, 3
        )

    def texts(self, name: str) -> np.ndarray:
        """Ids of a text of the arguments, -1 where there is none."""
        return self._text_ids(map(attrgetter(name), self._args))

    def raws(self, name: str) -> np.ndarray:
        """Ids of a list of the arguments as compact JSON, -1 where there is none."""
        raws = b"\0".join(map(attrgetter(name), self._args)).split(b"\0")
        return np.fromiter(map(self._ids.of_raw.__getitem__, raws), np.int32, len(self))

    def collectives(self) -> tuple[np.ndarray, Fields]:
        """The events (m,) that describe a collective, and their fields."""
        rows = [*compress(range(len(self)), map(attrgetter("collective"), self._args))]
        return np.array(rows, dtype=np.int64), Fields([self.events[row] for row in rows], self._ids)

    def copies(self) -> Iterator[tuple[int, Args]]:
        """Each event with a kind of copy, and its arguments."""
        return ((row, args) for row, args in enumerate(self._args) if args.copy_kind)

    def geometry(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(correlation, grid, block and shared memory) of each event that has a grid."""
        for args in self._args:
            if args.grid is not NO_SIZE and args.correlation in INT64:
                sizes = (*args.grid, *args.block, args.smem_bytes)
                yield args.correlation, tuple(size if size in INT64 else -1 for size in sizes)

    def _text_ids(self, texts: Iterable[str]) -> np.ndarray:
        return np.fromiter(map(self._ids.strings.__getitem__, texts), np.int32, len(self))

    def _integers(self, values: Callable[[], Iterable[int | str]], count: int) -> np.ndarray:
        try:
            return np.fromiter(values(), np.int64, count)
        except (OverflowError, ValueError, TypeError):
            numbers = [value if isinstance(value, int) and value in INT64 else None for value in values()]
        if None in numbers:
            self._ids.problems["ids that are not 64-bit integers count as unknown"] += 1
        return np.array([-1 if value is None else value for value in numbers], dtype=np.int64)
