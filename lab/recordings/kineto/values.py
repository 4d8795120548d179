"""Fields of many events -> one numpy column: numbers, ids of texts, ids of JSON lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from lab.recordings.kineto.decode import ODD
from lab.recordings.kineto.events import Args

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
