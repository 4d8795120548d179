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
    paths = [(work.rank, work.trace.source) for work in works]
    return [
        File(side=side, path=str(path), sha256=sha256_of(path) if path.is_file() else "", rank=rank)
        for rank, path in paths
    ]


def evidence_of(
    side: str, work: Work, units: Units, *, keys: Sequence[Key | None], call: str, idle: bool
) -> list[Evidence]:
    """What stands for a finding on one side: a call of this API function, an operation with one of these
    keys, or the longest gap of a unit; none where the side has none."""
    if call:
        example = _first_call(work, units, call)
    elif any(keys):
        example = _median_operation(work, units, {*keys})
    else:
        example = _longest_gap(work, units) if idle else None
    if not example:
        return []
    event, (start_ns, dur_ns, launched_ns, correlation), count = example
    unit = int(step_at(work.steps_ns, np.array([launched_ns]))[0])
    return [
        Evidence(
            side=side,
            file=work.trace.source.name,
            event=event,
            start_ns=int(start_ns),
            dur_ns=int(dur_ns),
            unit=unit,
            correlation=int(correlation),
            count=count,
        )
    ]


# An event's name; its start, duration, launch and correlation; how many there are.
_Found = tuple[str, tuple[int, int, int, int], int]


def _first_call(work: Work, units: Units, call: str) -> _Found | None:
    api = work.trace.api
    # nsys writes cudaLaunchKernel_v7000
    is_named = work.trace.by_text(
        lambda text: text == call or (work.plain and text.startswith(f"{call}_v")), api.name_id
    )
    rows = np.flatnonzero(is_named & units.called)
    if not len(rows):
        return None
    row = rows[np.argmin(api.start_ns[rows])]
    return call, (api.start_ns[row], api.dur_ns[row], api.start_ns[row], api.corr[row]), len(rows)


def _median_operation(work: Work, units: Units, wanted: set[Key | None]) -> _Found | None:
    rows = np.flatnonzero(work.is_key(wanted.__contains__) & units.chosen)
    if not len(rows):
        return None
    row = rows[np.argsort(work.dur_ns[rows], kind="stable")[(len(rows) - 1) // 2]]
    times = work.start_ns[row], work.dur_ns[row], work.launched_ns[row], work.ops.corr[row]
    return work.kernel(row), times, len(rows)


def _longest_gap(work: Work, units: Units) -> _Found | None:
    rows = np.flatnonzero(units.chosen)
    ends = np.maximum.accumulate(work.start_ns[rows] + work.dur_ns[rows])
    unit = units.step_of[rows]
    inside_ns = np.where(unit[1:] == unit[:-1], work.start_ns[rows][1:] - ends[:-1], 0)
    if not (inside_ns > 0).any():
        return None
    longest = int(np.argmax(inside_ns))
    times = ends[longest], inside_ns[longest], work.launched_ns[rows[longest]], -1
    return f"idle before {work.kernel(rows[longest + 1])}", times, int((inside_ns > 0).sum())
