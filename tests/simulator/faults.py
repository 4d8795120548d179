"""What happens to recordings: rows lost, there twice, too long, without a time, on a clock that jumps.

A fault changes a played job in place, before it is written; what it changes has no effect on the truth, but
for a clock that is off from the beginning: durations on it are all that anybody could know.
"""

from __future__ import annotations

import itertools
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from tests.simulator.program import START_NS, Job, Process, Row, Span

Place = Literal["start", "middle", "end"]
STEP_OVERLAPS_NS = (500, 3_000, 20_000)


def _part(size: int, place: Place, count: int) -> slice:
    """`count` of `size` rows in a row: the first, the last, or some between others."""
    count = min(count, size)
    begin = {"start": 0, "end": size - count, "middle": (size - count + 1) // 2}[place]
    return slice(begin, begin + count)


@dataclass(frozen=True)
class Lost:
    """Rows of the GPU, calls, operators or ranges that were not written; `every` for all of them.

    fills: fills of memory may be among the rows.
    """

    what: Literal["rows", "calls", "ops", "ranges"]
    place: Place = "middle"
    count: int = 1
    every: bool = False
    fills: bool = True

    def damage(self, process: Process) -> None:
        spans: list[Row | Span] = getattr(process, self.what)
        chosen = [span for span in spans if self.fills or not is_fill(span)]
        if not self.every:
            chosen = chosen[_part(len(chosen), self.place, self.count)]
        lost = {id(span) for span in chosen}
        spans[:] = [span for span in spans if id(span) not in lost]


def is_fill(span: Row | Span) -> bool:
    return isinstance(span, Row) and (span.kind == "fill" or span.name.startswith("__amd_rocclr_fill"))


@dataclass(frozen=True)
class LostStream:
    """All rows of a stream, though not of the only one."""

    def damage(self, process: Process) -> None:
        streams = sorted({row.stream for row in process.rows})
        if len(streams) > 1:
            process.rows = [row for row in process.rows if row.stream != streams[-1]]


@dataclass(frozen=True)
class Twice:
    """Rows of the GPU, or calls, that are written twice."""

    what: Literal["rows", "calls"] = "rows"
    place: Place = "middle"
    count: int = 1

    def damage(self, process: Process) -> None:
        spans = getattr(process, self.what)
        spans += deepcopy(spans[_part(len(spans), self.place, self.count)])


@dataclass(frozen=True)
class TooLong:
    """A row whose end is much too late."""

    place: Place = "middle"
    extra_ns: int = 2_000_000

    def damage(self, process: Process) -> None:
        for row in process.rows[_part(len(process.rows), self.place, 1)]:
            row.end_ns += self.extra_ns


@dataclass(frozen=True)
class Timeless:
    """Rows with start and end 0."""

    place: Place = "middle"
    count: int = 1

    def damage(self, process: Process) -> None:
        for row in process.rows[_part(len(process.rows), self.place, self.count)]:
            row.start_ns = row.end_ns = 0


@dataclass(frozen=True)
class Nameless:
    """Kernels without a name."""

    place: Place = "middle"
    count: int = 1

    def damage(self, process: Process) -> None:
        kernels = [row for row in process.rows if row.kind == "kernel"]
        for row in kernels[_part(len(kernels), self.place, self.count)]:
            row.name = ""


@dataclass(frozen=True)
class ClockJump:
    """The GPU's clock jumps in the middle of the recording."""

    jump_ns: int = -20_000_000

    def damage(self, process: Process) -> None:
        for row in process.rows[len(process.rows) // 2 :]:
            if row.start_ns:
                row.start_ns += self.jump_ns
                row.end_ns += self.jump_ns


@dataclass(frozen=True)
class ClockOff:
    """The GPU's clock is off by so much, and runs so many parts per million too fast, all the time."""

    offset_ns: int = 0
    drift_ppm: int = 0

    def damage(self, process: Process) -> None:
        timed = [row for row in process.rows if row.start_ns]
        for row in timed:
            row.start_ns, row.end_ns = (
                ns + self.offset_ns + (ns - START_NS) * self.drift_ppm // 1_000_000
                for ns in (row.start_ns, row.end_ns)
            )


@dataclass(frozen=True)
class StepsOverlap:
    """Ranges of steps end after the next one began (pytorch/pytorch#174555)."""

    overlap_ns: int = 500

    def damage(self, process: Process, overlap_ns: int | None = None) -> None:
        overlap_ns = self.overlap_ns if overlap_ns is None else overlap_ns
        steps = sorted((span for span in process.ranges if span.step >= 0), key=lambda span: span.start_ns)
        for span, successor in itertools.pairwise(steps):
            if successor.start_ns - span.end_ns < self.overlap_ns:
                span.end_ns = successor.start_ns + overlap_ns


@dataclass(frozen=True)
class Renamed:
    """Steps have names that mean nothing to anybody."""

    def damage(self, process: Process) -> None:
        for span in process.ranges:
            if span.step >= 0:
                span.name = f"loop body {span.step}"


Fault = (
    Lost | LostStream | Twice | TooLong | Timeless | Nameless | ClockJump | ClockOff | StepsOverlap | Renamed
)


def damaged(job: Job, faults: tuple[Fault, ...]) -> tuple[Job, Job]:
    """The job as it is recorded, and as it is true: on the clocks that there are."""
    recorded, true = deepcopy(job), deepcopy(job)
    for process, right in zip(recorded, true, strict=True):
        for fault in faults:
            fault.damage(process)
            if isinstance(fault, ClockOff | Renamed):
                fault.damage(right)
            if isinstance(fault, StepsOverlap):  # a step ends where the next one begins
                fault.damage(right, overlap_ns=0)
    return recorded, true
