"""The rows of the recordings that a finding rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    if call:
        event = _first_call(work, units, call)
    elif keys:
        event = _median_operation(work, units, set(keys))
    else:
        event = _longest_gap(work, units) if idle else None
    return [Evidence(side=side, file=work.trace.source.name, **event)] if event else []


def _first_call(work: Work, units: Units, call: str) -> dict[str, Any] | None:
    api = work.trace.api
    # nsys writes cudaLaunchKernel_v7000
    names = [text == call or (work.plain and text.startswith(f"{call}_v")) for text in work.trace.strings]
    rows = np.flatnonzero(np.isin(api.name_id, np.flatnonzero(names)) & units.called)
    if not len(rows):
        return None
    row = int(rows[np.argmin(api.start_ns[rows])])
    return {
        "event": call,
        "start_ns": int(api.start_ns[row]),
        "dur_ns": int(api.dur_ns[row]),
        "unit": int(step_at(work.steps_ns, api.start_ns[row : row + 1])[0]),
        "correlation": int(api.corr[row]),
        "count": len(rows),
    }


def _median_operation(work: Work, units: Units, wanted: set[Key]) -> dict[str, Any] | None:
    names, key_of = work.keys
    is_wanted = np.array([key in wanted for key in names], dtype=bool)
    rows = np.flatnonzero(is_wanted[key_of] & units.chosen)
    if not len(rows):
        return None
    row = int(rows[np.argsort(work.dur_ns[rows], kind="stable")[(len(rows) - 1) // 2]])
    return {
        "event": names[int(key_of[row])][3],
        "start_ns": int(work.start_ns[row]),
        "dur_ns": int(work.dur_ns[row]),
        "unit": int(step_at(work.steps_ns, work.launched_ns[row : row + 1])[0]),
        "correlation": int(work.trace.ops.corr[work.order[row]]),
        "count": len(rows),
    }


def _longest_gap(work: Work, units: Units) -> dict[str, Any] | None:
    rows = np.flatnonzero(units.chosen)
    ends = np.maximum.accumulate(work.start_ns[rows] + work.dur_ns[rows])
    unit = step_at(work.steps_ns, work.launched_ns[rows])
    inside_ns = np.where(unit[1:] == unit[:-1], work.start_ns[rows][1:] - ends[:-1], 0)
    if not (inside_ns > 0).any():
        return None
    longest = int(np.argmax(inside_ns))
    names, key_of = work.keys
    return {
        "event": f"idle before {names[int(key_of[rows[longest + 1]])][3]}",
        "start_ns": int(ends[longest]),
        "dur_ns": int(inside_ns[longest]),
        "unit": int(unit[longest]),
        "correlation": -1,
        "count": int((inside_ns > 0).sum()),
    }
