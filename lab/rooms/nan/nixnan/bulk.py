"""Error lines counted a block at a time with numpy: for logs whose lines do not repeat.

A line that looks in every byte like nixnan's usual error line is counted here; any other is handed back, to be read
one by one. Texts are told apart by 64-bit hashes whose multipliers are drawn anew in each process: in a log of 70
million distinct sites the chance that any two fall together is about one in ten thousand.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lab.errors import writing
from lab.rooms.nan.nixnan.grammar import KINDS, PREFIX, TYPES, opcode_of

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

PAD = bytes(64)  # what a block ends with, so that a word may be read at any place of it
_COUNTED_AT_A_TIME = 1 << 19
_PIECE = 64 << 10
_HELD_HASHES = 1 << 21  # 16 MiB, before they go to a file
_OPERANDS, _LABELS, _KINDS = 8, 8, 32  # the ranges that codes are packed with
OPCODE_LIMIT = 4096  # there are some hundreds
OTHER_OPCODES = "other opcodes"

_UNPRINTED = (b"\0", b"\t", b"\r", b"\x1b")  # what `grammar.tidy` takes out
KIND_SETS = tuple(
    kinds
    for size in range(1, 5)
    for kinds in combinations(KINDS, size)
    if not {"infinity", "-infinity"} <= set(kinds)
)


def _word(text: bytes) -> Any:
    return np.uint64(int.from_bytes(text, "little"))


_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_TURNS = np.random.default_rng().integers(0, 2**63, 4, np.uint64) * np.uint64(2) + np.uint64(1)
_STEP = int(_TURNS[2])
_SHIFT, _SEVEN, _ONE = np.uint64(29), np.uint64(7), np.uint64(1)
_BLANKS, _ONES, _TOPS = (_word(bytes([octet] * 8)) for octet in (0x20, 0x01, 0x80))
_AFTER_KINDS = (
    (0, _word(b"] detect")),
    (8, _word(b"ed in op")),
    (24, _word(b"of instr")),
    (31, _word(b"ruction ")),
)
_OPERAND_MASK, _OPERAND = ~_word(b"\0\0\0\0\0\0\xff\0"), _word(b"erand \0 ")
# The last eight bytes of a line tell its type, and how long that type's name is.
_ENDINGS = sorted(
    (int.from_bytes((" of type " + name).encode()[-8:], "little"), code) for code, name in enumerate(TYPES)
)
_ENDING_WORDS = np.array([word for word, _ in _ENDINGS], np.uint64)
_ENDING_CODES = np.array([code for _, code in _ENDINGS])
_ENDING_SIZES = np.array([len(TYPES[code]) + len(" of type ") for _, code in _ENDINGS])


class Block:
    """Whole lines with their PAD, as octets and as the eight octets from each place on."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.octets: Octets = np.frombuffer(text, np.uint8)
        self.words: Hashes = np.ndarray(len(text) - 7, "<u8", text, strides=(1,))


class Span(NamedTuple):
    start: Places
    end: Places


class Usual(NamedTuple):
    """The usual error lines of a block, in its order; all columns have one row a line."""

    kinds: Places  # into KIND_SETS
    operand: Places
    label: Places  # into TYPES
    sass: Span
    function: Span


class Scanner:
    """Finds the usual error lines of blocks. It keeps two buffers from block to block: making them costs more than using them."""

    def __init__(self) -> None:
        self._mark, self._more = np.empty(_PIECE, bool), np.empty(_PIECE, bool)

    def usual(self, block: Block) -> tuple[Usual, Places] | None:
        """The usual lines, and the numbers (from 0) of the lines that are not.

        None for a block to be read line by line: some line holds nixnan's prefix twice, or not at its start.
        """
        marks = self._marks(block.octets)
        at = np.flatnonzero(block.octets[marks] == 10)
        ends = marks[at]
        before = np.empty_like(at)
        before[0], before[1:] = -1, at[:-1]
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        good = (at - before >= 3) & (ends - starts > 60)  # a bracket, a semicolon, the end of the line
        ours = block.words[starts] == _word(b"#nixnan:")
        first = int(np.count_nonzero(ours))
        if self._hashes(block.octets) != first and block.text.count(PREFIX) != first:
            return None
        good &= ours
        good &= block.words[starts + 8] == _word(b" error [")
        rows = np.flatnonzero(good)
        lines, fits = _fields(
            block, starts[rows] + 16, marks[before[rows] + 1], marks[at[rows] - 1], ends[rows]
        )
        good[rows[~fits]] = False
        return lines, np.flatnonzero(~good)

    def _marks(self, octets: Octets) -> Places:
        """Where the ends of lines, the closing brackets and the semicolons are; a piece at a time, for the cache's sake."""
        found = []
        for start in range(0, len(octets), _PIECE):
            piece = octets[start : start + _PIECE]
            mark, more = self._mark[: len(piece)], self._more[: len(piece)]
            np.equal(piece, 10, out=mark)
            for octet in b"];":
                np.equal(piece, octet, out=more)
                np.logical_or(mark, more, out=mark)
            places = np.flatnonzero(mark)
            places += start
            found.append(places)
        return np.concatenate(found)

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
    """The columns of the lines whose every fixed byte is in its place, and which these are."""
    words, octets = block.words, block.octets
    good = (octets[bracket] == 93) & (semicolon > bracket + 40)
    for offset, word in _AFTER_KINDS:
        good &= words[bracket + offset] == word
    head = words[bracket + 16]
    good &= (head & _OPERAND_MASK) == _OPERAND
    operand = octets[bracket + 22].astype(np.int64) - 48
    good &= (operand >= 0) & (operand < _OPERANDS) & (octets[semicolon - 1] == 32)
    good &= (words[semicolon] == _word(b"; in fun")) & (words[semicolon + 6] == _word(b"unction "))
    last = words[end - 8]
    which = np.minimum(np.searchsorted(_ENDING_WORDS, last), len(TYPES) - 1)
    good &= _ENDING_WORDS[which] == last
    tail = end - _ENDING_SIZES[which]
    good &= (words[tail] == _word(b" of type")) & (tail >= semicolon + 14)
    kinds = _kind_codes(block, start, bracket)
    good &= kinds >= 0
    if b" at " in block.text:
        tail, told = _before_place(block, np.minimum(semicolon + 14, tail), tail)
        good &= told
    columns = (kinds, operand, _ENDING_CODES[which], bracket + 39, semicolon, tail)
    if not good.all():
        columns = tuple(column[good] for column in columns)
    kinds, operand, label, sass, semicolon, tail = columns
    return Usual(
        kinds, operand, label, Span(sass, _trimmed(octets, semicolon)), Span(semicolon + 14, tail)
    ), good


def _before_place(block: Block, start: Places, end: Places) -> tuple[Places, npt.NDArray[np.bool_]]:
    """Where the names end that a source line may follow (` at path:17`, ` at line 17`), and for which rows that is sure."""
    octets = block.octets
    blanks = np.flatnonzero(octets[: -len(PAD)] == 32)
    at = blanks[(block.words[blanks] & _word(b"\xff" * 4)) == _word(b" at ")]
    first = at[np.minimum(np.searchsorted(at, start), len(at) - 1)]
    placed = (first >= start) & (first < end)
    back = end - 1
    for _ in range(9):
        digit = (octets[back] >= 48) & (octets[back] <= 57)
        back = back - digit
    numbered = back < end - 1
    path = (octets[back] == 58) & (octets[first + 4] != 32) & (back > first + 4)
    line = (block.words[first] == _word(b" at line")) & (back == first + 8)
    return np.where(placed, first, end), ~placed | numbered & (path | line)


def _trimmed(octets: Octets, end: Places) -> Places:
    """The ends without the blanks before them; one is known to be there."""
    end = end - 1
    while (more := octets[end - 1] == 32).any():
        end = end - more
    return end


def _kind_codes(block: Block, start: Places, end: Places) -> Places:
    """Which of KIND_SETS stands between start and end; -1: none."""
    found = np.searchsorted(_KIND_HASHES, key := span_hashes(block, Span(start, np.minimum(end, start + 30))))
    found = np.minimum(found, len(_KIND_HASHES) - 1)
    return np.where(_KIND_HASHES[found] == key, _KIND_CODES[found], -1)


def span_hashes(block: Block, span: Span) -> Hashes:
    """A 64-bit hash of the bytes of each row's span.

    Eight bytes at a time go into a sum, each mixed by itself and then multiplied by its place's own number: what lies
    past the end is 0 and adds nothing, so all rows take the same turns until most have ended.
    """
    at, size = span.start, span.end - span.start
    hashes = size.astype(np.uint64)
    rows: Places | None = None
    place = turn = 0
    while len(at):
        place = place * _STEP + _STEP & 2**64 - 1
        mixed = block.words[at]
        mixed &= _MASKS[np.clip(size, 0, 8)]
        mixed ^= mixed >> _SHIFT
        mixed *= _TURNS[0]
        mixed ^= mixed >> _SHIFT
        mixed *= np.uint64(place | 1)
        if rows is None:
            hashes += mixed
        else:
            hashes[rows] += mixed
        size = size - 8
        if not (size > 0).any():
            break
        at = at + 8
        turn += 1
        if (
            turn % 3 == 0
        ):  # let go of the rows that have ended; the others may be read without running past the block
            more = np.flatnonzero(size > 0)
            rows = more if rows is None else rows[more]
            at, size = at[more], size[more]
    hashes ^= hashes >> _SHIFT
    hashes *= _TURNS[1]
    hashes ^= hashes >> _SHIFT
    return hashes


def site_hashes(function: Hashes, sass: Hashes, operand: Places) -> Hashes:
    """One hash from those of a site's parts; -1 is the operand of old logs, which do not name it."""
    mixed: Hashes = function * _TURNS[1] + sass * _TURNS[2] + (operand + 1).astype(np.uint64) * _TURNS[3]
    mixed ^= mixed >> _SHIFT
    mixed *= _TURNS[0]
    mixed ^= mixed >> _SHIFT
    return mixed


def hashes_of(texts: list[bytes]) -> Hashes:
    """The same hashes of texts that are in no block."""
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return span_hashes(Block(b"".join(texts) + PAD), Span(np.concatenate([[0], ends[:-1]]), ends))


_KIND_ORDER = np.argsort(_KIND_HASHES := hashes_of([",".join(kinds).encode() for kinds in KIND_SETS]))
_KIND_HASHES, _KIND_CODES = _KIND_HASHES[_KIND_ORDER], _KIND_ORDER


def opcode_hashes(block: Block, start: Places) -> Hashes:
    """A hash of the first word at each place, or of the second where the first is a predicate (`@!P0`)."""
    guarded = np.flatnonzero(block.octets[start] == 64)
    if len(guarded):
        start = start.copy()
        start[guarded] = _after_blank(block, start[guarded])
    hashes = np.full(len(start), _TURNS[3])
    rows, at = np.arange(len(start)), start
    while len(rows):
        words = block.words[at]
        blank = _first_blank(words)
        # The bits below the mark of a blank are the bytes before it; without a blank the mask is all ones.
        now = words & ((blank >> _SEVEN) - _ONE)
        now ^= hashes[rows]
        now *= _TURNS[1]
        now ^= now >> _SHIFT
        hashes[rows] = now
        more = np.flatnonzero(blank == np.uint64(0))
        rows, at = rows[more], at[more] + 8
    return hashes


def _first_blank(words: Hashes) -> Hashes:
    """The top bit of the first octet that is a blank; 0 where none is."""
    differ = words ^ _BLANKS
    found: Hashes = (differ - _ONES) & ~differ & _TOPS
    first: Hashes = found & (~found + _ONE)
    return first


def _after_blank(block: Block, start: Places) -> Places:
    """The place after the first blank at or after `start`; a usual line always has one further on."""
    rows = np.arange(len(start))
    at: Places = start.copy()
    while len(rows):
        blank = _first_blank(block.words[at[rows]])
        _, exponent = np.frexp((blank >> _SEVEN).astype(np.float64))  # 2**(8 n) is a blank at octet n
        hit = blank > 0
        at[rows] += np.where(hit, (exponent - 1) // 8 + 1, 8)
        rows = rows[~hit]
    return at


class Index:
    """Which row a hash stands for; rows are numbered in the order of `add`.

    A hash has a slot by its first bits. The few that find theirs taken are kept in order, to be searched.
    """

    _BITS = 18

    def __init__(self) -> None:
        self._keys = self._late_keys = np.empty(0, np.uint64)
        self._late_rows = np.empty(0, np.int64)
        self._slots = np.full(1 << self._BITS, -1, np.int32)

    def add(self, hashes: Hashes) -> None:
        """Add hashes that are not there yet, each once."""
        rows, slots = np.arange(len(self._keys), len(self._keys) + len(hashes)), self._slot(hashes)
        self._keys = np.concatenate([self._keys, hashes])
        free = self._slots[slots] < 0
        self._slots[slots[free]] = rows[free]
        late = rows[self._slots[slots] != rows]
        if len(late):
            self._late_rows = np.concatenate([self._late_rows, late])
            order = np.argsort(self._keys[self._late_rows])
            self._late_rows = self._late_rows[order]
            self._late_keys = self._keys[self._late_rows]

    def rows(self, hashes: Hashes) -> Places:
        """The row of each hash; -1 for one that was never added."""
        if not len(self._keys):
            return np.full(len(hashes), -1)
        row = self._slots[self._slot(hashes)].astype(np.int64)
        hit = (row >= 0) & (self._keys[row] == hashes)
        unsure = np.flatnonzero(~hit & (row >= 0))
        row[~hit] = -1
        if len(unsure) and len(self._late_keys):
            at = np.minimum(np.searchsorted(self._late_keys, hashes[unsure]), len(self._late_keys) - 1)
            row[unsure] = np.where(self._late_keys[at] == hashes[unsure], self._late_rows[at], -1)
        return row

    def _slot(self, hashes: Hashes) -> Places:
        slots: Places = (hashes >> np.uint64(64 - self._BITS)).astype(np.int64)
        return slots


class Tally:
    """How often each number came: held as they come, counted now and then."""

    def __init__(self) -> None:
        self._held: list[Places] = []
        self._size = 0
        self._codes, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, codes: Places) -> None:
        self._held.append(codes)
        self._size += len(codes)
        if self._size > _COUNTED_AT_A_TIME:
            self._count()

    def items(self) -> Iterator[tuple[int, int]]:
        self._count()
        return zip(self._codes.tolist(), self._counts.tolist(), strict=True)

    def _count(self) -> None:
        codes, counts = np.unique(np.concatenate([*self._held, self._codes[:0]]), return_counts=True)
        self._held, self._size = [], 0
        self._codes, where = np.unique(np.concatenate([self._codes, codes]), return_inverse=True)
        # float64 weights are exact to 2**53 lines
        self._counts = np.bincount(where, np.concatenate([self._counts, counts]), len(self._codes)).astype(
            np.int64
        )


class Distinct:
    """How many distinct hashes came, exactly, in bounded memory: beyond some millions they wait, sorted, in a file."""

    _PIECES = 64

    def __init__(self) -> None:
        self._held: list[Hashes] = []
        self._size = 0
        self._file: IO[bytes] | None = None
        self._runs: list[int] = []

    def add(self, hashes: Hashes) -> None:
        self._held.append(hashes)
        self._size += len(hashes)
        if self._size > _HELD_HASHES:
            self._held = [self._merged()]
            self._size = len(self._held[0])
            if self._size > _HELD_HASHES // 2:
                self._spill()

    def count(self) -> int:
        if self._file is None:
            return len(self._merged())
        self._spill()
        return sum(len(_sorted_once(np.concatenate(parts))) for parts in self._slices(self._file))

    def _merged(self) -> Hashes:
        return _sorted_once(np.concatenate([*self._held, np.empty(0, np.uint64)]))

    def _spill(self) -> None:
        run = self._merged()
        with writing(tempfile.gettempdir()):
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="lab-sites-")  # noqa: SIM115  it lives as long as this does
            self._file.write(run.tobytes())
            self._file.flush()
        self._runs.append(len(run))
        self._held, self._size = [], 0

    def _slices(self, file: IO[bytes]) -> Iterator[list[Hashes]]:
        """All runs cut at the same hashes, a piece of each at a time."""
        offsets = np.cumsum([0, *self._runs])
        whole = np.memmap(file, np.uint64, "r", shape=(int(offsets[-1]),))
        runs = [whole[offsets[n] : offsets[n + 1]] for n in range(len(self._runs))]
        limits = np.arange(1, self._PIECES, dtype=np.uint64) * np.uint64(2**64 // self._PIECES)
        cuts = [[0, *np.searchsorted(run, limits).tolist(), len(run)] for run in runs]
        for piece in range(self._PIECES):
            yield [run[cut[piece] : cut[piece + 1]] for run, cut in zip(runs, cuts, strict=True)]


class Bulk:
    """What is counted of usual lines once the table of sites is full.

    The sites of the table keep being told apart; further sites only count as one more, and their lines under their
    function and opcode.
    """

    def __init__(
        self, sites: list[tuple[str, str, int | None]], functions: list[str], function_limit: int
    ) -> None:
        self._scanner, self._sites, self._functions, self._opcodes = Scanner(), Index(), Index(), Index()
        self.function_names, self.opcode_names, self._limit = list(functions), list[str](), function_limit
        self._sites.add(hashes_of_sites(sites))
        self._functions.add(hashes_of([name.encode() for name in functions]))
        self.distinct = Distinct()
        self._listed, self._by_function, self._cells = Tally(), Tally(), Tally()

    def take(self, text: bytes) -> tuple[int, list[int]] | None:
        """Count the usual ones of whole lines: how many lines there are, and the numbers of those left to be read.

        None where all are left.
        """
        if not text.isascii() or any(octet in text for octet in _UNPRINTED):
            return None
        found = self._scanner.usual(block := Block(text + PAD))
        if found is None:
            return None
        lines, rest = found
        functions = span_hashes(block, lines.function)
        sites = site_hashes(functions, span_hashes(block, lines.sass), lines.operand)
        row = self._sites.rows(sites)
        listed = row >= 0
        label_kinds = lines.label * _KINDS + lines.kinds
        if listed.any():
            self._listed.add((row * (_LABELS * _KINDS) + label_kinds)[listed])
        self.distinct.add(sites[~listed])
        self._by_function.add(self._function_rows(block, lines, functions) * _KINDS + lines.kinds)
        opcodes = self._opcode_rows(block, lines.sass)
        self._cells.add((opcodes * _OPERANDS + lines.operand) * (_LABELS * _KINDS) + label_kinds)
        return len(lines.kinds) + len(rest), rest.tolist()

    def listed(self) -> Iterator[tuple[int, str, tuple[str, ...], int]]:
        """(row of the table of sites, label, kinds, lines)"""
        for code, count in self._listed.items():
            rest, kinds = divmod(code, _KINDS)
            row, label = divmod(rest, _LABELS)
            yield row, TYPES[label], KIND_SETS[kinds], count

    def by_function(self) -> Iterator[tuple[str | None, tuple[str, ...], int]]:
        """(function, None for those beyond the limit; kinds; lines)"""
        for code, count in self._by_function.items():
            row, kinds = divmod(code, _KINDS)
            yield self.function_names[row] if row >= 0 else None, KIND_SETS[kinds], count

    def cells(self) -> Iterator[tuple[str, int, str, tuple[str, ...], int]]:
        """(opcode, operand, label, kinds, lines)"""
        for code, count in self._cells.items():
            rest, kinds = divmod(code, _KINDS)
            rest, label = divmod(rest, _LABELS)
            opcode, operand = divmod(rest, _OPERANDS)
            yield (
                self.opcode_names[opcode] if opcode >= 0 else OTHER_OPCODES,
                operand,
                TYPES[label],
                KIND_SETS[kinds],
                count,
            )

    def _function_rows(self, block: Block, lines: Usual, hashes: Hashes) -> Places:
        return _rows_with_new(
            self._functions,
            self.function_names,
            self._limit,
            hashes,
            lambda n: _text(block, lines.function, n),
        )

    def _opcode_rows(self, block: Block, sass: Span) -> Places:
        return _rows_with_new(
            self._opcodes,
            self.opcode_names,
            OPCODE_LIMIT,
            opcode_hashes(block, sass.start),
            lambda n: opcode_of(_text(block, sass, n)),
        )


def hashes_of_sites(sites: list[tuple[str, str, int | None]]) -> Hashes:
    """The hashes of sites (function, sass, operand) that are in no block."""
    functions, sass = (hashes_of([site[part].encode() for site in sites]) for part in (0, 1))  # type: ignore[union-attr]
    return site_hashes(
        functions, sass, np.array([-1 if site[2] is None else site[2] for site in sites], np.int64)
    )


def _rows_with_new(
    index: Index, names: list[str], limit: int, hashes: Hashes, name: Callable[[int], str]
) -> Places:
    """The row of each hash; new ones enter the index, and `name(which line)` the names, up to the limit; then -1."""
    rows = index.rows(hashes)
    new = np.flatnonzero(rows < 0)
    if len(new) and len(names) < limit:
        keys, first = np.unique(hashes[new], return_index=True)
        keys, first = keys[: limit - len(names)], first[: limit - len(names)]
        names.extend(name(int(new[n])) for n in first)
        index.add(keys)
        rows = index.rows(hashes)
    return rows


def _sorted_once(hashes: Hashes) -> Hashes:
    """Each hash once, in order; sorts in place, where np.unique builds a hash table several times the size."""
    hashes.sort()
    first = np.ones(len(hashes), bool)
    np.not_equal(hashes[1:], hashes[:-1], out=first[1:])
    return hashes[first]


def _text(block: Block, span: Span, line: int) -> str:
    return block.text[span.start[line] : span.end[line]].decode()
