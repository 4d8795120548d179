"""A piece of a Kineto trace through the scanner: what the plain form would have made of the same events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.recordings.kineto.events import FLOAT_ONE
from lab.recordings.kineto.native.fields import Scanned, Texts
from lab.recordings.kineto.native.scanner import (
    ARROW_END,
    ARROW_START,
    BYTES_TEXT,
    DEVICE_TEXT,
    EV_IDX_TEXT,
    META,
    MISSING,
    ORIGINAL_STREAM_TEXT,
    SLICE,
    STREAM_TEXT,
    Rows,
    Scanner,
    scanner,
)
from lab.recordings.kineto.times import FLOAT_EXACT_US
from lab.recordings.kineto.values import ColumnEncoder

TABLES = ("", "names", "flows", "kernels", "ops", "runtime", "ranges", "waits")
_CODE = {table: code for code, table in enumerate(TABLES)}
_TIMED = ("kernels", "ops", "runtime", "ranges")
_NUMBERS_AS_TEXT = DEVICE_TEXT | STREAM_TEXT | ORIGINAL_STREAM_TEXT | BYTES_TEXT
_EXACT_NS = int(FLOAT_EXACT_US) * 1000


@dataclass(frozen=True)
class ScannedPiece:
    """timed: the slices of each table with ts_ns and dur_ns, each (n,). exact: a time is beyond a float64.

    indices: the recorder's own numbers of operators and ranges, and of other events. arrows: their ends.
    """

    timed: Mapping[str, tuple[Scanned, np.ndarray, np.ndarray]]
    exact: bool
    indices: tuple[np.ndarray, np.ndarray]
    arrows: Scanned
    _meta: tuple[bytes, ...]
    _waits: tuple[bytes, ...] = ()

    def names(self) -> Iterator[Any]:
        """The events that name processes and threads, decoded."""
        return map(FLOAT_ONE.decode, self._meta)

    def waits(self) -> Iterator[Any]:
        """The waits for events, decoded."""
        return map(FLOAT_ONE.decode, self._waits)


class ScannedPieces:
    """Scans the pieces of one file."""

    def __init__(self, own: Scanner, encode: ColumnEncoder, table_of: Mapping[str, str]) -> None:
        self._scanner, self._table_of = own, table_of
        self.texts = Texts(own, encode)
        self._codes = np.empty(0, dtype=np.int64)  # of tables, by the number of a category's text

    @classmethod
    def of(cls, encode: ColumnEncoder, table_of: Mapping[str, str]) -> ScannedPieces | None:
        """None where the scanner is not to be had."""
        own = scanner()
        return None if own is None else cls(own, encode, table_of)

    def scan(self, text: bytes) -> ScannedPiece | None:
        """None where the plain form must read the piece: it has anything unusual."""
        rows = self._scanner.scan(text)
        if rows is None:
            return None
        table = self._tables(rows.cat)
        phase, marks = rows.ph, rows.marks
        timed: dict[str, tuple[Scanned, np.ndarray, np.ndarray]] = {}
        exact = False
        for name in _TIMED:
            own = rows.where((table == _CODE[name]) & (phase == SLICE))
            if _has_odd_times(own) or (name == "kernels" and (own.marks & _NUMBERS_AS_TEXT).any()):
                return None
            exact |= bool((own.ts_ns >= _EXACT_NS).any())
            # Copies: a view of one column would keep all 48 of the piece.
            timed[name] = Scanned(own, self.texts), own.ts_ns.copy(), own.dur_ns.copy()
        arrows = rows.where((table == _CODE["flows"]) & ((phase == ARROW_START) | (phase == ARROW_END)))
        exact |= bool((arrows.ts_ns >= _EXACT_NS).any())
        of_operators = (table == _CODE["ops"]) | (table == _CODE["ranges"])
        of_others = ~of_operators & (table != _CODE["kernels"]) & (table != _CODE["runtime"])
        of_others &= table != _CODE["flows"]
        if (arrows.ts_ns == MISSING).any() or (marks[of_operators | of_others] & EV_IDX_TEXT).any():
            return None
        numbers = rows.ev_idx
        indices = numbers[of_operators & (numbers >= 0)], numbers[of_others & (numbers >= 0)]
        meta = _texts_of(rows, text, (table == _CODE["names"]) & (phase == META))
        waits = _texts_of(rows, text, (table == _CODE["waits"]) & (phase == SLICE))
        return ScannedPiece(timed, exact, indices, Scanned(arrows, self.texts), meta, waits)

    def _tables(self, cats: np.ndarray) -> np.ndarray:
        """The code of each event's table (n,)."""
        most = int(cats.max()) + 2
        if most > len(self._codes):
            self._codes = np.append(self._codes, np.full(2 * most, -1))
        codes = self._codes[cats + 1]
        if (codes < 0).any():
            for cat in dict.fromkeys(cats[codes < 0].tolist()):
                self._codes[cat + 1] = _CODE[self._table_of[self.texts.text[cat]]]
            codes = self._codes[cats + 1]
        found: np.ndarray = codes
        return found


def _texts_of(rows: Rows, text: bytes, mask: np.ndarray) -> tuple[bytes, ...]:
    """The text of each event that the mask (n,) chooses."""
    at = np.flatnonzero(mask)
    spans = zip(rows.start[at].tolist(), rows.end[at].tolist(), strict=True)
    return tuple(text[start:end] for start, end in spans)


def _has_odd_times(rows: Rows) -> bool:
    odd = (rows.ts_ns == MISSING) | (rows.dur_ns == MISSING) | (rows.dur_ns >= _EXACT_NS)
    return bool(odd.any())
