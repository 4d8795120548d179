"""Events of one Kineto file, as raw JSON values, a piece at a time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from lab.recordings.pieces import EventPieces, Piece, elements, once

Event = dict[str, Raw]
_EVENT_LIST = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)


class _Skipped(msgspec.Struct):
    """An event without any field of interest."""


_SKIP = msgspec.json.Decoder(list[_Skipped])
ENCODER = msgspec.json.Encoder(decimal_format="number")
NOTHING = Raw(b'""')


def events_of(path: Path, odd: Counter[str], *, salvage: bool) -> Iterator[list[Event]]:
    """The events of a file, a piece at a time; what is not JSON is left out and counted in `odd`."""
    pieces = EventPieces(path, salvage=salvage)
    for piece in pieces:
        try:
            piece.text.decode()  # skipped strings are copied unread: the output must be UTF-8 all the same
            yield _EVENT_LIST.decode(b"[" + piece.text + b"]")
        except (ValueError, RecursionError):
            yield _decoded_one_by_one(pieces, piece, odd)


def _decoded_one_by_one(pieces: EventPieces, piece: Piece, odd: Counter[str]) -> list[Event]:
    parts = elements(piece.text)
    end = parts.spans[-1][1] if parts.spans else 0
    if end < len(piece.text):
        pieces.give_back(end)
    if parts.stray >= 0:
        odd["text between events that is not an event"] += 1
    events = []
    for start, stop in parts.spans:
        try:
            text = piece.text[start:stop].decode("utf-8", "replace")
            loose = json.loads(text, strict=False, parse_float=Decimal, parse_constant=lambda _: None)
            events.append(_EVENT.decode(ENCODER.encode(loose)))
        except (ValueError, RecursionError, InvalidOperation):
            odd["events that are not JSON were left out"] += 1
    return events


def read_frame(path: Path, *, salvage: bool) -> dict[str, Any]:
    """The document around the events; reads the file to its end to find damage."""
    pieces = EventPieces(path, salvage=salvage)
    for piece in pieces:
        try:
            _SKIP.decode(b"[" + piece.text + b"]")
        except (ValueError, RecursionError):
            _decoded_one_by_one(pieces, piece, Counter())
    try:
        text = pieces.frame.decode("utf-8", "replace")
        frame = json.loads(text, strict=False, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        if salvage:
            return {}
        raise pieces.bad(f"the document around traceEvents is not JSON ({error})", 0) from error
    return frame if isinstance(frame, dict) else {}


def header_of(event: Event) -> tuple[bytes, bytes, bytes, bytes]:
    """Phase, category, pid and tid as raw JSON, with quotes."""
    return (
        bytes(event.get("ph", NOTHING)),
        bytes(event.get("cat", NOTHING)),
        bytes(event.get("pid", NOTHING)),
        bytes(event.get("tid", NOTHING)),
    )
