"""The records that guards leave, one per model, and the marks of processes: what they are, and their reading.

They come from outside, so neither size nor type is trusted. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from lab.core.words import plural
from lab.errors import BadDataError

RECORDS, MARKS = "guard_*.json", "process_*.json"
MOST_BYTES = 16 << 20
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
Text = Annotated[str, msgspec.Meta(max_length=4000)]


# In the order in which they happen within one micro-batch and its update.
STAGES = (
    "weights_before",
    "batch",
    "forward",
    "loss",
    "act_grads",
    "param_grads",
    "after_reduce",
    "clipped",
    "opt_state",
    "weights_after",
)
STEPS_BY = {
    "optimizer": "counted by the optimizer",
    "weights": "counted by writes to the weights, for no optimizer of torch has run",
    "backward": "counted by calls of backward, for no optimizer of torch has run",
}


class Op(msgspec.Struct, frozen=True, omit_defaults=True):
    """The operator that made the first bad number, found by running the step again."""

    name: Text  # such as aten.div.Tensor
    module: Text = ""
    shapes: tuple[Text, ...] = ()  # of its inputs
    dtypes: tuple[Text, ...] = ()
    line: Text = ""  # file:line of the program, or of the forward line that a backward operator belongs to
    node: Text = ""  # the autograd node, in backward
    inputs: Text = "finite"
    times: int = 1  # runs that agreed

    def __str__(self) -> str:
        node = f" in {self.node}" if self.node else ""
        line = f", {self.line}" if self.line else ""
        return f"{self.name}{node}{line}"


class Event(msgspec.Struct, omit_defaults=True):
    """Something bad at one place. `time` orders all events of a process; `step` counts updates."""

    step: int
    stage: Text  # of STAGES
    place: Text
    time: float = 0.0
    module: Text = ""
    name: Text = ""  # of the tensor
    nan: float = -1.0  # -1: not counted
    inf: float = -1.0
    shape: Text = ""
    dtype: Text = ""
    unsure: Text = ""  # why the place is only where it was first seen
    reason: Text = ""
    op: Op | None = None
    op_missing: Text = ""  # why no operator is named, after an attempt
    extremes: tuple[Text, ...] = ()  # of the last modules before it

    def __str__(self) -> str:
        return f"first bad number {self.place}" + (f" ({self.op})" if self.op else "")


class Step(msgspec.Struct, frozen=True):
    step: int
    events: tuple[Event, ...] = ()


class Record(msgspec.Struct, kw_only=True):
    """One guard's record: of one model, or of what belongs to no watched model."""

    format: int = 1
    rank: int
    world: int
    status: Text
    updates: int
    sentence: Text
    process: Text = ""  # as in the name of its mark
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
    looked_at: dict[str, int] = msgspec.field(default_factory=dict, name="seen")
    not_seen: tuple[Text, ...] = ()
    alarm: Text = ""
    notes: tuple[Text, ...] = ()
    headroom: tuple[dict[str, Any], ...] = ()
    headroom_sentences: tuple[Text, ...] = ()
    absorbed: dict[str, int] = {}  # infinities that did no harm -> forwards
    steps_by: Text = ""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One process that imported torch."""

    format: int = 1
    pid: int
    command: Text = ""
    forked: bool = False
    helper: bool = False  # a program of torch's own
    rank: int = 0
    world: int = 1
    ended: Text = ""  # how; "": it did not, as far as it could say
    models: int = 0
    optimizers: int = 0
    backwards: int = 0
    updates: int = 0
    unwatched: dict[str, Text] = {}  # class of a model -> why it is not watched

    @property
    def is_idle(self) -> bool:
        """Whether it called no model, no backward and no optimizer."""
        return not (self.models or self.optimizers or self.backwards or self.updates or self.unwatched)


@dataclass(frozen=True)
class Job:
    """All records and marks of some folders, and what could not be read."""

    records: list[tuple[Path, Record]]
    problems: list[str]
    marks: dict[str, Mark]  # by process


def has_records(folder: Path) -> bool:
    """Whether guards left records or marks here, or in the steps of a run here."""
    return any([*_files(folder, RECORDS), *_files(folder, MARKS)])


def read(folders: Sequence[Path]) -> Job:
    """Every record and mark in the folders. A file that cannot be read is a problem, never a hole."""
    records, marks, problems = list[tuple[Path, Record]](), dict[str, Mark](), list[str]()
    for path, kind in ((p, k) for f in folders for n, k in KINDS.items() for p in _files(f, n)):
        try:
            value = _decode(path, kind)
        except BadDataError as error:
            problems.append(f"{path.name}: {error.problem}")
            continue
        if kind is Record:
            records.append((path, value))
        else:
            marks[path.stem.removeprefix("process_")] = value
    return Job(sorted(records, key=lambda row: (row[1].rank, row[0].name)), problems, marks)


KINDS: dict[str, type[Any]] = {RECORDS: Record, MARKS: Mark}


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted([*folder.glob(pattern), *folder.glob(f"steps/*/{pattern}")])


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


# The first producer over all ranks and processes, and what was not seen: by step, then by the order in which
# bad numbers can travel. Clocks of ranks are not compared. Within one step a bad number that came with a
# reduction cannot be the first, and a place that is only where it was first seen gives way to one that is
# known.

STATUSES = ("clean", "partly-seen", "nothing-seen", "bad")


@dataclass(frozen=True)
class Verdict:
    """What all ranks and processes say together."""

    status: str
    rank: int
    first: Event | None
    record: Record | None
    missing_ranks: list[int]
    gaps: list[str]  # processes and models that were not seen, in sentences


def verdict_of(records: Sequence[Record], marks: Mapping[str, Mark] = MappingProxyType({})) -> Verdict:
    """The worst status, and the first event over ranks.

    A rank without a record, a process without an end and a model without a record are not clean.
    """
    world = max((record.world for record in records), default=0)
    missing = sorted({*range(min(world, 4096))} - {record.rank for record in records})
    firsts = [(record.first, record) for record in records if record.first is not None]
    ordered = sorted(firsts, key=lambda pair: _order(pair[0]))
    status = max(map(status_of, records), key=STATUSES.index, default="nothing-seen")
    gaps = _gaps(records, marks)
    if (status == "clean" and (missing or gaps)) or (status == "nothing-seen" and records and gaps):
        status = "partly-seen"
    if not ordered:
        return Verdict(status, -1, None, None, missing, gaps)
    event, record = ordered[0]
    return Verdict(status, record.rank, event, record, missing, gaps)


def _gaps(records: Sequence[Record], marks: Mapping[str, Mark]) -> list[str]:
    """What shows by the marks that not all was seen; then whether anything was trained at all."""
    gaps = []
    for key, mark in marks.items():
        process_records = [record for record in records if record.process == key]
        watched = sum(
            not record.model.startswith(("tensors of ", "a loss of ")) for record in process_records
        )
        if not mark.ended and not (mark.is_idle and (mark.forked or mark.helper)):
            gaps.append(f"{process_name(mark)} has no end: it was killed, or left without Python's exit")
        if watched < mark.models:
            gaps.append(f"{process_name(mark)}: {plural(mark.models - watched, 'model')} left no record")
        for kind, reason in mark.unwatched.items():
            gaps.append(f"{process_name(mark)}: a {kind} was called and not watched: {reason}")
    if records and not any(record.updates or record.looked_at.get("loss") for record in records):
        gaps.append("no update and no backward was seen in any process: nothing was trained")
    return gaps


def process_name(mark: Mark) -> str:
    """A process as people know it: its rank, or its program and pid."""
    program = mark.command.split(" ")[0].rsplit("/", 1)[-1] or "python"
    return f"rank {mark.rank}" if mark.world > 1 else f"{program} (pid {mark.pid})"


def _order(event: Event) -> tuple[int, bool, int, bool]:
    """By step; what came by a reduction last; by stage; what is sure first."""
    stage = STAGES.index(event.stage) if event.stage in STAGES else len(STAGES)
    return event.step, event.stage == "after_reduce", stage, bool(event.unsure)


def status_of(record: Record) -> str:
    """What a record may claim: one that did not end is not clean."""
    if record.status not in STATUSES:
        return "partly-seen"
    return "partly-seen" if record.status == "clean" and not record.ended else record.status
