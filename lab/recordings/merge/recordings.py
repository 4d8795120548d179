"""The files of a merge: which can be read, and which rank each one is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from lab.errors import LabError
from lab.recordings.merge.output import ENCODER
from lab.recordings.pieces import EventPieces, Piece, elements, once

Event = dict[str, Raw]
_EVENT_LIST = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)


class _Skipped(msgspec.Struct):
    """An event without any field of interest."""


_SKIP = msgspec.json.Decoder(list[_Skipped])
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


CUT = "cut"  # in a frame: why the end of the file is missing


def read_frame(path: Path, *, salvage: bool) -> dict[str, Any]:
    """The document around the events, with CUT; reads the file to its end to find damage."""
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
        if not salvage:
            raise pieces.bad(f"the document around traceEvents is not JSON ({error})", 0) from error
        frame = {}
    return (frame if isinstance(frame, dict) else {}) | ({CUT: pieces.cut} if pieces.cut else {})


def header_of(event: Event) -> tuple[bytes, bytes, bytes, bytes]:
    """Phase, category, pid and tid as raw JSON, with quotes."""
    return (
        bytes(event.get("ph", NOTHING)),
        bytes(event.get("cat", NOTHING)),
        bytes(event.get("pid", NOTHING)),
        bytes(event.get("tid", NOTHING)),
    )


@dataclass(frozen=True)
class Recording:
    """One rank's file as its frame describes it; base_ns is 0 where times are absolute."""

    path: Path
    rank: int
    base_ns: int
    frame: dict[str, Any]


def recordings(
    traces: Sequence[tuple[int | None, Path]], *, salvage: bool
) -> tuple[list[Recording], list[str]]:
    """The readable traces by rank, each rank once; a sentence for each of the rest.

    The rank that the trace says takes precedence over that of its path.
    """
    readable: dict[int, Recording] = {}
    problems: list[str] = []
    for rank_in_path, path in traces:
        try:
            frame = read_frame(path, salvage=salvage)
        except LabError as error:
            problems.append(f"left out: {error.problem} ({error.location})")
            continue
        recorded = natural_number(distributed_info(frame).get("rank"))
        rank = rank_in_path if recorded is None else recorded
        if rank is None:
            rank = max(readable, default=-1) + 1
            problems.append(f"rank unknown, shown as rank {rank} ({path})")
        if rank in readable:
            problems.append(f"left out: another trace is of rank {rank}, too ({path})")
            continue
        base_ns = natural_number(frame.get("baseTimeNanoseconds")) or 0
        readable[rank] = Recording(path, rank, base_ns, frame)
    return [readable[rank] for rank in sorted(readable)], problems


def absent(present: Sequence[Recording]) -> tuple[int, ...]:
    """Ranks below the world's size that have no recording."""
    size = max(
        (natural_number(distributed_info(name.frame).get("world_size")) or 0 for name in present), default=0
    )
    have = {name.rank for name in present}
    return tuple(rank for rank in range(min(size, 1 << 16)) if rank not in have)


def distributed_info(frame: Mapping[str, Any]) -> dict[str, Any]:
    info = frame.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def natural_number(value: Any) -> int | None:
    """The value if it is a plausible number, otherwise None."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return value if fits else None
