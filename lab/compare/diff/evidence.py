"""The rows of the recordings that a finding rests on."""

from __future__ import annotations

from collections.abc import Sequence

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
    hashes = [sha256_of(work.trace.source) if work.trace.source.is_file() else "" for work in works]
    return [
        File(side=side, path=str(work.trace.source), sha256=sha256, rank=work.rank)
        for work, sha256 in zip(works, hashes, strict=True)
    ]


def of_keys(side: str, work: Work, units: Units, wanted: Sequence[Key]) -> list[Evidence]:
    """The operation of median duration among those with one of these keys, if there are any."""
    keys, key_of = work.keys
    among = set(wanted)
    able = np.array([key in among for key in keys], dtype=bool)
    rows = np.flatnonzero(able[key_of] & units.chosen)
    if not len(rows):
        return []
    row = int(rows[np.argsort(work.dur_ns[rows], kind="stable")[(len(rows) - 1) // 2]])
    times_ns = int(work.start_ns[row]), int(work.dur_ns[row])
    correlation = int(work.trace.ops.corr[work.order[row]])
    unit = int(step_at(work.steps_ns, work.launched_ns[row : row + 1])[0])
    return [_event(side, work, keys[int(key_of[row])][3], times_ns, (unit, correlation, len(rows)))]


def _event(
    side: str, work: Work, event: str, times_ns: tuple[int, int], about: tuple[int, int, int]
) -> Evidence:
    """times_ns: start and duration; about: unit, correlation and count."""
    return Evidence(
        side=side,
        file=work.trace.source.name,
        event=event,
        start_ns=times_ns[0],
        dur_ns=times_ns[1],
        unit=about[0],
        correlation=about[1],
        count=about[2],
    )


def of_call(side: str, work: Work, units: Units, name: str) -> list[Evidence]:
    """The first call of this API function that is counted."""
    runtime = work.trace.api
    strings = work.trace.strings
    ids = [
        index
        for index, text in enumerate(strings)
        if text == name or (work.plain and text.startswith(f"{name}_v"))
    ]
    rows = np.flatnonzero(np.isin(runtime.name_id, ids) & units.called)
    if not len(rows):
        return []
    row = int(rows[np.argmin(runtime.start_ns[rows])])
    times_ns = int(runtime.start_ns[row]), int(runtime.dur_ns[row])
    unit = int(step_at(work.steps_ns, runtime.start_ns[row : row + 1])[0])
    return [_event(side, work, name, times_ns, (unit, int(runtime.corr[row]), len(rows)))]


def of_gap(side: str, work: Work, units: Units) -> list[Evidence]:
    """The longest time between two GPU operations of a unit, none of them running."""
    rows = np.flatnonzero(units.chosen)
    if len(rows) < 2:
        return []
    ends = np.maximum.accumulate(work.start_ns[rows] + work.dur_ns[rows])
    gap = work.start_ns[rows][1:] - ends[:-1]
    unit = step_at(work.steps_ns, work.launched_ns[rows])
    inside = np.where(unit[1:] == unit[:-1], gap, 0)
    longest = int(np.argmax(inside))
    if inside[longest] <= 0:
        return []
    keys, key_of = work.keys
    event = f"idle before {keys[int(key_of[rows[longest + 1]])][3]}"
    times_ns = int(ends[longest]), int(inside[longest])
    return [_event(side, work, event, times_ns, (int(unit[longest]), -1, int((inside > 0).sum())))]
