"""Error lines counted a block at a time with numpy: for logs whose lines do not repeat.

A line that looks in every byte like nixnan's usual error line is counted here; any other is handed back to be
read by its pattern. Texts are compared by 64-bit hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from lab.rooms.nan.nixnan.grammar import TYPES
from lab.rooms.nan.nixnan.opcodes import opcode_of
from lab.rooms.nan.nixnan.reading.bulk.counters import Distinct, Index, Tally
from lab.rooms.nan.nixnan.reading.bulk.hashing import Hashes, Places, Span, hashes_of, site_hashes
from lab.rooms.nan.nixnan.reading.bulk.scanner import (
    KIND_RANGE,
    KIND_SETS,
    LABEL_RANGE,
    OPERAND_RANGE,
    UNPRINTED,
    Scanner,
    Usual,
)

OPCODE_LIMIT = 4096  # there are some hundreds
OTHER_OPCODES = "other opcodes"


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
        self._scanner = Scanner()
        self._sites, self._functions, self._opcodes = Index(), Index(), Index()
        self._function_names, self._opcode_names = functions, list[str]()
        self._function_limit = function_limit
        self._sites.add(_hashes_of_sites(sites))
        self._functions.add(hashes_of([name.encode() for name in functions]))
        self.further = Distinct(further_limit)
        self._listed, self._by_function, self._cells = Tally(), Tally(), Tally()

    def add_sites(self, sites: list[tuple[str, str, int | None]]) -> None:
        """Count sites that are not in the table and were read by their pattern."""
        self.further.add(_hashes_of_sites(sites))

    def take(self, text: bytes) -> tuple[int, list[int]] | None:
        """Count the usual ones of whole lines: (how many, numbers of the lines left to be read).

        None if all are left.
        """
        if not text.isascii() or any(octet in text for octet in UNPRINTED):
            return None
        scanned = self._scanner.usual(text)
        if scanned is None:
            return None
        lines, unusual = scanned
        sites = site_hashes(lines.function_hashes, lines.sass_hashes, lines.operand)
        row = self._sites.rows(sites)
        listed = row >= 0
        label_kinds = lines.label * KIND_RANGE + lines.kinds
        if listed.any():
            self._listed.add((row * (LABEL_RANGE * KIND_RANGE) + label_kinds)[listed])
        self.further.add(sites[~listed])
        self._by_function.add(self._function_rows(text, lines) * KIND_RANGE + lines.kinds)
        opcodes = self._opcode_rows(text, lines)
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
            yield self._function_names[row] if row >= 0 else None, KIND_SETS[kinds], count

    def cells(self) -> Iterator[tuple[str, int, str, tuple[str, ...], int]]:
        """(opcode, operand, label, kinds, lines)"""
        for code, count in self._cells.items():
            cell, kinds = divmod(code, KIND_RANGE)
            cell, label = divmod(cell, LABEL_RANGE)
            opcode, operand = divmod(cell, OPERAND_RANGE)
            yield (
                self._opcode_names[opcode] if opcode >= 0 else OTHER_OPCODES,
                operand,
                TYPES[label],
                KIND_SETS[kinds],
                count,
            )

    def _function_rows(self, text: bytes, lines: Usual) -> Places:
        def name(line: int) -> str:
            return _text(text, lines.function, line)

        names, limit = self._function_names, self._function_limit
        return _rows_with_new(self._functions, names, limit, lines.function_hashes, name)

    def _opcode_rows(self, text: bytes, lines: Usual) -> Places:
        def name(line: int) -> str:
            return opcode_of(_text(text, lines.sass, line))

        return _rows_with_new(self._opcodes, self._opcode_names, OPCODE_LIMIT, lines.opcode_hashes, name)


def _hashes_of_sites(sites: list[tuple[str, str, int | None]]) -> Hashes:
    """The hashes of sites (function, sass, operand) that are in no block."""
    functions, sass = (hashes_of([site[part].encode() for site in sites]) for part in (0, 1))  # type: ignore[union-attr]
    return site_hashes(
        functions, sass, np.array([-1 if site[2] is None else site[2] for site in sites], np.int64)
    )


def _rows_with_new(
    index: Index, names: list[str], limit: int, hashes: Hashes, name: Callable[[int], str]
) -> Places:
    """The row of each hash; -1 for those beyond the limit.

    New hashes enter the index, and `name(which line)` the names, up to the limit.
    """
    rows = index.rows(hashes)
    new = np.flatnonzero(rows < 0)
    if len(new) and len(names) < limit:
        keys, first_lines = np.unique(hashes[new], return_index=True)
        order = np.argsort(first_lines)[
            : limit - len(names)
        ]  # as they come in the log; hashes differ by process
        keys, first_lines = keys[order], first_lines[order]
        names.extend(name(int(new[n])) for n in first_lines)
        index.add(keys)
        rows = index.rows(hashes)
    return rows


def _text(text: bytes, span: Span, line: int) -> str:
    return text[span.start[line] : span.end[line]].decode()
