"""Arguments of slices: numbers, texts, and lists as the JSON that torch's JSON traces have."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from lab.recordings.capture import Strings
from lab.recordings.protobuf import BadWire, Fields, distinct_ids, fields, inside, text_of, texts

# DebugAnnotation: field numbers of its kinds of values.
_KEY_IID, _KEY, _BOOL, _UINT, _INT, _DOUBLE, _TEXT, _POINTER = 1, 10, 2, 3, 4, 5, 6, 7
_NESTED, _JSON, _ENTRIES, _ITEMS, _TEXT_IID = 8, 9, 11, 12, 17
_NUMBERS = (_BOOL, _UINT, _INT, _POINTER)
MOST_DEPTH = 16  # of arrays in arrays: hostile files nest without end


def arguments(data: np.ndarray, annotations: Fields, strings: Strings) -> dict[str, np.ndarray]:
    """Columns (n,) of annotations: key_iid, key_id, number, text_iid, text_id; -1 where absent."""
    count = len(annotations.message)
    values = inside(data, annotations)
    number = np.full(count, -1, dtype=np.int64)
    for kind in _NUMBERS:
        part = values.of(kind)
        number[part.message] = part.value
    part = values.of(_DOUBLE)
    real = part.value.view(np.float64)
    integral = np.isfinite(real) & (np.abs(real) < 2.0**62) & (real == np.round(real))
    number[part.message[integral]] = real[integral].astype(np.int64)
    text_id = texts(data, values.where(np.isin(values.number, (_TEXT, _JSON))), strings, count)
    lists = np.unique(values.message[np.isin(values.number, (_ENTRIES, _ITEMS, _NESTED))])
    text_id[lists] = _json_texts(data, Fields(*(column[lists] for column in annotations)), strings)
    return {
        "key_iid": values.column(_KEY_IID, count),
        "key_id": texts(data, values.of(_KEY), strings, count),
        "number": number,
        "text_iid": values.column(_TEXT_IID, count),
        "text_id": text_id,
    }


def _json_texts(data: np.ndarray, annotations: Fields, strings: Strings) -> np.ndarray:
    """Ids (n,) of the JSON of annotations that hold lists; equal bytes are decoded once."""

    def as_json(text: bytes, start: int) -> int:
        padded = np.append(data[start : start + len(text)], np.zeros(16, dtype=np.uint8))
        return strings.id(json.dumps(_value(padded, 0, len(text), 0), separators=(",", ":")))

    return distinct_ids(data, annotations, as_json)


def _value(data: np.ndarray, start: int, end: int, depth: int) -> Any:
    """The value of one annotation in Python's own types."""
    if depth > MOST_DEPTH:
        raise BadWire(start)
    message = fields(data, np.array([start]), np.array([end]))
    items, entries, value = [], {}, None
    rows = zip(message.number.tolist(), message.value.tolist(), message.end.tolist(), strict=True)
    for number, begin, stop in rows:
        if number == _ITEMS:
            items.append(_value(data, begin, stop, depth + 1))
        elif number == _ENTRIES:
            entry = fields(data, np.array([begin]), np.array([stop]))
            entries[text_of(data, entry, _KEY)] = _value(data, begin, stop, depth + 1)
        elif number in _NUMBERS:
            value = bool(begin) if number == _BOOL else begin
        elif number == _DOUBLE:
            real = float(np.array([begin]).view(np.float64)[0])
            value = real if np.isfinite(real) else None
        elif number in (_TEXT, _JSON):
            value = data[begin:stop].tobytes().decode("utf-8", "replace")
    if (message.number == _ITEMS).any():
        return items
    return entries if entries else value
