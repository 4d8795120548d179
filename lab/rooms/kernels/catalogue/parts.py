"""The part of a recording that was asked for: which launches of each of its processes are in it.

The rules are those of `lab nsys summary` (lab.recordings.projection): a launch is in a range or step that was
open around its call, or that the thread had open which waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lab.core.words import plural
from lab.errors import MissingError
from lab.recordings.capture import OP, Capture
from lab.recordings.processes import processes_with_work, with_processes
from lab.recordings.projection import PhaseNames, offers
from lab.terminal.part import PartOptions, projections

_MOST_NAMES = 5


@dataclass(frozen=True)
class Ask:
    """What was typed, and the names of phases, which own launches of other threads."""

    part: PartOptions = field(default_factory=PartOptions)
    names: PhaseNames = field(default_factory=PhaseNames)

    def __bool__(self) -> bool:
        return self.part != PartOptions()


@dataclass(frozen=True)
class Kept:
    """Masks of a recording's `ops` (n,) and `operators` (m,).

    notes: launches that other names of phases would add; error: why nothing of the recording is in the part.
    """

    text: str
    kernels: np.ndarray
    ops: np.ndarray
    notes: list[str]
    error: MissingError | None = None


def kept_of(recording: Capture, ask: Ask) -> list[Kept]:
    """What is kept of each of `process_captures`; nothing, with the error, where it has no such part."""
    capture = with_processes(recording)
    ops, ranges = np.zeros(len(capture.ops), dtype=bool), np.zeros(len(capture.ranges), dtype=bool)
    notes: list[str] = []
    error = None
    try:
        for index, one in projections(capture, "full", ask.names, ask.part):
            ops[capture.ops.process == index] = True if one.part is None else one.part.ops
            ranges[capture.ranges.process == index] = True if one.part is None else one.part.ranges
            if ask.part.range_name is not None:
                notes += [f"not in the part: {offer.sentence}" for offer in offers(one, ask.names.pattern)]
    except MissingError as missing:
        error = missing
    if error is None and not (ops.any() if len(ops) else ranges[capture.ranges.kind == OP].any()):
        error = _nothing_launched(capture, ask)
    text = described(ask.part)
    is_operator = recording.ranges.kind == OP
    if recording.collector == "kineto":
        return [Kept(text, ops, ranges[is_operator], notes, error)]
    return [
        Kept(
            text,
            ops[recording.ops.process == process],
            ranges[is_operator & (recording.ranges.process == process)],
            notes,
            error,
        )
        for process in processes_with_work(recording)
    ]


def _nothing_launched(capture: Capture, ask: Ask) -> MissingError:
    """The error for a part in which nothing was launched, with the ranges that launched most."""
    by_name: dict[str, int] = {}
    for _, one in projections(capture, "full", ask.names, PartOptions(process=ask.part.process)):
        ranges, launched = one.capture.ranges, one.instances.num_ops
        for row in np.flatnonzero((ranges.kind != OP) & (launched > 0)).tolist():
            name = one.capture.name(int(ranges.name_id[row]))
            by_name[name] = by_name.get(name, 0) + int(launched[row])
    most = sorted(by_name, key=lambda name: (-by_name[name], name))[:_MOST_NAMES]
    some = ", ".join(f"{name} ({by_name[name]:,})" for name in most) or "none is in a range"
    return MissingError(
        f"nothing was launched in {described(ask.part)}; the recording has "
        f"{plural(len(capture.ops), 'launch')}: {some}",
        location=capture.source,
    )


def described(part: PartOptions) -> str:
    """The options as one text: `step 3, range backward, from 10ms`."""
    words = {"process": part.process, "step": part.step, "range": part.range_name}
    words |= {"from": part.from_time, "to": part.to_time}
    return ", ".join(f"{word} {text}" for word, text in words.items() if text is not None)


def folder_name(part: PartOptions) -> str:
    """`step-3_range-backward`: a name for files of this part alone."""
    words = [piece.replace(" ", "-", 1) for piece in described(part).split(", ")]
    safe = "".join(
        char if char.isascii() and (char.isalnum() or char in "-.,") else "_" for char in "_".join(words)
    )
    return safe.strip(".")[:80]
