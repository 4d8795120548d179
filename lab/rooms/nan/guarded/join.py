"""The first producer over all ranks: by step, then by the order in which bad numbers can travel.

Clocks of ranks are not compared. Within one step a bad number that came with a reduction cannot be the first,
and a place that is only where it was first seen gives way to one that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.rooms.nan.guarded.read import Event, Record

STAGES = (
    "weights_before",
    "batch",
    "forward",
    "loss",
    "act_grads",
    "param_grads",
    "clipped",
    "opt_state",
    "weights_after",
    "after_reduce",
)
STATUSES = ("clean", "partly-seen", "nothing-seen", "bad")


@dataclass(frozen=True)
class Verdict:
    """What all ranks say together."""

    status: str
    rank: int
    first: Event | None
    record: Record | None
    missing_ranks: list[int]


def verdict_of(records: Sequence[Record]) -> Verdict:
    """The worst status, and the first event over ranks. A rank without a record is not clean."""
    world = max((one.world for one in records), default=0)
    missing = sorted({*range(min(world, 4096))} - {one.rank for one in records})
    firsts = [(one.first, one) for one in records if one.first is not None]
    ordered = sorted(firsts, key=lambda pair: _order(pair[0]))
    status = max((_status(one) for one in records), key=STATUSES.index, default="nothing-seen")
    if status == "clean" and missing:
        status = "partly-seen"
    if not ordered:
        return Verdict(status, -1, None, None, missing)
    first, record = ordered[0]
    return Verdict(status, record.rank, first, record, missing)


def _order(event: Event) -> tuple[int, bool, int, bool]:
    """By step; what came by a reduction last; by stage; what is sure first."""
    stage = STAGES.index(event.stage) if event.stage in STAGES else len(STAGES)
    return event.step, event.stage == "after_reduce", stage, bool(event.unsure)


def _status(record: Record) -> str:
    if record.status not in STATUSES:
        return "partly-seen"
    return "partly-seen" if record.status == "clean" and not record.ended else record.status
