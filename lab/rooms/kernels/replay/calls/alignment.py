"""Joins recorded calls to the ops of a trace, through the catalogue's alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.recordings.tables import Table
from lab.rooms.kernels.catalogue.align import align
from lab.rooms.kernels.replay.calls.trace import Event, Op
from lab.rooms.kernels.schema import RecordedOp


def join(ops: Sequence[Op], marks: Sequence[Event], recorded: list[RecordedOp]) -> list[int]:
    """Index into `recorded` of each op of the trace, -1 for ops without a recorded call."""
    threads: dict[tuple[Any, Any], int] = {}
    numbers = [threads.setdefault((op.event.pid, op.event.tid), len(threads)) for op in ops]
    table = Table(
        {
            "ts_ns": np.array([round(op.event.ts * 1e3) for op in ops], dtype=np.int64),
            "dur_ns": np.array([round(op.event.dur * 1e3) for op in ops], dtype=np.int64),
            "pid": np.zeros(len(ops), dtype=np.int64),
            "tid": np.array(numbers, dtype=np.int64),
            "external_id": np.array([op.args.external_id for op in ops], dtype=np.int64),
        }
    )
    names = np.array([op.event.name for op in ops], dtype=object)
    spans = [(round(mark.ts * 1e3), round((mark.ts + mark.dur) * 1e3)) for mark in marks]
    spans_ns = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return [int(index) for index in align(table, names, spans_ns, recorded)]
