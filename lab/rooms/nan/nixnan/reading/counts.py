"""How often each line of a log stands there, and which are new, by their bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple


class New(NamedTuple):
    """A line that was not counted before: its bytes, and which line of the text it is (from 0)."""

    raw: bytes
    line_index: int


class Counts:
    """Lines and their counts."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def add(self, text: bytes) -> tuple[int, list[New]]:
        """Count the lines of a text, each ending with \\n: how many there are; the new ones, in order."""
        lines = text.split(b"\n")
        lines.pop()
        size = len(self._counts)
        self._counts.update(lines)
        if not (grown := len(self._counts) - size):
            return len(lines), []
        new = list(islice(reversed(self._counts), grown))[::-1]
        first_index = dict(zip(reversed(lines), range(len(lines) - 1, -1, -1), strict=True))
        return len(lines), [New(raw, first_index[raw]) for raw in new]

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Bytes and count of every line."""
        yield from self._counts.items()

    def forget(self, raw: bytes) -> None:
        """The line is not counted, and new when it comes again."""
        del self._counts[raw]

    def clear(self) -> None:
        self._counts.clear()

    def __len__(self) -> int:
        return len(self._counts)
