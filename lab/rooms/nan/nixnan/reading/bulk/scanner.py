"""Finds nixnan's usual error lines in a block, by comparing fixed bytes of all lines at once."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lab.rooms.nan.nixnan.grammar import KINDS, PREFIX, TYPES
from lab.rooms.nan.nixnan.reading.bulk.hashing import (
    PAD,
    Block,
    Hashes,
    Octets,
    Places,
    Span,
    after_blank,
    eight_bytes,
    hashes_of,
    opcode_hashes,
    span_hashes,
)

_PIECE = 64 << 10
OPERAND_RANGE, LABEL_RANGE, KIND_RANGE = 8, 8, 32  # the ranges that codes are packed with
UNPRINTED = (b"\0", b"\t", b"\r", b"\x1b")  # what `grammar.tidy` takes out
KIND_SETS = tuple(
    kinds
    for size in range(1, 5)
    for kinds in combinations(KINDS, size)
    if not {"infinity", "-infinity"} <= set(kinds)
)
_AFTER_KINDS = (
    (0, eight_bytes(b"] detect")),
    (8, eight_bytes(b"ed in op")),
    (24, eight_bytes(b"of instr")),
    (31, eight_bytes(b"ruction ")),
)
_OPERAND_MASK, _OPERAND = ~eight_bytes(b"\0\0\0\0\0\0\xff\0"), eight_bytes(b"erand \0 ")
# The last eight bytes of a line tell its type, and how long that type's name is.
_ENDINGS = sorted(
    (int.from_bytes((" of type " + name).encode()[-8:], "little"), code) for code, name in enumerate(TYPES)
)
_ENDING_WORDS = np.array([word for word, _ in _ENDINGS], np.uint64)
_ENDING_CODES = np.array([code for _, code in _ENDINGS])
_ENDING_SIZES = np.array([len(TYPES[code]) + len(" of type ") for _, code in _ENDINGS])


class Usual(NamedTuple):
    """The usual error lines of a text, in its order; all columns have one row per line."""

    kinds: Places  # into KIND_SETS
    operand: Places
    label: Places  # into TYPES
    sass: Span
    function: Span
    function_hashes: Hashes
    sass_hashes: Hashes
    opcode_hashes: Hashes


class Scanner:
    """Finds the usual error lines of texts, of which each line ends with \\n.

    It reuses two buffers for all texts: making them costs more than using them.
    """

    def __init__(self) -> None:
        self._mark, self._next_mark = np.empty(_PIECE, bool), np.empty(_PIECE, bool)

    def usual(self, text: bytes) -> tuple[Usual, Places] | None:
        """The usual lines, and the numbers (from 0) of the other lines.

        None for a text to be read line by line: some line holds nixnan's prefix twice, or not at its start.
        """
        block = Block(text + PAD)
        marks = self._marks(block.octets)
        line_ends = np.flatnonzero(block.octets[marks] == 10)
        ends = marks[line_ends]
        previous_ends = np.empty_like(line_ends)
        previous_ends[0], previous_ends[1:] = -1, line_ends[:-1]
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        good = (line_ends - previous_ends >= 3) & (
            ends - starts > 60
        )  # a bracket, a semicolon, the end of the line
        is_nixnan = block.words[starts] == eight_bytes(b"#nixnan:")
        num_nixnan = int(np.count_nonzero(is_nixnan))
        if self._hashes(block.octets) != num_nixnan and text.count(PREFIX) != num_nixnan:
            return None
        good &= is_nixnan
        good &= block.words[starts + 8] == eight_bytes(b" error [")
        semicolons = np.cumsum(block.octets[marks] == 59)  # a line with several may be read in two ways
        good &= semicolons[line_ends] - np.where(previous_ends < 0, 0, semicolons[previous_ends]) == 1
        rows = np.flatnonzero(good)
        lines, fits = _fields(
            block, starts[rows] + 16, marks[previous_ends[rows] + 1], marks[line_ends[rows] - 1], ends[rows]
        )
        good[rows[~fits]] = False
        return lines, np.flatnonzero(~good)

    def _marks(self, octets: Octets) -> Places:
        """Where line ends, closing brackets and semicolons are; piece by piece, to stay in the cache."""
        mark_offsets = []
        for start in range(0, len(octets), _PIECE):
            piece = octets[start : start + _PIECE]
            mark, mark_buffer = self._mark[: len(piece)], self._next_mark[: len(piece)]
            np.equal(piece, 10, out=mark)
            for octet in b"];":
                np.equal(piece, octet, out=mark_buffer)
                np.logical_or(mark, mark_buffer, out=mark)
            places = np.flatnonzero(mark)
            places += start
            mark_offsets.append(places)
        return np.concatenate(mark_offsets)

    def _hashes(self, octets: Octets) -> int:
        """How many `#` there are."""
        return sum(
            int(np.count_nonzero(np.equal(piece, 35, out=self._mark[: len(piece)])))
            for start in range(0, len(octets), _PIECE)
            for piece in (octets[start : start + _PIECE],)
        )


def _fields(
    block: Block, start: Places, bracket: Places, semicolon: Places, end: Places
) -> tuple[Usual, npt.NDArray[np.bool_]]:
    """The columns of the lines whose every fixed byte is where it belongs, and which lines these are."""
    words, octets = block.words, block.octets
    good = (octets[bracket] == 93) & (semicolon > bracket + 40)
    for offset, word in _AFTER_KINDS:
        good &= words[bracket + offset] == word
    head = words[bracket + 16]
    good &= (head & _OPERAND_MASK) == _OPERAND
    operand = octets[bracket + 22].astype(np.int64) - 48
    good &= (operand >= 0) & (operand < OPERAND_RANGE) & (octets[semicolon - 1] == 32)
    good &= (words[semicolon] == eight_bytes(b"; in fun")) & (
        words[semicolon + 6] == eight_bytes(b"unction ")
    )
    last_word = words[end - 8]
    label_index = np.minimum(np.searchsorted(_ENDING_WORDS, last_word), len(TYPES) - 1)
    good &= _ENDING_WORDS[label_index] == last_word
    tail = end - _ENDING_SIZES[label_index]
    good &= (words[tail] == eight_bytes(b" of type")) & (tail >= semicolon + 14)
    kinds = _kind_codes(block, start, bracket)
    good &= kinds >= 0
    if b" at " in block.text:
        tail, certain = _before_place(block, np.minimum(semicolon + 14, tail), tail)
        good &= certain
    opcode, certain = _opcodes(block, bracket + 39, semicolon, good)
    good &= certain
    columns = (kinds, operand, _ENDING_CODES[label_index], bracket + 39, semicolon, tail, opcode)
    if not good.all():
        columns = tuple(column[good] for column in columns)
    kinds, operand, label, start, semicolon, tail, opcode = columns
    sass, function = Span(start, _trimmed(octets, semicolon)), Span(semicolon + 14, tail)
    hashes = span_hashes(block, function), span_hashes(block, sass), opcode_hashes(block, opcode)
    return Usual(kinds, operand, label, sass, function, *hashes), good


def _opcodes(
    block: Block, start: Places, semicolon: Places, good: npt.NDArray[np.bool_]
) -> tuple[Places, npt.NDArray[np.bool_]]:
    """Where the opcode starts, after a predicate (`@!P0`) and one blank, and for which rows it does.

    good: the rows to look at; in the others a blank may not be there to be found.
    """
    offset = start.copy()
    guarded = np.flatnonzero(good & (block.octets[start] == 64))
    offset[guarded] = after_blank(block, start[guarded])
    return offset, (offset < semicolon) & (block.octets[np.minimum(offset, semicolon)] != 32)


def _before_place(block: Block, start: Places, end: Places) -> tuple[Places, npt.NDArray[np.bool_]]:
    """Where names end that a source line may follow, and for which rows that is certain.

    A source line reads ` at path:17` or ` at line 17`.
    """
    octets = block.octets
    blanks = np.flatnonzero(octets[: -len(PAD)] == 32)
    places = blanks[(block.words[blanks] & eight_bytes(b"\xff" * 4)) == eight_bytes(b" at ")]
    first_place = places[np.minimum(np.searchsorted(places, start), len(places) - 1)]
    placed = (first_place >= start) & (first_place < end)
    back = end - 1
    for _ in range(9):
        digit = (octets[back] >= 48) & (octets[back] <= 57)
        back = back - digit
    numbered = back < end - 1
    path = (octets[back] == 58) & (octets[first_place + 4] != 32) & (back > first_place + 4)
    line = (block.words[first_place] == eight_bytes(b" at line")) & (back == first_place + 8)
    return np.where(placed, first_place, end), ~placed | numbered & (path | line)


def _trimmed(octets: Octets, end: Places) -> Places:
    """The ends without the blanks before them; one is known to be there."""
    end = end - 1
    while (is_blank := octets[end - 1] == 32).any():
        end = end - is_blank
    return end


def _kind_codes(block: Block, start: Places, end: Places) -> Places:
    """Which of KIND_SETS stands between start and end; -1: none."""
    code = np.searchsorted(_KIND_HASHES, key := span_hashes(block, Span(start, np.minimum(end, start + 30))))
    code = np.minimum(code, len(_KIND_HASHES) - 1)
    return np.where(_KIND_HASHES[code] == key, _KIND_CODES[code], -1)


_KIND_ORDER = np.argsort(_KIND_HASHES := hashes_of([",".join(kinds).encode() for kinds in KIND_SETS]))
_KIND_HASHES, _KIND_CODES = _KIND_HASHES[_KIND_ORDER], _KIND_ORDER
