"""How often each line of a log stands there, and which are new: by their bytes, in Python or in C."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from lab.rooms.nan.nixnan.reading.native.find import library

NATIVE_BYTES = 1 << 20  # of a file: below, a compiled library takes longer to load than it saves


class New(NamedTuple):
    """A line that was not known: what `Counts` calls it, its bytes, which line of the text it is (from 0)."""

    key: bytes | int
    raw: bytes
    at: int


class Counts(Protocol):
    def add(self, text: bytes) -> tuple[int, list[New]]:
        """Count the lines of a text, each ending with \\n: how many there are; the new ones, in order."""

    def items(self) -> Iterator[tuple[bytes | int, int]]:
        """Key and count of every line."""

    def forget(self, key: bytes | int) -> None:
        """The line is not counted, and new when it comes again."""

    def clear(self) -> None:
        """Forget all lines."""

    def __len__(self) -> int:
        """Of lines that are known, with those to forget or without: what memory depends on."""


class PlainCounts:
    """In Python."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def add(self, text: bytes) -> tuple[int, list[New]]:
        lines = text.split(b"\n")
        lines.pop()
        before = len(self._counts)
        self._counts.update(lines)
        if not (grown := len(self._counts) - before):
            return len(lines), []
        new = list(islice(reversed(self._counts), grown))[::-1]
        first = dict(zip(reversed(lines), range(len(lines) - 1, -1, -1), strict=True))
        return len(lines), [New(raw, raw, first[raw]) for raw in new]

    def items(self) -> Iterator[tuple[bytes | int, int]]:
        yield from self._counts.items()

    def forget(self, key: bytes | int) -> None:
        del self._counts[key]

    def clear(self) -> None:
        self._counts.clear()

    def __len__(self) -> int:
        return len(self._counts)


class NativeCounts:
    """In C; a line's key is its number."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._library, self._state = loaded, None
        self._state = loaded.lines_new(int.from_bytes(os.urandom(8), "little"))
        if not self._state:
            raise MemoryError

    def __del__(self) -> None:
        self._library.lines_free(self._state)

    def add(self, text: bytes) -> tuple[int, list[New]]:
        lines = self._library.lines_count(self._state, text, len(text))
        if lines < 0:
            raise MemoryError
        numbers = ctypes.POINTER(ctypes.c_int64)()
        if not (num_new := self._library.lines_news(self._state, ctypes.byref(numbers))):
            return lines, []
        fours = numbers[: 4 * num_new]
        new = zip(*(fours[part::4] for part in range(4)), strict=True)
        return lines, [New(number, text[start:end], at) for number, at, start, end in new]

    def items(self) -> Iterator[tuple[bytes | int, int]]:
        counts = (ctypes.c_int64 * len(self))()
        self._library.lines_counts(self._state, counts, len(counts))
        yield from ((key, lines) for key, lines in enumerate(counts) if lines)

    def forget(self, key: bytes | int) -> None:
        self._library.lines_forget(self._state, key)

    def clear(self) -> None:
        self._library.lines_clear(self._state)

    def __len__(self) -> int:
        return int(self._library.lines_known(self._state))


def counts_for(size_bytes: int) -> Counts:
    """For a file of this size."""
    loaded = library() if size_bytes >= NATIVE_BYTES else None
    return PlainCounts() if loaded is None else NativeCounts(loaded)
