"""Finds usual error lines of nixnan in a block by comparing fixed bytes of all lines at once; hashes texts.

Each process draws its own multipliers: in a log of 70 million distinct sites the chance that any two
share a hash is about one in ten thousand.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lab.rooms.nan.nixnan.grammar import KINDS, PREFIX, TYPES

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
PAD = bytes(64)  # what a block ends with, so that a word may be read at any place of it


def eight_bytes(text: bytes) -> Any:
    return np.uint64(int.from_bytes(text, "little"))


_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
TURNS = np.random.default_rng().integers(0, 2**63, 4, np.uint64) * np.uint64(2) + np.uint64(1)
_STEP = int(TURNS[2])
_SHIFT, _SEVEN, _ONE = np.uint64(29), np.uint64(7), np.uint64(1)
_BLANKS, _ONES, _TOPS = (eight_bytes(bytes([octet] * 8)) for octet in (0x20, 0x01, 0x80))


class Block:
    """Whole lines with their PAD, as octets and as the eight octets that start at each position."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.octets: Octets = np.frombuffer(text, np.uint8)
        self.words: Hashes = np.ndarray(len(text) - 7, "<u8", text, strides=(1,))


class Span(NamedTuple):
    start: Places
    end: Places


def span_hashes(block: Block, span: Span) -> Hashes:
    """A 64-bit hash of the bytes of each row's span.

    Eight bytes at a time are mixed, multiplied by a number of their position, and added up. What lies past
    the end is 0 and adds nothing, so all rows take the same turns until most have ended.
    """
    offset, size = span.start, span.end - span.start
    hashes = size.astype(np.uint64)
    rows: Places | None = None
    place = turn = 0
    while len(offset):
        place = place * _STEP + _STEP & 2**64 - 1  # another odd multiplier for every position
        mixed = block.words[offset]
        mixed &= _MASKS[np.clip(size, 0, 8)]
        mixed ^= mixed >> _SHIFT
        mixed *= TURNS[0]
        mixed ^= mixed >> _SHIFT
        mixed *= np.uint64(place | 1)
        if rows is None:
            hashes += mixed
        else:
            hashes[rows] += mixed
        size = size - 8
        if not (size > 0).any():
            break
        offset = offset + 8
        turn += 1
        if (
            turn % 3 == 0
        ):  # let go of the rows that have ended; the others may be read without running past the block
            unfinished = np.flatnonzero(size > 0)
            rows = unfinished if rows is None else rows[unfinished]
            offset, size = offset[unfinished], size[unfinished]
    hashes ^= hashes >> _SHIFT
    hashes *= TURNS[1]
    hashes ^= hashes >> _SHIFT
    return hashes


def site_hashes(function: Hashes, sass: Hashes, operand: Places) -> Hashes:
    """One hash from those of a site's parts; -1 is the operand of old logs, which do not name it."""
    mixed: Hashes = function * TURNS[1] + sass * TURNS[2] + (operand + 1).astype(np.uint64) * TURNS[3]
    mixed ^= mixed >> _SHIFT
    mixed *= TURNS[0]
    mixed ^= mixed >> _SHIFT
    return mixed


def hashes_of(texts: list[bytes]) -> Hashes:
    """The same hashes of texts that are in no block."""
    sizes = np.array([len(text) for text in texts], np.int64)
    ends = np.cumsum(sizes)
    return span_hashes(Block(b"".join(texts) + PAD), Span(ends - sizes, ends))


def after_blank(block: Block, start: Places) -> Places:
    """The place after the first blank at or after `start`; a usual line always has one further on."""
    rows = np.arange(len(start))
    offset: Places = start.copy()
    while len(rows):
        differ = block.words[offset[rows]] ^ _BLANKS
        # The top bit of every octet that is a blank, up to the first one for certain.
        blanks = (differ - _ONES) & ~differ & _TOPS
        lowest = blanks & (~blanks + _ONE)
        _, exponent = np.frexp((lowest >> _SEVEN).astype(np.float64))  # 2**(8 n) is a blank at octet n
        hit = lowest > 0
        offset[rows] += np.where(hit, (exponent - 1) // 8 + 1, 8)
        rows = rows[~hit]
    return offset


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


_TO_MARKS = bytes(octet in b"\n];" for octet in range(256))  # for bytes.translate, the fastest way


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


def usual_lines(text: bytes) -> tuple[Usual, Places] | None:
    """The usual lines of a text whose lines end with \\n, and the numbers (from 0) of the other lines.

    None for a text to be read line by line: some line holds nixnan's prefix twice, or not at its start.
    """
    block = Block(text + PAD)
    marks = np.flatnonzero(np.frombuffer(text.translate(_TO_MARKS), bool))
    line_ends = np.flatnonzero(block.octets[marks] == 10)
    ends = marks[line_ends]
    previous_ends = np.concatenate([[-1], line_ends[:-1]])
    starts = np.concatenate([[0], ends[:-1] + 1])
    # A bracket, a semicolon and the end of the line, and room for the words between them.
    good = (line_ends - previous_ends >= 3) & (ends - starts > 60)
    is_nixnan = block.words[starts] == eight_bytes(b"#nixnan:")
    num_nixnan = np.count_nonzero(is_nixnan)
    if text.count(b"#") != num_nixnan and text.count(PREFIX) != num_nixnan:  # a single byte is counted faster
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
    # `] detected in operand 0 of instruction ` has 39 bytes, `; in function ` has 14.
    opcode, certain = _opcodes(block, bracket + 39, semicolon, good)
    good &= certain
    columns = (kinds, operand, _ENDING_CODES[label_index], bracket + 39, semicolon, tail, opcode)
    if not good.all():
        columns = tuple(column[good] for column in columns)
    kinds, operand, label, start, semicolon, tail, opcode = columns
    sass, function = Span(start, _trimmed(octets, semicolon)), Span(semicolon + 14, tail)
    opcode_span = Span(opcode, after_blank(block, opcode) - 1)
    hashes = (span_hashes(block, span) for span in (function, sass, opcode_span))
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
    # Line numbers of up to nine digits; a longer one is left to the pattern.
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
