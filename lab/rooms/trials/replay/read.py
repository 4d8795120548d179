"""Records of bits, one file per rank: from outside, so neither size nor type is trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from lab.core.words import printable
from lab.errors import BadDataError

PATTERN = "bits_rank*.jsonl"
MOST_BYTES = 4 << 30
MOST_LINE_BYTES = 4 << 20
MOST_RANKS = 4096
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class Head(msgspec.Struct, frozen=True):
    """Where a rank ran, and how it was looked at."""

    format: int
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
    world: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)] = 1
    host: Text = ""
    device: Text = ""
    uuid: Text = ""
    torch: Text = ""
    threads: int = 0
    model: Text = ""
    level: Text = ""
    replicated: bool = False
    compiled: bool = False
    deterministic: bool = False


class Event(msgspec.Struct, frozen=True):
    """Bits at one place; s: step, k: attempt (0: the program's own), p: phase, m: module."""

    s: int
    k: int
    p: Text
    kind: Text
    name: Text
    m: Text = ""
    given: tuple[str, ...] = msgspec.field(default=(), name="in")
    out: tuple[str, ...] = ()
    node: Text = ""
    shape: Text = ""
    random: bool = False


class End(msgspec.Struct, frozen=True):
    events: int
    steps: int
    left_out: int = 0
    unseen: dict[str, int] = {}
    unwritten: dict[str, int] = {}
    notes: tuple[Text, ...] = ()
    ended: bool = True


class _Line(msgspec.Struct, frozen=True):
    head: Head | None = None
    end: End | None = None


@dataclass(frozen=True)
class Record:
    """One rank of one run."""

    run: str
    head: Head
    events: list[Event]
    end: End | None
    problems: list[str] = field(default_factory=list)


def read(path: Path, run: str) -> Record:
    """Raises BadDataError where there is no head; what is cut off after it is a problem of the record."""
    head: Head | None = None
    end: End | None = None
    events: list[Event] = []
    problems: list[str] = []
    decode, plain = msgspec.json.Decoder(Event), msgspec.json.Decoder(_Line)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadDataError(
                "more than 4 GiB of record", location=path, fix="record fewer steps: --steps 1"
            )
        with path.open("rb") as file:
            for at, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES), b""), start=1):
                try:
                    if line.startswith((b'{"head"', b'{"end"')):
                        one = plain.decode(line)
                        head, end = one.head or head, one.end or end
                    else:
                        events.append(decode.decode(line))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    problems.append(f"{run}, {path.name}, line {at} cannot be read: {str(error)[:200]}")
                    break
    except OSError as error:
        raise BadDataError(f"cannot be read: {error.strerror}", location=path) from error
    if head is None:
        raise BadDataError("not a record of bits: it has no head", location=path)
    if end is None:
        problems.append(f"{run}, rank {head.rank}: the record is cut off; the program was killed")
    elif len(events) != end.events:
        problems.append(f"{run}, rank {head.rank}: {len(events)} of {end.events} events are there")
    return Record(run, head, events, end, problems)


def files(folder: Path) -> list[Path]:
    """A run's records, by rank."""

    def rank(path: Path) -> int:
        found = re.search(r"(\d{1,9})", path.name)
        return int(found[1]) if found else 0

    return sorted(folder.glob(PATTERN), key=rank)


def shown(text: str) -> str:
    return printable(text)[:200]
