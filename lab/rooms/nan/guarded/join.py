"""The first producer over all ranks and processes, and what was not seen.

By step, then by the order in which bad numbers can travel.

Clocks of ranks are not compared. Within one step a bad number that came with a reduction cannot be the first,
and a place that is only where it was first seen gives way to one that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from lab.core.words import plural
from lab.rooms.nan.guarded.read import STAGES, Event, Mark, Record

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
