"""What is right of a played process, by plain sums over its rows: nothing here imports lab."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.simulator.program import Job, Process, Row


@dataclass(frozen=True)
class Step:
    """One step: its kernels; how long any of its rows runs, and from the first to the last; its range on the
    host; the FLOPs of its matrix products."""

    kernels: int
    kernel_ms: float
    busy_ms: float
    span_ms: float
    host_ms: float
    tflop: float


@dataclass(frozen=True)
class Truth:
    """One process, or several together.

    idle_recorded_ms: the idle time between the first and last row that was recorded, of which bounds speak.
    by_owner: (operator, kernel's name) -> launches and ms; "" without an operator, as of a graph's kernels.
    """

    rows: int
    row_ms: float
    kernels: int
    kernel_ms: float
    busy_ms: float
    idle_ms: float
    idle_recorded_ms: float
    span_ms: float
    by_name: dict[str, tuple[int, float]]
    by_owner: dict[tuple[str, str], tuple[int, float]]
    steps: dict[int, Step]
    tflop: float


def covered_ns(rows: Iterable[Row]) -> int:
    """How long at least one of the rows runs."""
    total = reach = 0
    for row in sorted(rows, key=lambda row: row.start_ns):
        total += max(row.end_ns - max(row.start_ns, reach), 0)
        reach = max(reach, row.end_ns)
    return total


def _ms(rows: Iterable[Row]) -> float:
    return sum(row.end_ns - row.start_ns for row in rows) / 1e6


def span_ns(rows: Sequence[Row]) -> int:
    return max(row.end_ns for row in rows) - min(row.start_ns for row in rows) if rows else 0


def idle_within_ms(rows: Sequence[Row], recorded: Sequence[Row]) -> float:
    """How long none of `rows` runs between the first and the last row that was recorded with its time."""
    timed = [row for row in recorded if row.start_ns]
    if not timed:
        return 0.0
    begin_ns, end_ns = min(row.start_ns for row in timed), max(row.end_ns for row in timed)
    inside = [
        Row(row.kind, row.name, max(row.start_ns, begin_ns), min(row.end_ns, end_ns), row.stream, row.corr)
        for row in rows
        if row.end_ns > begin_ns and row.start_ns < end_ns
    ]
    return (end_ns - begin_ns - covered_ns(inside)) / 1e6


def truth_of(process: Process, recorded: Sequence[Row] | None = None) -> Truth:
    """recorded: the rows as they were written, if not as they are."""
    rows = process.rows
    kernels = [row for row in rows if row.kind == "kernel"]
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    names: dict[str, list[Row]] = defaultdict(list)
    for row in kernels:
        owner = process.ops[row.op].name if row.op >= 0 and not row.node else ""
        groups[owner, row.name].append(row)
        names[row.name].append(row)
    busy_ns = covered_ns(rows)
    return Truth(
        rows=len(rows),
        row_ms=_ms(rows),
        kernels=len(kernels),
        kernel_ms=_ms(kernels),
        busy_ms=busy_ns / 1e6,
        idle_ms=(span_ns(rows) - busy_ns) / 1e6,
        idle_recorded_ms=idle_within_ms(rows, rows if recorded is None else recorded),
        span_ms=span_ns(rows) / 1e6,
        by_name={name: (len(group), _ms(group)) for name, group in names.items()},
        by_owner={owner: (len(group), _ms(group)) for owner, group in groups.items()},
        steps={span.step: _step(process, span.step) for span in process.ranges if span.step >= 0},
        tflop=sum(op.flop for op in process.ops) / 1e12,
    )


def _step(process: Process, number: int) -> Step:
    rows = [row for row in process.rows if row.step == number]
    kernels = [row for row in rows if row.kind == "kernel"]
    (span,) = (span for span in process.ranges if span.step == number)
    return Step(
        kernels=len(kernels),
        kernel_ms=_ms(kernels),
        busy_ms=covered_ns(rows) / 1e6,
        span_ms=span_ns(rows) / 1e6,
        host_ms=(span.end_ns - span.start_ns) / 1e6,
        tflop=sum(op.flop for op in process.ops if op.step == number) / 1e12,
    )


def waits_ms(job: Job) -> dict[int, float]:
    """rank -> how long its collectives waited for the last rank to enter."""
    entered: dict[int, list[list[int]]] = {
        process.rank: [[row.start_ns] for row in process.rows if row.message] for process in job
    }
    latest = [max(starts)[0] for starts in zip(*entered.values(), strict=True)]
    return {
        rank: sum(last - start[0] for last, start in zip(latest, starts, strict=True)) / 1e6
        for rank, starts in entered.items()
    }
