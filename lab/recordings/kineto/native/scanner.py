"""The compiled scanner and what it numbered: tables of int64 columns from the text of whole events."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from lab.native import Library


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    state, count, place = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    library.scan_new.restype, library.scan_new.argtypes = state, []
    library.scan_free.restype, library.scan_free.argtypes = None, [state]
    library.scan_columns.restype, library.scan_columns.argtypes = count, []
    library.scan_table.restype, library.scan_table.argtypes = count, [count, place]
    library.scan.restype = count
    library.scan.argtypes = [state, ctypes.c_char_p, count, place, place, place]
    library.scan_distinct.restype = count
    library.scan_distinct.argtypes = [
        state,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_void_p),
    ]
    return library


LIBRARY = Library(Path(__file__).with_name("scan.c"), _typed)
library, library_state = LIBRARY.get, LIBRARY.state


MISSING = -(2**63)  # a time that was not recorded
ARROW_END = 4  # phase f, as scan.c numbers them

# In the order of the enum in scan.c.
_NAMES = (
    "ph pid tid ts_ns dur_ns name cat id start stop row marks external_id sequence rf_id device stream "
    "original_stream kernel correlation graph graph_node regs smem_bytes bytes_ copy_kind src_kind dst_kind "
    "grid_x grid_y grid_z block_x block_y block_z collective in_nelems out_nelems group_size dtype in_split "
    "out_split pg_name pg_desc pg_ranks seq dst_rank src_rank group_rank concrete types strides dims ev_idx"
)
COLUMNS = {name: index for index, name in enumerate(_NAMES.split())}
# The same. comms are rows that describe a collective, launches the calls with a grid, copies the kernels with
# a kind of copy, indices the profiler's numbers of operators and ranges, and of other events; meta and waits
# the events that are decoded again, foreign the slices of categories that nothing reads.
_TABLES = (
    "kernels ops runtime ranges modules arrows kernel_comms op_comms launches copies operator_indices "
    "other_indices meta waits foreign"
)
TABLES = tuple(_TABLES.split())
PID_TEXT, TID_TEXT = 1, 2  # marks: the number is that of a text
_NO_MEMORY, _NO_ROOM = -2, -3
_FIRST_ROWS = 1 << 10  # of a block, which grows where a piece has more
_STAGGER = 24  # rows, so that columns do not all begin in the same set of the processor's cache


class Rows:
    """The rows of one table; a field is a column (n,) of int64."""

    def __init__(self, block: np.ndarray, layout: Mapping[str, int]) -> None:
        self._block, self._layout = block, layout

    def __len__(self) -> int:
        return int(self._block.shape[1])

    def __getattr__(self, name: str) -> np.ndarray:
        column: np.ndarray = self._block[self._layout[name]]
        return column


class Scanner:
    """Scans pieces of one file into tables. The numbers of texts and of lists count over the whole file.

    Raises RuntimeError for a library of another version, MemoryError without memory.
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._library, self._state = loaded, None
        if loaded.scan_columns() != len(COLUMNS):
            raise RuntimeError("scan.c and COLUMNS name different columns")
        self._layouts = [_layout(loaded, table) for table in range(len(TABLES))]
        if not all(self._layouts) or _layout(loaded, len(TABLES)):
            raise RuntimeError("scan.c and TABLES name different tables")
        self._state = loaded.scan_new()
        if not self._state:
            raise MemoryError
        self._blocks = [np.empty((0, 0), dtype=np.int64)] * len(TABLES)
        self._pointers = (ctypes.c_void_p * len(TABLES))()
        self._rooms, self._counts = (ctypes.c_int64 * len(TABLES))(), (ctypes.c_int64 * len(TABLES))()
        for table in range(len(TABLES)):
            self._make_room(table, _FIRST_ROWS + _STAGGER)
        self.texts = Distinct(lambda since: self._distinct(0, since))
        self.raws = Distinct(lambda since: self._distinct(1, since))

    def __del__(self) -> None:
        self._library.scan_free(self._state)

    def scan(self, text: bytes) -> dict[str, Rows] | None:
        """Adds the events of a text to the tables. The rows of each table that it added, until the next call;
        None if it has anything unusual: nothing is added then."""
        counts = tuple(self._counts)
        scan, state = self._library.scan, self._state
        while status := scan(state, text, len(text), self._pointers, self._rooms, self._counts):
            if status >= 0:
                return self._rows(counts)
            # A full block grows, and the piece is scanned again from its start.
            full = [table for table, room in enumerate(self._rooms) if self._counts[table] == room]
            self.take_back(counts)
            if status == _NO_MEMORY:
                raise MemoryError
            if status != _NO_ROOM:
                break
            for table in full:
                self._make_room(table, 2 * self._rooms[table] - _STAGGER)
        return None

    def added(self) -> tuple[int, ...]:
        """Mark for `take_back` to undo what is added after this."""
        return tuple(self._counts)

    def take_back(self, added: tuple[int, ...]) -> None:
        self._counts[:] = list(added)

    def take(self) -> dict[str, Rows]:
        """The rows of each table since the last call, until the next one; they are then no longer here."""
        rows = self._rows((0,) * len(TABLES))
        self.take_back((0,) * len(self._counts))
        return rows

    def _rows(self, since: tuple[int, ...]) -> dict[str, Rows]:
        tables = enumerate(zip(TABLES, self._blocks, self._layouts, strict=True))
        return {name: Rows(block[:, since[n] : self._counts[n]], at) for n, (name, block, at) in tables}

    def _make_room(self, table: int, rows: int) -> None:
        old, block = self._blocks[table], np.empty((len(self._layouts[table]), rows), dtype=np.int64)
        block[: len(old), : self._counts[table]] = old[:, : self._counts[table]]
        self._blocks[table], self._rooms[table], self._pointers[table] = block, rows, block.ctypes.data

    def _distinct(self, kind: int, since: int) -> list[bytes]:
        """The byte strings from number `since` on, in the order of their numbers."""
        bytes_at, ends_at = ctypes.c_void_p(), ctypes.c_void_p()
        count = self._library.scan_distinct(self._state, kind, ctypes.byref(bytes_at), ctypes.byref(ends_at))
        if count <= since:
            return []
        # Not np.ctypeslib, whose import takes longer than this.
        array = (ctypes.c_int64 * count).from_address(ends_at.value or 0)
        ends = np.frombuffer(array, dtype=np.int64)[max(since - 1, 0) :].tolist()
        start = ends.pop(0) if since else 0
        text = ctypes.string_at((bytes_at.value or 0) + start, ends[-1] - start)
        marks = [end - start for end in ends]
        return [text[a:b] for a, b in zip([0, *marks[:-1]], marks, strict=True)]


class Distinct:
    """Numbered byte strings, and the ids that a caller gives them when a row first needs one."""

    def __init__(self, fetch: Callable[[int], list[bytes]]) -> None:
        self._fetch = fetch
        self._texts: list[bytes] = []
        self._ids = np.empty(0, dtype=np.int64)

    def __getitem__(self, number: int) -> bytes:
        """The bytes of one number."""
        if number >= len(self._texts):
            self._texts += self._fetch(len(self._texts))
        return self._texts[number]

    def ids(self, numbers: np.ndarray, id_of: Callable[[bytes], int]) -> np.ndarray:
        """`id_of` the bytes of each number (n,), asked once a number, in the order of rows; -1 for -1."""
        if not len(numbers):
            return np.empty(0, dtype=np.int64)
        count = int(numbers.max()) + 1
        if count > len(self._ids) - 1:
            # Twice the numbers seen, so that growing copies each id a bounded number of times.
            room = np.full(max(2 * count, 1024) + 1, MISSING, dtype=np.int64)
            room[: max(len(self._ids) - 1, 0)] = self._ids[:-1]
            room[-1] = -1  # number -1 is "not there"
            self._ids = room
        ids_of_rows = self._ids[numbers]
        new = ids_of_rows == MISSING
        if new.any():
            for number in dict.fromkeys(numbers[new].tolist()):
                self._ids[number] = id_of(self[number])
            ids_of_rows = self._ids[numbers]
        ids: np.ndarray = ids_of_rows
        return ids


def text_of(raw: bytes) -> str:
    """What stands between the quotes of a JSON string. Raises ValueError for what is not one."""
    if b"\\" not in raw:
        return raw.decode()
    text: str = msgspec.json.decode(b'"' + raw + b'"', type=str)
    return text


def _layout(loaded: ctypes.CDLL, table: int) -> dict[str, int]:
    """The place of each column in the block of a table; empty for no table."""
    names, place = list(COLUMNS), ctypes.c_void_p()
    count = loaded.scan_table(table, ctypes.byref(place))
    numbers = ctypes.string_at(place.value or 0, count) if count else b""
    return {names[number]: index for index, number in enumerate(numbers)}


def scanner() -> Scanner | None:
    """A scanner for one file; None where it is not compiled and cannot be."""
    loaded = library()
    return None if loaded is None else Scanner(loaded)
