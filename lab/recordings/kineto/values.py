"""Fields of many events -> one numpy column: numbers, ids of texts, ids of JSON lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from lab.recordings.kineto.decode import ODD, Args

# Below this many microseconds no two numbers with three decimals share a float64: 2^43 us is 101 days, and
# Kineto moves its base every quarter of a year. Above it the digits are read as integers instead.
FLOAT_EXACT_US = float(2**43)


def float_us_to_ns(times_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds with up to three decimals (n,) as exact int64 ns (n,), and which were finite (n,).

    Exact below FLOAT_EXACT_US: the whole part is set aside before scaling, so no digit is rounded away.
    """
    exact = np.isfinite(times_us) & (np.abs(times_us) < FLOAT_EXACT_US)
    times_us = np.where(exact, times_us, 0.0)
    floor_us = np.floor(times_us)
    return floor_us.astype(np.int64) * 1000 + np.rint((times_us - floor_us) * 1000).astype(np.int64), exact


def digits_us_to_ns(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """JSON numbers of microseconds (n,) as exact int64 ns (n,), and which could be read (n,).

    All at once if each has three decimals, or none; otherwise one by one.
    """
    fixed = _fixed_point(texts)
    if fixed is not None:
        return fixed, np.ones(len(texts), dtype=bool)
    exact = [_decimal_ns(text) for text in texts]
    readable = np.array([ns is not None for ns in exact], dtype=bool)
    return np.array([ns or 0 for ns in exact], dtype=np.int64), readable


def _fixed_point(texts: Sequence[bytes]) -> np.ndarray | None:
    joined = b",".join(texts)
    marks = np.frombuffer(joined + b",", dtype=np.uint8)
    points, ends = np.flatnonzero(marks == ord(".")), np.flatnonzero(marks == ord(","))
    lengths = np.diff(ends, prepend=-1) - 1
    if len(ends) != len(texts) or lengths.min() < 1 or lengths.max() > 18 + (len(points) > 0):
        return None
    if len(points) and (len(points) != len(ends) or (ends - points != 4).any()):
        return None
    digits = joined.replace(b".", b"")
    if not digits.replace(b",", b"").isdigit():
        return None
    numbers = np.array(digits.split(b","), dtype="S18").astype(np.int64)
    scale = 1 if len(points) else 1000
    return numbers * scale if (numbers < 2**62 // scale).all() else None


def _decimal_ns(text: bytes) -> int | None:
    try:
        time_us = Decimal(text.decode())
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not time_us.is_finite() or abs(time_us) > 2**52:
        return None
    return int((time_us * 1000).to_integral_value())


INT64 = range(-(2**63), 2**63)


class ColumnEncoder:
    """Encodes one field of many events at a time; equal texts share one id over the whole file."""

    def __init__(self, problems: Counter[str]) -> None:
        self.strings = Strings()
        self.ids = Lookup(self._number_id)
        self._raw_ids = Lookup(self.raw_id)
        self._problems = problems

    def texts(self, rows: Sequence[Any], text_of: Callable[[Any], str]) -> np.ndarray:
        return np.fromiter(map(self.strings.__getitem__, map(text_of, rows)), np.int32, len(rows))

    def raws(self, args: Sequence[Args], name: str) -> np.ndarray:
        # JSON holds no NUL. Joining and splitting is five times faster than bytes() of each.
        texts = b"\0".join(map(attrgetter(name), args)).split(b"\0")
        return np.fromiter(map(self._raw_ids.__getitem__, texts), np.int32, len(args))

    def numbers_or_texts(self, events: Sequence[Any], field_of: Callable[[Any], int | str]) -> np.ndarray:
        """A pid or tid: its number, or for a text -2 minus the text's id."""
        return np.fromiter(map(self.ids.__getitem__, map(field_of, events)), np.int64, len(events))

    def ints(self, args: Sequence[Args], name: str) -> np.ndarray:
        values = attrgetter(name)
        try:
            return np.fromiter(map(values, args), np.int64, len(args))
        except (OverflowError, ValueError, TypeError):
            return self.integers(map(values, args), len(args))

    def triples(self, args: Sequence[Args], name: str) -> np.ndarray:
        """Three integers of each (3n,), one after the other."""
        values = attrgetter(name)
        try:
            return np.fromiter(chain.from_iterable(map(values, args)), np.int64, 3 * len(args))
        except OverflowError:
            return self.integers(chain.from_iterable(map(values, args)), 3 * len(args))

    def integers(self, values: Iterable[int | str], count: int) -> np.ndarray:
        numbers = [value if isinstance(value, int) and value in INT64 else None for value in values]
        if None in numbers:
            self._problems["ids that are not 64-bit integers count as unknown"] += 1
        return np.array([-1 if value is None else value for value in numbers], dtype=np.int64)

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
        self._problems[ODD] += 1
        return value

    def raw_id(self, raw: bytes) -> int:
        """Lists are kept as compact JSON, so that the layout of a file does not change them."""
        if not raw:
            return -1
        value = self.value(raw)
        try:
            return self.strings[msgspec.json.encode(value).decode()]
        except (ValueError, RecursionError):
            return self.strings[json.dumps(value)]

    def _number_id(self, value: int | str) -> int:
        if isinstance(value, int) and value in INT64:
            return value
        return -2 - self.strings[str(value)]


class Strings(dict[str, int]):
    """Text -> id, assigned when first seen; "" is -1."""

    def __init__(self) -> None:
        super().__init__({"": -1})
        self.list: list[str] = []

    def __missing__(self, text: str) -> int:
        self[text] = len(self.list)
        self.list.append(text)
        return self[text]


class Lookup(dict[Any, Any]):
    """A cache that computes each value once."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self._compute(key)
        return value
