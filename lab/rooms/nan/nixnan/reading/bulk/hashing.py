"""64-bit hashes of the texts in a block of lines, computed for all lines at once.

Each process draws its own multipliers: in a log of 70 million distinct sites the chance that any two
share a hash is about one in ten thousand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
        place = place * _STEP + _STEP & 2**64 - 1
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
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return span_hashes(Block(b"".join(texts) + PAD), Span(np.concatenate([[0], ends[:-1]]), ends))


def opcode_hashes(block: Block, start: Places) -> Hashes:
    """A hash of the word at each place, which a blank ends."""
    hashes = np.full(len(start), TURNS[3])
    rows, offset = np.arange(len(start)), start
    while len(rows):
        words = block.words[offset]
        blank = _first_blank(words)
        # The bits below the mark of a blank are the bytes before it; without a blank the mask is all ones.
        masked = words & ((blank >> _SEVEN) - _ONE)
        masked ^= hashes[rows]
        masked *= TURNS[1]
        masked ^= masked >> _SHIFT
        hashes[rows] = masked
        unfinished = np.flatnonzero(blank == np.uint64(0))
        rows, offset = rows[unfinished], offset[unfinished] + 8
    return hashes


def _first_blank(words: Hashes) -> Hashes:
    """The top bit of the first octet that is a blank; 0 where none is."""
    differ = words ^ _BLANKS
    blanks: Hashes = (differ - _ONES) & ~differ & _TOPS
    lowest: Hashes = blanks & (~blanks + _ONE)
    return lowest


def after_blank(block: Block, start: Places) -> Places:
    """The place after the first blank at or after `start`; a usual line always has one further on."""
    rows = np.arange(len(start))
    offset: Places = start.copy()
    while len(rows):
        blank = _first_blank(block.words[offset[rows]])
        _, exponent = np.frexp((blank >> _SEVEN).astype(np.float64))  # 2**(8 n) is a blank at octet n
        hit = blank > 0
        offset[rows] += np.where(hit, (exponent - 1) // 8 + 1, 8)
        rows = rows[~hit]
    return offset
