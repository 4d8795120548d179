"""The records that guards leave, one file per rank: from outside, so neither size nor type is trusted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lab.errors import BadDataError

PATTERN = "guard_rank*.json"
PLANTED = "planted.json"
MOST_BYTES = 16 << 20
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
Text = Annotated[str, msgspec.Meta(max_length=4000)]


class Op(msgspec.Struct, frozen=True):
    name: Text
    module: Text = ""
    shapes: tuple[Text, ...] = ()
    dtypes: tuple[Text, ...] = ()
    line: Text = ""
    node: Text = ""
    inputs: Text = ""
    times: int = 1


class Event(msgspec.Struct, frozen=True):
    """Something bad at one place; see `lab.rooms.nan.watch.guard.state.Event`."""

    step: int
    stage: Text
    place: Text
    time: float = 0.0
    module: Text = ""
    name: Text = ""
    nan: float | str = -1.0
    inf: float | str = -1.0
    shape: Text = ""
    dtype: Text = ""
    unsure: Text = ""
    why: Text = ""
    op: Op | None = None
    op_missing: Text = ""


class Step(msgspec.Struct, frozen=True):
    step: int
    events: tuple[Event, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """One rank's record."""

    format: int
    rank: int
    world: int
    status: Text
    updates: int
    sentence: Text
    strategy: Text = ""
    host: Text = ""
    torch: Text = ""
    model: Text = ""
    counter: Text = ""
    ended: bool = False
    skipped_steps: int = 0
    unread_updates: int = 0  # after which weights, buffers and state were not read at once
    first: Event | None = None
    steps: tuple[Step, ...] = ()
    seen: dict[str, int] = {}
    not_seen: tuple[Text, ...] = ()
    alarm: Text = ""
    notes: tuple[Text, ...] = ()
    headroom: tuple[dict[str, Any], ...] = ()
    headroom_sentences: tuple[Text, ...] = ()


class Planted(msgspec.Struct, frozen=True):
    plant: Text
    what: Text
    step: int
    stage: Text
    module: Text


@dataclass(frozen=True)
class Found:
    """All records of some folders, and what could not be read."""

    records: list[tuple[Path, Record]]
    problems: list[str]
    planted: Planted | None


def has_records(folder: Path) -> bool:
    """Whether guards left records here, or in the steps of a run here."""
    return any(_files(folder))


def read(folders: Sequence[Path]) -> Found:
    """Every record in the folders. A file that cannot be read is a problem, never a hole."""
    records, problems, planted = [], list[str](), None
    for folder in folders:
        for path in _files(folder):
            try:
                records.append((path, _decode(path, Record)))
            except BadDataError as error:
                problems.append(f"{path.name}: {error.problem}")
        for path in [*folder.glob(PLANTED), *folder.glob(f"steps/*/{PLANTED}")]:
            try:
                planted = _decode(path, Planted)
            except BadDataError as error:
                problems.append(f"{path.name}: {error.problem}")
    return Found(sorted(records, key=lambda one: (one[1].rank, one[0].name)), problems, planted)


def _files(folder: Path) -> list[Path]:
    return sorted([*folder.glob(PATTERN), *folder.glob(f"steps/*/{PATTERN}")])


def _decode(path: Path, kind: type[Any]) -> Any:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadDataError("too large for a record of a guard", location=path)
        text = path.read_text(encoding="utf-8", errors="replace")
        return msgspec.json.decode(_clean(text), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"not a record of a guard: {error}", location=path) from error


def _clean(text: str) -> str:
    """Without control characters, written out or escaped: these texts reach terminals and pages."""
    return re.sub(r"\\u00(?:[01][0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])", "?", CONTROL.sub("", text))
