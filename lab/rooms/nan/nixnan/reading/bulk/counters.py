"""Counts of hashes in bounded memory: an index of known ones, tallies, and the number of distinct ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lab.rooms.nan.nixnan.reading.bulk.hashing import Hashes, Places

_COUNTED_AT_A_TIME = 1 << 19


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
        self._count()
        return zip(self._codes.tolist(), self._counts.tolist(), strict=True)

    def _count(self) -> None:
        codes, counts = np.unique(np.concatenate([*self._held, self._codes[:0]]), return_counts=True)
        self._held, self._size = [], 0
        self._codes, inverse = np.unique(np.concatenate([self._codes, codes]), return_inverse=True)
        # float64 weights are exact to 2**53 lines
        self._counts = np.bincount(inverse, np.concatenate([self._counts, counts]), len(self._codes)).astype(
            np.int64
        )


class Distinct:
    """The number of distinct hashes, up to a limit: in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._held: list[Hashes] = []
        self._size, self._limit = 0, limit

    def add(self, hashes: Hashes) -> None:
        self._held.append(hashes)
        self._size += len(hashes)
        if self._size > 2 * self._limit:
            self.count()

    def count(self) -> int:
        hashes = np.concatenate([*self._held, np.empty(0, np.uint64)])
        hashes.sort()
        is_first = np.ones(len(hashes), bool)
        # np.unique would build a hash table of several times the size
        np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
        self._held = [hashes[is_first][: self._limit]]
        self._size = len(self._held[0])
        return self._size
