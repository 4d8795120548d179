"""The rows of the recordings that a finding rests on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np

from lab.compare.side import Key, Work, step_at
from lab.compare.units import Units
from lab.core.files import sha256_of


class Evidence(msgspec.Struct, kw_only=True):
    """One of `count` events of a recording: of GPU operations the one of median duration.

    start_ns is on the recording's clock (of Kineto: with baseTimeNanoseconds), dur_ns -1 where an event has
    none, unit the number of the step from 0 (-1: none), correlation -1 where none was recorded.
    """

    side: str
    file: str
    event: str
    start_ns: int
    dur_ns: int
    unit: int
    correlation: int
    count: int


class File(msgspec.Struct, kw_only=True):
    """A recording that was compared; sha256 is "" for a folder."""

    side: str
    path: str
    sha256: str
    rank: int


def files(side: str, works: Sequence[Work]) -> list[File]:
    paths = [(work.rank, work.trace.source) for work in works]
    return [
        File(side=side, path=str(path), sha256=sha256_of(path) if path.is_file() else "", rank=rank)
        for rank, path in paths
    ]


def evidence_of(
    side: str, work: Work, units: Units, *, keys: Sequence[Key], call: str, idle: bool
) -> list[Evidence]:
    """What stands for a finding on one side: a call of this API function, an operation with one of these
    keys, or the longest gap of a unit; none where the side has none."""
    event_of = partial(Evidence, side=side, file=work.trace.source.name)
    if call:
        api, strings = work.trace.api, work.trace.strings
        ids = [
            index
            for index, text in enumerate(strings)
            if text == call or (work.plain and text.startswith(f"{call}_v"))
        ]
        rows = np.flatnonzero(np.isin(api.name_id, ids) & units.called)
        if not len(rows):
            return []
        row = int(rows[np.argmin(api.start_ns[rows])])
        event = event_of(
            event=call,
            start_ns=int(api.start_ns[row]),
            dur_ns=int(api.dur_ns[row]),
            unit=int(step_at(work.steps_ns, api.start_ns[row : row + 1])[0]),
            correlation=int(api.corr[row]),
            count=len(rows),
        )
        return [event]
    names, key_of = work.keys
    if keys:
        wanted = set(keys)
        is_wanted = np.array([key in wanted for key in names], dtype=bool)
        rows = np.flatnonzero(is_wanted[key_of] & units.chosen)
        if not len(rows):
            return []
        row = int(rows[np.argsort(work.dur_ns[rows], kind="stable")[(len(rows) - 1) // 2]])
        event = event_of(
            event=names[int(key_of[row])][3],
            start_ns=int(work.start_ns[row]),
            dur_ns=int(work.dur_ns[row]),
            unit=int(step_at(work.steps_ns, work.launched_ns[row : row + 1])[0]),
            correlation=int(work.trace.ops.corr[work.order[row]]),
            count=len(rows),
        )
        return [event]
    rows = np.flatnonzero(units.chosen)
    if not idle or len(rows) < 2:
        return []
    ends = np.maximum.accumulate(work.start_ns[rows] + work.dur_ns[rows])
    gaps_ns = work.start_ns[rows][1:] - ends[:-1]
    unit = step_at(work.steps_ns, work.launched_ns[rows])
    inside_ns = np.where(unit[1:] == unit[:-1], gaps_ns, 0)
    longest = int(np.argmax(inside_ns))
    if inside_ns[longest] <= 0:
        return []
    event = event_of(
        event=f"idle before {names[int(key_of[rows[longest + 1]])][3]}",
        start_ns=int(ends[longest]),
        dur_ns=int(inside_ns[longest]),
        unit=int(unit[longest]),
        correlation=-1,
        count=int((inside_ns > 0).sum()),
    )
    return [event]
