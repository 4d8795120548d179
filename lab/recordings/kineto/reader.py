"""One trace from a file to tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.recordings.kineto.columns import Columns
from lab.recordings.kineto.frame import decode_frame
from lab.recordings.kineto.native import library
from lab.recordings.lacks import without_times
from lab.recordings.owners import settled
from lab.recordings.pieces import PIECE_BYTES, EventPieces
from lab.recordings.tables import Table, Trace
from lab.recordings.views.launches import step_number

# Increase it whenever the same file would give other columns: older cache entries are then ignored.
READER_VERSION = 10


# Pieces that stay in the processor's cache while they are copied and scanned; columns are made of many
# of them at once, because that costs a fixed 0.5 ms of numpy.
SCANNED_PIECE_BYTES = 256 << 10
SCANNED_TOGETHER_BYTES = 4 << 20


def read_kineto(path: Path | str, *, salvage: bool = False, piece_bytes: int | None = None) -> Trace:
    """Read one trace; all times become absolute integer nanoseconds.

    salvage keeps the readable part of a truncated or damaged file; `problems` says what is missing.
    With piece_bytes, ids are given in the order of pieces of that size.
    Raises MissingError without the file; BadDataError, with the byte, if it is truncated, damaged or not a
    trace.
    """
    usual = PIECE_BYTES if library() is None else SCANNED_PIECE_BYTES
    pieces = EventPieces(Path(path), salvage=salvage, piece_bytes=piece_bytes or usual)
    columns = Columns(pieces, together_bytes=0 if piece_bytes else SCANNED_TOGETHER_BYTES)
    for piece in pieces:
        columns.feed(piece)
    if pieces.cut:
        columns.problems[pieces.cut] += 1
    trace = columns.finish(decode_frame(pieces, columns.problems))
    return settled(_with_steps_apart(_timed(trace)))


def _with_steps_apart(trace: Trace) -> Trace:
    """The trace with each ProfilerStep ended where the next one of its thread begins.

    torch ends a step up to some microseconds after the next one began (pytorch/pytorch#174555), which would
    put neither into the other and the kernels of both into none.
    """
    numbers = np.array([*map(step_number, trace.strings), -1])
    steps = np.flatnonzero((numbers[trace.ranges.name_id] >= 0) & ~trace.ranges.on_gpu)
    ranges = trace.ranges.take(steps)
    order = np.lexsort((ranges.ts_ns, ranges.tid, ranges.pid))
    current, following = order[:-1], order[1:]
    apart_ns = ranges.ts_ns[following] - ranges.ts_ns[current]
    same_thread = (ranges.pid[current] == ranges.pid[following]) & (
        ranges.tid[current] == ranges.tid[following]
    )
    late = same_thread & (apart_ns > 0) & (ranges.dur_ns[current] > apart_ns)
    if not late.any():
        return trace
    dur_ns = trace.ranges.dur_ns.copy()
    dur_ns[steps[current[late]]] = apart_ns[late]
    return replace(trace, ranges=Table(trace.ranges.as_dict() | {"dur_ns": dur_ns}))


def _timed(trace: Trace) -> Trace:
    """The trace without GPU rows at 0 that took no time: their times were never written."""
    untimed = (trace.kernels.ts_ns == trace.meta.base_ns) & (trace.kernels.dur_ns == 0)
    if not untimed.any():
        return trace
    row = np.cumsum(~untimed) - 1
    collectives = trace.collectives.where(~untimed[trace.collectives.kernel])
    return replace(
        trace,
        kernels=trace.kernels.where(~untimed),
        collectives=Table(collectives.as_dict() | {"kernel": row[collectives.kernel]}),
        lacks=(*trace.lacks, *without_times(int(untimed.sum()), len(untimed))),
    )
