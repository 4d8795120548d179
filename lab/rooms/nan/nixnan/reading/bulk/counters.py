"""Counts of hashes in bounded memory: an index of known ones, tallies, and the number of distinct ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np

from lab.errors import writing
from lab.rooms.nan.nixnan.reading.bulk.hashing import Hashes, Places

_COUNTED_AT_A_TIME = 1 << 19
_HELD_HASHES = 1 << 21  # 16 MiB, before they go to a file


class Index:
    """The row of each hash; rows are numbered in the order of `add`.

    A hash has a slot by its first bits. The few whose slot is taken are kept in order, to be searched.
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
            slot = np.minimum(np.searchsorted(self._late_keys, hashes[unsure]), len(self._late_keys) - 1)
            row[unsure] = np.where(self._late_keys[slot] == hashes[unsure], self._late_rows[slot], -1)
        return row

    def _slot(self, hashes: Hashes) -> Places:
        slots: Places = (hashes >> np.uint64(64 - self._BITS)).astype(np.int64)
        return slots


class Tally:
    """How often each number came; numbers are held as they come and counted now and then."""

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
        return zip(*(column.tolist() for column in self.counts()), strict=True)

    def counts(self) -> tuple[Places, Places]:
        """The numbers (n,) in order, and how often each came."""
        self._count()
        return self._codes, self._counts

    def _count(self) -> None:
        codes, counts = np.unique(np.concatenate([*self._held, self._codes[:0]]), return_counts=True)
        self._held, self._size = [], 0
        self._codes, inverse = np.unique(np.concatenate([self._codes, codes]), return_inverse=True)
        # float64 weights are exact to 2**53 lines
        self._counts = np.bincount(inverse, np.concatenate([self._counts, counts]), len(self._codes)).astype(
            np.int64
        )


class Distinct:
    """The exact number of distinct hashes, in bounded memory: beyond some millions they go to a file."""

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
                self._file = tempfile.TemporaryFile(prefix="lab-sites-")  # noqa: SIM115
            self._file.write(run.tobytes())
            self._file.flush()
        self._runs.append(len(run))
        self._held, self._size = [], 0

    def _slices(self, file: IO[bytes]) -> Iterator[list[Hashes]]:
        """All runs, cut at the same hashes: one piece of each at a time."""
        offsets = np.cumsum([0, *self._runs])
        spilled = np.memmap(file, np.uint64, "r", shape=(int(offsets[-1]),))
        runs = [spilled[offsets[n] : offsets[n + 1]] for n in range(len(self._runs))]
        limits = np.arange(1, self._PIECES, dtype=np.uint64) * np.uint64(2**64 // self._PIECES)
        cuts = [[0, *np.searchsorted(run, limits).tolist(), len(run)] for run in runs]
        for piece in range(self._PIECES):
            yield [run[cut[piece] : cut[piece + 1]] for run, cut in zip(runs, cuts, strict=True)]


def _sorted_once(hashes: Hashes) -> Hashes:
    """Each hash once, in order.

    Sorts in place; np.unique would build a hash table several times the size.
    """
    hashes.sort()
    is_first = np.ones(len(hashes), bool)
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    return hashes[is_first]
