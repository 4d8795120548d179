"""Pieces of a Kineto trace through the scanner: what the plain form would have made of the same events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lab.recordings.kineto.decode import EVENT
from lab.recordings.kineto.native.scanner import PID_TEXT, TID_TEXT, Rows, Scanner, scanner, text_of
from lab.recordings.kineto.values import ColumnEncoder, Lookup

_TEXT_MARKS = {"pid": PID_TEXT, "tid": TID_TEXT}


class Texts:
    """Texts that the scanner of one file numbered, as ids of the file's strings."""

    def __init__(self, scanner: Scanner, encode: ColumnEncoder) -> None:
        self.scanner, self.encode = scanner, encode
        self._raw_id = encode.raw_id
        self.text = Lookup(lambda number: "" if number < 0 else text_of(scanner.texts[number]))

    def ids(self, numbers: np.ndarray) -> np.ndarray:
        return self.scanner.texts.ids(numbers, lambda raw: self.encode.strings[text_of(raw)])

    def raw_ids(self, numbers: np.ndarray) -> np.ndarray:
        return self.scanner.raws.ids(numbers, self._raw_id)


class Scanned:
    """`values.Fields` of scanned rows. Rows of a part stand for those of `rows` that have it."""

    def __init__(
        self,
        rows: Rows,
        texts: Texts,
        *,
        comms: Rows | None = None,
        launches: Rows | None = None,
        copies: Rows | None = None,
    ) -> None:
        self._rows, self._texts = rows, texts
        self._comms, self._launches, self._copies = comms, launches, copies

    def __len__(self) -> int:
        return len(self._rows)

    def ids(self, name: str) -> np.ndarray:
        numbers: np.ndarray = getattr(self._rows, name)
        is_text = (self._rows.marks & _TEXT_MARKS[name]) != 0
        if not is_text.any():
            return numbers
        return np.where(is_text, -2 - self._texts.ids(np.where(is_text, numbers, -1)), numbers)

    def names(self) -> np.ndarray:
        return self._texts.ids(self._rows.name).astype(np.int32)

    def by_category(self, value_of: Callable[[str], Any], kind: type) -> np.ndarray:
        used, position = np.unique(self._rows.cat, return_inverse=True)
        values: np.ndarray = np.array([value_of(self._texts.text[one]) for one in used.tolist()], dtype=kind)
        return values[position.ravel()]

    def categories(self) -> list[str]:
        """The category of each event."""
        return [self._texts.text[number] for number in self._rows.cat.tolist()]

    def ints(self, name: str) -> np.ndarray:
        numbers: np.ndarray = getattr(self._rows, name)
        return numbers

    def texts(self, name: str) -> np.ndarray:
        return self._texts.ids(getattr(self._rows, name)).astype(np.int32)

    def raws(self, name: str) -> np.ndarray:
        return self._texts.raw_ids(getattr(self._rows, name)).astype(np.int32)

    def sizes(self, name: str) -> np.ndarray:
        return np.stack([getattr(self._rows, f"{name}_{axis}") for axis in "xyz"], axis=1)

    def collectives(self) -> tuple[np.ndarray, Scanned]:
        if self._comms is None:
            return np.empty(0, dtype=np.int64), self
        return self._comms.row, Scanned(self._comms, self._texts)

    def copies(self) -> Iterator[tuple[int, str, str, str]]:
        if self._copies is None:
            return
        kinds = (getattr(self._copies, name).tolist() for name in ("copy_kind", "src_kind", "dst_kind"))
        for row, *numbers in zip(self._copies.row.tolist(), *kinds, strict=True):
            kind, source, target = (self._texts.text[number] for number in numbers)
            yield row, kind, source, target

    def geometry(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        if self._launches is None:
            return
        sizes = [getattr(self._launches, f"{name}_{axis}") for name in ("grid", "block") for axis in "xyz"]
        columns = np.stack([self._launches.correlation, *sizes, self._launches.smem_bytes], axis=1)
        for correlation, *geometry in columns.tolist():
            yield correlation, tuple(geometry)


_PARTS = {  # of a table: its collectives, launches and copies
    "kernels": {"comms": "kernel_comms", "copies": "copies"},
    "ops": {"comms": "op_comms"},
    "runtime": {"launches": "launches"},
}


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
                list(map(EVENT.decode, _texts_of(rows[table], text))) for table in ("meta", "waits")
            )
        except (ValueError, RecursionError):
            self._scanner.take_back(counts)
            return False
        self._names += names
        self._waits += waits
        self.num_bytes += len(text)
        return True

    def take(self) -> tuple[dict[str, Scanned], list[Any], list[Any]]:
        """The tables of what was scanned since the last call, valid until the next piece is scanned; and
        the events that name processes and threads, and the waits for events, decoded."""
        rows, names, waits = self._scanner.take(), self._names, self._waits
        self.num_bytes, self._names, self._waits = 0, [], []
        parts = {table: {part: rows[name] for part, name in of.items()} for table, of in _PARTS.items()}
        tables = {table: Scanned(rows[table], self.texts, **parts.get(table, {})) for table in rows}
        return tables, names, waits


def _texts_of(rows: Rows, text: bytes) -> Iterator[bytes]:
    for start, stop in zip(rows.start.tolist(), rows.stop.tolist(), strict=True):
        yield text[start:stop]
