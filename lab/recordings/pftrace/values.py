"""Texts and arguments inside messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from lab.recordings.capture import Strings
from lab.recordings.protobuf import BadWire, Fields, fields

# DebugAnnotation: field numbers of its kinds of values.
_KEY_IID, _KEY, _BOOL, _UINT, _INT, _DOUBLE, _TEXT, _POINTER = 1, 10, 2, 3, 4, 5, 6, 7
_NESTED, _JSON, _ENTRIES, _ITEMS, _TEXT_IID = 8, 9, 11, 12, 17
_NUMBERS = (_BOOL, _UINT, _INT, _POINTER)
MOST_DEPTH = 16  # of arrays in arrays: hostile files nest without end


def texts(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, strings: Strings) -> np.ndarray:
    """Ids (n,) of the texts data[starts:ends]; each distinct one is decoded once."""
    return _ids(data, starts, ends, lambda text, start: strings.id(text.decode("utf-8", "replace")))


def _ids(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, decode: Callable[[bytes, int], int]
) -> np.ndarray:
    """decode(bytes, where they start) of each of data[starts:ends] (n,); called once for equal bytes."""
    raw = data.tobytes() if len(starts) > 64 else b""
    seen: dict[bytes, int] = {}
    found = np.empty(len(starts), dtype=np.int64)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        text = raw[start:end] if raw else data[start:end].tobytes()
        if (known := seen.get(text)) is None:
            known = seen[text] = decode(text, start)
        found[row] = known
    return found


def arguments(data: np.ndarray, given: Fields, strings: Strings) -> dict[str, np.ndarray]:
    """Columns of the annotations `given`: key_iid, key_id, number, text_iid, text_id; -1 where absent.

    An array or dictionary becomes the text of its JSON, as in a JSON trace.
    """
    count = len(given.message)
    own = fields(data, given.value, given.end)
    number = np.full(count, -1, dtype=np.int64)
    for kind in _NUMBERS:
        part = own.of(kind)
        number[part.message] = part.value
    part = own.of(_DOUBLE)
    real = part.value.view(np.float64)
    whole = np.isfinite(real) & (np.abs(real) < 2.0**62) & (real == np.round(real))
    number[part.message[whole]] = real[whole].astype(np.int64)
    text_id = np.full(count, -1, dtype=np.int64)
    for kind in (_TEXT, _JSON):
        part = own.of(kind)
        text_id[part.message] = texts(data, part.value, part.end, strings)
    key_id = np.full(count, -1, dtype=np.int64)
    part = own.of(_KEY)
    key_id[part.message] = texts(data, part.value, part.end, strings)
    lists = np.unique(own.message[np.isin(own.number, (_ENTRIES, _ITEMS, _NESTED))])
    text_id[lists] = _json_texts(data, given.value[lists], given.end[lists], strings)
    return {
        "key_iid": own.column(_KEY_IID, count),
        "key_id": key_id,
        "number": number,
        "text_iid": own.column(_TEXT_IID, count),
        "text_id": text_id,
    }


def _json_texts(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, strings: Strings) -> np.ndarray:
    """Ids (n,) of the JSON of annotations that hold lists; equal bytes are decoded once."""

    def as_json(text: bytes, start: int) -> int:
        padded = np.append(data[start : start + len(text)], np.zeros(16, dtype=np.uint8))
        value = _value(padded, 0, len(text), 0)
        return strings.id(json.dumps(value, separators=(",", ":")))

    return _ids(data, starts, ends, as_json)


def _value(data: np.ndarray, start: int, end: int, depth: int) -> Any:
    """The value of one annotation in Python's own types."""
    if depth > MOST_DEPTH:
        raise BadWire(start)
    own = fields(data, np.array([start]), np.array([end]))
    items, entries, value = [], {}, None
    for number, at, stop in zip(own.number.tolist(), own.value.tolist(), own.end.tolist(), strict=True):
        if number == _ITEMS:
            items.append(_value(data, at, stop, depth + 1))
        elif number == _ENTRIES:
            entries[_text(data, at, stop, _KEY)] = _value(data, at, stop, depth + 1)
        elif number in _NUMBERS:
            value = bool(at) if number == _BOOL else at
        elif number == _DOUBLE:
            real = float(np.array([at]).view(np.float64)[0])
            value = real if np.isfinite(real) else None
        elif number in (_TEXT, _JSON):
            value = data[at:stop].tobytes().decode("utf-8", "replace")
    if (own.number == _ITEMS).any():
        return items
    return entries if entries else value


def _text(data: np.ndarray, start: int, end: int, number: int) -> str:
    part = fields(data, np.array([start]), np.array([end])).of(number)
    if not len(part.message):
        return ""
    return data[part.value[-1] : part.end[-1]].tobytes().decode("utf-8", "replace")
