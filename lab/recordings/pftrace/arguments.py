"""Arguments of slices and of GPU render stages, under their names in torch's JSON."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from lab.recordings.kineto.events import Args
from lab.recordings.protobuf import BadWire, items

# DebugAnnotation: field numbers of its kinds of values.
_KEY_IID, _KEY, _BOOL, _UINT, _INT, _DOUBLE, _TEXT, _POINTER = 1, 10, 2, 3, 4, 5, 6, 7
_JSON, _ENTRIES, _ITEMS, _TEXT_IID = 9, 11, 12, 17
KEY, TEXT, COMPUTE_ARG = 3, 29, 1001  # kinds of interned texts
_GRID, _BLOCK, _LAUNCH_ARGS = 1, 2, 3  # of a launch
MOST_DEPTH = 16  # of arrays in arrays: hostile files nest without end
Interned = dict[int, dict[int, str]]  # texts by kind and number
# Names in render stages and in lab's merges -> those in torch's JSON.
_JSON_NAMES = {
    "external_id": "External id",
    "sequence": "Sequence number",
    "stream id": "stream",
    "device id": "device",
    "registers_per_thread": "registers per thread",
    "shared_mem_dynamic": "shared memory",
    "dims": "Input Dims",
    "types": "Input type",
    "strides": "Input Strides",
    "collective": "Collective name",
    "in_nelems": "In msg nelems",
    "out_nelems": "Out msg nelems",
    "group_size": "Group size",
    "pg_name": "Process Group Name",
    "pg_desc": "Process Group Description",
    "pg_ranks": "Process Group Ranks",
    "seq": "Seq",
}
# Without the indices of events: instants have such, too, and are not read.
_KINDS: dict[str, Any] = {
    field.encode_name: field.type for field in msgspec.structs.fields(Args) if field.name != "ev_idx"
}
_AXES = {f"{size}_{axis}": (size, index) for size in ("grid", "block") for index, axis in enumerate("xyz")}


def text(data: bytes, parts: dict[int, tuple[int, int]], number: int) -> str:
    """The text of a field, "" where it is absent."""
    return _decoded(data, *parts[number]) if number in parts else ""


def _decoded(data: bytes, start: int, end: int) -> str:
    return data[start:end].decode("utf-8", "replace")


class Arguments:
    """The arguments of one event that Kineto's reader uses; `interned` are the texts of its sequence."""

    def __init__(self, interned: Interned) -> None:
        self.values: dict[str, Any] = {}
        self._interned = interned

    def add_annotation(self, data: bytes, start: int, end: int) -> None:
        """A DebugAnnotation."""
        key, value = self._annotation(data, start, end, 0)
        self._set(key, value)

    def add_extra(self, data: bytes, start: int, end: int) -> None:
        """A pair of texts of a render stage."""
        parts = {number: _decoded(data, value, stop) for number, value, stop, _ in items(data, start, end)}
        self._set(parts.get(1, ""), parts.get(2, ""))

    def add_launch(self, data: bytes, start: int, end: int) -> None:
        """Geometry and parameters of a render stage's launch."""
        for number, begin, stop, _ in items(data, start, end):
            parts = {key: (value, edge) for key, value, edge, _ in items(data, begin, stop)}
            if number in (_GRID, _BLOCK):
                size = "grid" if number == _GRID else "block"
                self.values[size] = [parts.get(axis, (-1, 0))[0] for axis in (1, 2, 3)]
            elif number == _LAUNCH_ARGS:
                key = text(data, parts, 2) or self._interned[COMPUTE_ARG].get(parts.get(1, (0, 0))[0], "")
                self._set(key, parts[4][0] if 4 in parts else parts[3][0] if 3 in parts else None)

    def _annotation(self, data: bytes, start: int, end: int, depth: int) -> tuple[str, Any]:
        """The key and value of an annotation; its lists and dictionaries hold annotations."""
        if depth > MOST_DEPTH:
            raise BadWire(start)
        key, elements, entries = "", list[Any](), dict[str, Any]()
        value: Any = None
        for number, part, stop, _ in items(data, start, end):
            if number == _KEY_IID:
                key = key or self._interned[KEY].get(part, "")
            elif number == _KEY:
                key = _decoded(data, part, stop)
            elif number in (_BOOL, _UINT, _POINTER):
                value = bool(part) if number == _BOOL and depth else part
            elif number == _INT:
                value = part - (1 << 64) if part >> 63 else part
            elif number == _DOUBLE:
                value = _number_of(struct.unpack("<d", part.to_bytes(8, "little"))[0])
            elif number in (_TEXT, _JSON):
                value = _decoded(data, part, stop)
            elif number == _TEXT_IID:
                value = self._interned[TEXT].get(part)
            elif number == _ITEMS:
                elements.append(self._annotation(data, part, stop, depth + 1)[1])
            elif number == _ENTRIES:
                name, entry = self._annotation(data, part, stop, depth + 1)
                entries[name] = entry
        return key, elements or entries or value

    def _set(self, key: str, value: Any) -> None:
        name = _JSON_NAMES.get(key, key)
        if name in _AXES:
            size, axis = _AXES[name]
            self.values.setdefault(size, [-1, -1, -1])[axis] = value if isinstance(value, int) else -1
        elif name in _KINDS and (converted := _converted(_KINDS[name], value)) is not None:
            self.values[name] = converted


def _number_of(real: float) -> int | None:
    """A number that a writer wrote as a double; None where it is not integral."""
    return int(real) if abs(real) < 2.0**62 and real == round(real) else None


def _converted(kind: Any, value: Any) -> Any:
    """A value as JSON has an argument of this kind; None for what it cannot be. Numbers may be digits."""
    if kind is str:
        return value if isinstance(value, str) else None
    if kind in (int, int | str):
        if isinstance(value, str):
            digits = value.strip()
            return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None
        return value if isinstance(value, int) else None
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (ValueError, RecursionError):
            return None
    if kind is msgspec.Raw:
        return value
    is_size = isinstance(value, list) and len(value) == 3 and all(type(part) is int for part in value)
    return value if is_size else None
