"""One trace from a file to a capture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.recordings.capture import OP, Capture
from lab.recordings.kineto.columns import Columns
from lab.recordings.kineto.decode import decode_frame
from lab.recordings.owners import settled
from lab.recordings.phase_names import step_number
from lab.recordings.pieces import PIECE_BYTES, EventPieces
from lab.recordings.processes import without_untimed


def read_kineto(path: Path | str, *, salvage: bool = False, piece_bytes: int = PIECE_BYTES) -> Capture:
    """Read one trace; all times become absolute integer nanoseconds.

    salvage keeps the readable part of a truncated or damaged file; `problems` says what is missing.
    Raises MissingError without the file; BadDataError, with the byte, if it is truncated, damaged or not a
    trace.
    """
    pieces = EventPieces(Path(path), salvage=salvage, piece_bytes=piece_bytes)
    columns = Columns(pieces)
    for piece in pieces:
        columns.feed(piece)
    if pieces.cut:
        columns.problems[pieces.cut] += 1
    capture = columns.finish(decode_frame(pieces, columns.problems))
    return settled(_with_steps_apart(without_untimed(capture)))


def _with_steps_apart(capture: Capture) -> Capture:
    """The capture with each ProfilerStep ended where the next one of its thread begins.

    torch ends a step up to some microseconds after the next one began (pytorch/pytorch#174555), which would
    put neither into the other and the kernels of both into none.
    """
    ranges = capture.ranges
    numbers = np.array([*map(step_number, capture.strings), -1])
    steps = np.flatnonzero((ranges.kind != OP) & (numbers[ranges.name_id] >= 0))
    steps = steps[np.lexsort((ranges.start_ns[steps], ranges.tid[steps], ranges.pid[steps]))]
    current, following = steps[:-1], steps[1:]
    begin_ns = ranges.start_ns[following]
    same_thread = (ranges.pid[current] == ranges.pid[following]) & (
        ranges.tid[current] == ranges.tid[following]
    )
    late = same_thread & (ranges.start_ns[current] < begin_ns) & (begin_ns < ranges.end_ns[current])
    if not late.any():
        return capture
    end_ns = ranges.end_ns.copy()
    end_ns[current[late]] = begin_ns[late]
    return replace(capture, ranges=ranges.with_columns(end_ns=end_ns))
