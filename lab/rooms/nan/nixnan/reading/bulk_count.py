"""Error lines counted a block at a time with numpy: for logs whose lines do not repeat.

A line that looks in every byte like nixnan's usual error line is counted here; any other is handed back to be
read by its pattern. Texts are compared by 64-bit hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from lab.rooms.nan.nixnan.grammar import TYPES
from lab.rooms.nan.nixnan.names import opcode_of
from lab.rooms.nan.nixnan.reading.bulk_scan import (
    KIND_RANGE,
    KIND_SETS,
    LABEL_RANGE,
    OPERAND_RANGE,
    UNPRINTED,
    Hashes,
    Places,
    Span,
    hashes_of,
    site_hashes,
    usual_lines,
)

OPCODE_LIMIT = 4096  # there are some hundreds
OTHER_OPCODES = "other opcodes"
_COUNTED_AT_A_TIME = 1 << 19


class BulkCounter:
    """Counts usual lines once the table of sites is full.

    The sites of the table are still counted one by one; further sites only count as one more, and their lines
    under their function and opcode.
    """

    def __init__(
        self,
        sites: list[tuple[str, str, int | None]],
        functions: list[str],
        function_limit: int,
        further_limit: int,
    ) -> None:
        self._sites = pd.Index(_hashes_of_sites(sites))
        self._functions = _Names(functions, function_limit)
        self._opcodes = _Names([], OPCODE_LIMIT)
        self.further = Distinct(further_limit)
        self._listed, self._by_function, self._cells = _Tally(), _Tally(), _Tally()

    def add_sites(self, sites: list[tuple[str, str, int | None]]) -> None:
        """Count sites that are not in the table and were read by their pattern."""
        self.further.add(_hashes_of_sites(sites))

    def take(self, text: bytes) -> tuple[int, list[int]] | None:
        """Count the usual ones of whole lines: (how many, numbers of the lines left to be read).

        None if all are left.
        """
        if not text.isascii() or any(octet in text for octet in UNPRINTED):
            return None
        scanned = usual_lines(text)
        if scanned is None:
            return None
        lines, unusual = scanned
        sites = site_hashes(lines.function_hashes, lines.sass_hashes, lines.operand)
        row = self._sites.get_indexer(pd.Index(sites))
        listed = row >= 0
        label_kinds = lines.label * KIND_RANGE + lines.kinds
        self._listed.add((row * (LABEL_RANGE * KIND_RANGE) + label_kinds)[listed])
        self.further.add(sites[~listed])
        functions = self._functions.rows(lines.function_hashes, lambda row: _text(text, lines.function, row))
        self._by_function.add(functions * KIND_RANGE + lines.kinds)
        opcodes = self._opcodes.rows(lines.opcode_hashes, lambda row: opcode_of(_text(text, lines.sass, row)))
        self._cells.add((opcodes * OPERAND_RANGE + lines.operand) * (LABEL_RANGE * KIND_RANGE) + label_kinds)
        return len(lines.kinds), unusual.tolist()

    def listed(self) -> Iterator[tuple[int, str, tuple[str, ...], int]]:
        """(row of the table of sites, label, kinds, lines)"""
        for code, count in self._listed.items():
            cell, kinds = divmod(code, KIND_RANGE)
            row, label = divmod(cell, LABEL_RANGE)
            yield row, TYPES[label], KIND_SETS[kinds], count

    def by_function(self) -> Iterator[tuple[str | None, tuple[str, ...], int]]:
        """(function, None for those beyond the limit; kinds, lines)"""
        for code, count in self._by_function.items():
            row, kinds = divmod(code, KIND_RANGE)
            yield self._functions.names[row] if row >= 0 else None, KIND_SETS[kinds], count

    def cells(self) -> Iterator[tuple[str, int, str, tuple[str, ...], int]]:
        """(opcode, operand, label, kinds, lines)"""
        for code, count in self._cells.items():
            cell, kinds = divmod(code, KIND_RANGE)
            cell, label = divmod(cell, LABEL_RANGE)
            row, operand = divmod(cell, OPERAND_RANGE)
            opcode = self._opcodes.names[row] if row >= 0 else OTHER_OPCODES
            yield opcode, operand, TYPES[label], KIND_SETS[kinds], count


def _hashes_of_sites(sites: list[tuple[str, str, int | None]]) -> Hashes:
    """The hashes of sites (function, sass, operand) that are in no block."""
    functions, sass = (hashes_of([site[part].encode() for site in sites]) for part in (0, 1))  # type: ignore[union-attr]
    operands = np.array([-1 if site[2] is None else site[2] for site in sites], np.int64)
    return site_hashes(functions, sass, operands)


def _text(text: bytes, span: Span, row: int) -> str:
    return text[span.start[row] : span.end[row]].decode()


class _Names:
    """Names by their hashes, in the order in which they came, up to a limit."""

    def __init__(self, names: list[str], limit: int) -> None:
        self.names, self._limit = names, limit
        self._index = pd.Index(hashes_of([name.encode() for name in names]))

    def rows(self, hashes: Hashes, name: Callable[[int], str]) -> Places:
        """The row of each hash, -1 beyond the limit; `name(position in hashes)` is called for new ones."""
        rows: Places = self._index.get_indexer(pd.Index(hashes))
        new = np.flatnonzero(rows < 0)
        if len(new) and len(self.names) < self._limit:
            keys, positions = np.unique(hashes[new], return_index=True)
            # As they come in the log: hashes differ by process.
            order = np.argsort(positions)[: self._limit - len(self.names)]
            self.names.extend(name(int(new[position])) for position in positions[order])
            self._index = self._index.append(pd.Index(keys[order]))
            rows = self._index.get_indexer(pd.Index(hashes))
        return rows


class _Tally:
    """How often each number came; numbers are held as they come and counted now and then."""

    def __init__(self) -> None:
        self._held: list[Places] = []
        self._size = 0
        self._counts = pd.Series(dtype=np.int64)

    def add(self, codes: Places) -> None:
        self._held.append(codes)
        self._size += len(codes)
        if self._size > _COUNTED_AT_A_TIME:
            self._count()

    def items(self) -> Iterator[tuple[int, int]]:
        self._count()
        return zip(self._counts.index.tolist(), self._counts.tolist(), strict=True)

    def _count(self) -> None:
        if self._held:
            codes, counts = np.unique(np.concatenate(self._held), return_counts=True)
            # Sums with gaps are float64: exact to 2**53 lines.
            self._counts = self._counts.add(pd.Series(counts, codes), fill_value=0).astype(np.int64)
        self._held, self._size = [], 0


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
