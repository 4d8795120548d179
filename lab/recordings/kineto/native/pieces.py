"""Pieces of a Kineto trace through the scanner: what the plain form would have made of the same events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.recordings.kineto.events import FLOAT_ONE
from lab.recordings.kineto.native.fields import Scanned, Texts
from lab.recordings.kineto.native.scanner import Rows, Scanner, scanner
from lab.recordings.kineto.values import ColumnEncoder

_PARTS = {  # of a table: its collectives, launches and copies
    "kernels": {"comms": "kernel_comms", "copies": "copies"},
    "ops": {"comms": "op_comms"},
    "runtime": {"launches": "launches"},
    "ranges": {},
}


@dataclass(frozen=True)
class ScannedEvents:
    """timed: the slices of each table with ts_ns and dur_ns, each (n,), and modules those of modules' calls.
    exact: a time is beyond a float64.

    indices: the recorder's own numbers of operators and ranges, and of other events. arrows: their ends.
    names, waits: the events that name processes and threads, and the waits for events, decoded. foreign:
    slices of categories that nothing reads.
    """

    timed: Mapping[str, tuple[Scanned, np.ndarray, np.ndarray]]
    modules: tuple[Scanned, np.ndarray, np.ndarray]
    exact: bool
    indices: tuple[np.ndarray, np.ndarray]
    arrows: Scanned
    names: tuple[Any, ...]
    waits: tuple[Any, ...]
    foreign: Scanned


class ScannedPieces:
    """Scans the pieces of one file; num_bytes are those scanned and not taken yet."""

    def __init__(self, file_scanner: Scanner, encode: ColumnEncoder) -> None:
        self._scanner = file_scanner
        self.texts = Texts(file_scanner, encode)
        self.num_bytes = 0
        self._names: list[Any] = []
        self._waits: list[Any] = []

    @classmethod
    def of(cls, encode: ColumnEncoder) -> ScannedPieces | None:
        """None where the scanner is not to be had."""
        file_scanner = scanner()
        return None if file_scanner is None else cls(file_scanner, encode)

    def scan(self, text: bytes) -> bool:
        """False where the plain form must read the piece: it has anything unusual."""
        counts = self._scanner.added()
        rows = self._scanner.scan(text)
        if rows is None:
            return False
        try:  # an odd type in a field at which the scanner does not look
            names, waits = (
                list(map(FLOAT_ONE.decode, _texts_of(rows[table], text))) for table in ("meta", "waits")
            )
        except (ValueError, RecursionError):
            self._scanner.take_back(counts)
            return False
        self._names += names
        self._waits += waits
        self.num_bytes += len(text)
        return True

    def take(self) -> ScannedEvents:
        """The events scanned since the last call, until the next piece is scanned."""
        exact, rows = self._scanner.exact, self._scanner.take()
        names, waits = tuple(self._names), tuple(self._waits)
        self.num_bytes, self._names, self._waits = 0, [], []
        timed = {
            table: self._slices(rows[table], **{part: rows[name] for part, name in parts.items()})
            for table, parts in _PARTS.items()
        }
        return ScannedEvents(
            timed,
            self._slices(rows["modules"]),
            exact,
            (rows["operator_indices"].ev_idx, rows["other_indices"].ev_idx),
            Scanned(rows["arrows"], self.texts),
            names,
            waits,
            Scanned(rows["foreign"], self.texts),
        )

    def _slices(self, rows: Rows, **parts: Rows) -> tuple[Scanned, np.ndarray, np.ndarray]:
        return Scanned(rows, self.texts, **parts), rows.ts_ns, rows.dur_ns


def _texts_of(rows: Rows, text: bytes) -> Iterator[bytes]:
    for start, stop in zip(rows.start.tolist(), rows.stop.tolist(), strict=True):
        yield text[start:stop]
