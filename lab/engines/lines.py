"""Bytes in, lines out: chunks may split anywhere, even inside a character, and a line may never end."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

LONGEST = 64 * 1024  # characters; a longer line is cut into pieces so that memory stays bounded


class LineSplitter:
    """Incremental UTF-8 decoder and line splitter. Undecodable bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._rest = ""

    def feed(self, chunk: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + self._decode(chunk)).split("\n")
        for line in lines:
            yield from _pieces(line.rstrip("\r"))
        if len(self._rest) > LONGEST:
            yield from _pieces(self._rest)
            self._rest = ""

    def flush(self) -> Iterator[str]:
        rest, self._rest = self._rest + self._decode(b"", True), ""
        if rest:
            yield from _pieces(rest)


def _pieces(line: str) -> Iterator[str]:
    for start in range(0, max(len(line), 1), LONGEST):
        yield line[start : start + LONGEST]
