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
    return settled(_timed(columns.finish(decode_frame(pieces, columns.problems))))


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
