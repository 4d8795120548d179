"""Text of events -> event structs, with the exact byte of what cannot be decoded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec

from lab.recordings.kineto.events import (
    EXACT_LIST,
    EXACT_ONE,
    FLOAT_LIST,
    FLOAT_ONE,
    FUNCTION_LIST,
    Args,
    Event,
    ExactEvent,
    Function,
)
from lab.recordings.pieces import EventPieces, Piece, elements, inside_string

ODD = "odd events were read with replaced characters or without their odd fields"
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_FUNCTION = b'"python_function"'
_END_BYTES = 512  # of a piece, looked at before it is decoded as one of functions only
_S = TypeVar("_S", bound=msgspec.Struct)


class EventDecoder:
    """Decodes pieces of a file; `exact` keeps times as digits instead of floats."""

    def __init__(self, pieces: EventPieces, problems: Counter[str]) -> None:
        self.exact = False
        self._pieces = pieces
        self._problems = problems

    def functions(self, piece: Piece) -> list[Function]:
        """The events of a piece of nothing but Python's functions, read in half the time; else none."""
        text = piece.text
        if _FUNCTION not in text[:_END_BYTES] or _FUNCTION not in text[-_END_BYTES:]:
            return []
        try:
            return FUNCTION_LIST.decode(b"[" + text + b"]")
        except (ValueError, RecursionError):
            return []

    def decode(self, piece: Piece) -> Sequence[Any]:
        """The events of a piece. Raises BadDataError for text that is not JSON, except under salvage."""
        try:
            return self._decode_list(piece.text)
        except (ValueError, RecursionError):
            return self._decode_one_by_one(piece)

    def _decode_list(self, text: bytes) -> Sequence[Any]:
        document = b"[" + text + b"]"
        events: Sequence[Any] = (EXACT_LIST if self.exact else FLOAT_LIST).decode(document)
        return events

    def _decode_one_by_one(self, piece: Piece) -> Sequence[Any]:
        """Find the events one by one, keep those that decode, and give back what is not part of the list."""
        if inside_string(piece.text) and self._pieces.cut_with_care(piece):
            return []
        parts = elements(piece.text)
        end = parts.spans[-1][1] if parts.spans else 0
        if end < len(piece.text):
            self._pieces.give_back(end)
        if parts.stray >= 0:
            self._damaged("text between events that is not an event", piece.offset + parts.stray)
        if end < len(piece.text):
            try:
                return self._decode_list(piece.text[:end])
            except (ValueError, RecursionError):
                pass
        events = [self._decode_one(piece.text[a:b], piece.offset + a) for a, b in parts.spans]
        return [event for event in events if event is not None]

    def _decode_one(self, text: bytes, offset: int) -> Any:
        try:
            return (EXACT_ONE if self.exact else FLOAT_ONE).decode(text)
        except (ValueError, RecursionError):
            loose = self._decode_loosely(text, offset)
            return None if loose is None else self._coerce(loose, ExactEvent if self.exact else Event)

    def _decode_loosely(self, text: bytes, offset: int) -> dict[str, Any] | None:
        try:
            decoded = text.decode("utf-8", "replace")
            event = json.loads(decoded, strict=False, parse_float=Decimal, parse_constant=lambda _: None)
        except (ValueError, RecursionError, InvalidOperation):
            self._damaged("an event is not JSON", offset)
            return None
        if not isinstance(event, dict):
            self._damaged("an event is not an object", offset)
            return None
        self._problems[ODD] += 1
        return event

    def _coerce(self, fields: dict[str, Any], kind: type[_S]) -> _S:
        """A struct of the fields that convert, each on its own; the others keep their defaults."""
        converted: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):
            value = fields.get(field.encode_name)
            if field.type is Args and isinstance(value, dict):
                converted[field.name] = self._coerce(value, Args)
            elif value is not None and field.type is not Args:
                try:
                    converted[field.name] = _convert(value, field.type)
                except (ValueError, TypeError, OverflowError, InvalidOperation):
                    self._problems[f"odd {field.encode_name!r} values were left out"] += 1
        return kind(**converted)

    def _damaged(self, fault: str, offset: int) -> None:
        if not self._pieces.salvage:
            raise self._pieces.bad(f"the trace is damaged: {fault}", offset)
        self._problems[f"{fault}: left out"] += 1


def clean_text(value: Any) -> str:
    """The value as text that can be written as UTF-8."""
    return str(value).encode("utf-8", "replace").decode()


def _convert(value: Any, kind: Any) -> Any:
    if kind is str:
        return clean_text(value)
    if kind is msgspec.Raw:
        return msgspec.Raw(_ENCODER.encode(value))
    if kind is float:
        return float(value)
    return msgspec.convert(value, kind, strict=False)
