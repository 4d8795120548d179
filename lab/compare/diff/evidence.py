"""The rows of the recordings that a finding rests on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    return [
        File(side=side, path=str(work.trace.source), sha256=_hash(work.trace.source), rank=work.rank)
        for work in works
    ]


def _hash(path: Path) -> str:
    return sha256_of(path) if path.is_file() else ""


def of_keys(side: str, work: Work, units: Units, wanted: Sequence[Key]) -> list[Evidence]:
    """The operation of median duration among those with one of these keys; none if there is no such."""
    keys, key_of = work.keys
    among = set(wanted)
    able = np.array([key in among for key in keys], dtype=bool)
    rows = np.flatnonzero(able[key_of] & units.chosen)
    if not len(rows):
        return []
    row = int(rows[np.argsort(work.dur_ns[rows], kind="stable")[(len(rows) - 1) // 2]])
    kernels = work.trace.ops
    op = int(work.order[row])
    return [
        Evidence(
            side=side,
            file=work.trace.source.name,
            event=keys[int(key_of[row])][3],
            start_ns=int(work.start_ns[row]),
            dur_ns=int(work.dur_ns[row]),
            unit=_unit(work, int(work.launched_ns[row])),
            correlation=int(kernels.corr[op]),
            count=len(rows),
        )
    ]


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
    return [
        Evidence(
            side=side,
            file=work.trace.source.name,
            event=name,
            start_ns=int(runtime.start_ns[row]),
            dur_ns=int(runtime.dur_ns[row]),
            unit=_unit(work, int(runtime.start_ns[row])),
            correlation=int(runtime.corr[row]),
            count=len(rows),
        )
    ]


def of_gap(side: str, work: Work, units: Units) -> list[Evidence]:
    """The longest time between two GPU operations of a unit, none of them running."""
    rows = np.flatnonzero(units.chosen)
    if len(rows) < 2:
        return []
    ends = np.maximum.accumulate(work.start_ns[rows] + work.dur_ns[rows])
    gap = work.start_ns[rows][1:] - ends[:-1]
    unit = (
        np.array([_unit(work, int(when)) for when in work.launched_ns[rows]]) if len(work.steps_ns) else None
    )
    inside = gap if unit is None else np.where(unit[1:] == unit[:-1], gap, 0)
    longest = int(np.argmax(inside))
    if inside[longest] <= 0:
        return []
    return [
        Evidence(
            side=side,
            file=work.trace.source.name,
            event=f"idle before {work.keys[0][int(work.keys[1][rows[longest + 1]])][3]}",
            start_ns=int(ends[longest]),
            dur_ns=int(inside[longest]),
            unit=-1 if unit is None else int(unit[longest]),
            correlation=-1,
            count=int((inside > 0).sum()),
        )
    ]


def _unit(work: Work, when_ns: int) -> int:
    return int(step_at(work.steps_ns, np.array([when_ns]))[0])
