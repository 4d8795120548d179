"""The scanner in C, which gives the numbers of the one in numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from lab.rooms.nan.nixnan.grammar import TYPES
from lab.rooms.nan.nixnan.reading.bulk.hashing import TURNS, Places, Span
from lab.rooms.nan.nixnan.reading.bulk.scanner import KIND_SETS, PlainScanner, Scanner, Usual
from lab.rooms.nan.nixnan.reading.native.find import Word, Words, library

LEAST_LINE_BYTES = 62  # of a usual line, with its end
_NUM_COLUMNS = 10


class NativeScanner:
    """In C. Raises RuntimeError for a library of another version, MemoryError without memory."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        if loaded.usual_columns() != _NUM_COLUMNS:
            raise RuntimeError("lines.c and Usual have different columns")
        self._library = loaded
        self._kinds, self._labels = _words([",".join(kinds) for kinds in KIND_SETS]), _words(TYPES)
        self._words = Words(
            self._kinds, self._labels, len(KIND_SETS), len(TYPES), (ctypes.c_uint64 * 4)(*TURNS.tolist())
        )
        self._rows = np.empty((0, _NUM_COLUMNS), np.int64)
        self._others = np.empty(0, np.int64)

    def usual(self, text: bytes) -> tuple[Usual, Places] | None:
        if (most := len(text) // LEAST_LINE_BYTES + 1) > len(self._rows):
            self._rows = np.empty((most, _NUM_COLUMNS), np.int64)
        if (lines := text.count(b"\n")) > len(self._others):
            self._others = np.empty(lines, np.int64)
        num_others = ctypes.c_int64()
        count = self._library.usual_lines(
            self._words,
            text,
            len(text),
            self._rows.ctypes.data,
            self._others.ctypes.data,
            len(self._others),
            num_others,
        )
        if count == -2:
            raise MemoryError
        if count < 0:
            return None
        kinds, operand, label, sass, sass_end, name, name_end, *hashes = self._rows[:count].T.copy()
        function_hashes, sass_hashes, opcode_hashes = (one.view(np.uint64) for one in hashes)
        return Usual(
            kinds,
            operand,
            label,
            Span(sass, sass_end),
            Span(name, name_end),
            function_hashes,
            sass_hashes,
            opcode_hashes,
        ), self._others[: num_others.value].copy()


def _words(texts: Sequence[str]) -> ctypes.Array[Word]:
    return (Word * len(texts))(*(Word(text.encode(), len(text)) for text in texts))


def scanner() -> Scanner:
    """The one in C where it is to be had."""
    loaded = library()
    return PlainScanner() if loaded is None else NativeScanner(loaded)
