"""Details that a viewer shows beside a slice: geometry, sizes, shapes, and the launch it belongs to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.merge.pftrace.packets import (
    DETAIL_INT,
    DETAIL_NAME,
    DETAIL_TEXT,
    EVENT_DETAIL,
    EVENT_FLOW,
    EVENT_FLOW_END,
    bytes_field,
    fixed_field,
    int_field,
    text_field,
)
from lab.recordings.owners import innermost
from lab.recordings.tables import Table

# The first three in the order of the values of `ops.kind`.
CATEGORIES = (
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "user_annotation",
    "gpu_user_annotation",
    "cuda_runtime",
    "cpu_op",
)

KERNEL_DETAILS = (
    "device",
    "stream",
    "correlation",
    "external_id",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "bytes",
)

COLLECTIVE_NUMBERS = ("in_nelems", "out_nelems", "group_size", "seq")
COLLECTIVE_TEXTS = ("collective", "dtype", "pg_name", "pg_desc", "pg_ranks")
OP_TEXTS = ("dims", "types", "strides")
DETAILS = (*KERNEL_DETAILS, *COLLECTIVE_NUMBERS, *COLLECTIVE_TEXTS, *OP_TEXTS)
NUMBER_OF_DETAIL = {name: number for number, name in enumerate(DETAILS, start=1)}


class SliceDetails:
    """Encodes the details of one rank's slices; their names are written once and referred to by number."""

    def __init__(self, trace: Capture, rank: int) -> None:
        self._trace, self._rank = trace, rank
        self._calls = views.launch_calls(trace)
        self._launched = np.zeros(len(trace.api), dtype=bool)
        self._launched[self._calls[self._calls >= 0]] = True
        self._arrows = _arrows(trace, rank)

    def of_kernels(self) -> Callable[[int], bytes]:
        columns = {
            name: getattr(self._trace.ops, "corr" if name == "correlation" else name).tolist()
            for name in KERNEL_DETAILS
        }
        collectives = self._trace.collectives
        of_kernel = {kernel: row for row, kernel in enumerate(collectives.kernel.tolist())}
        calls = self._calls.tolist()

        def details(row: int) -> bytes:
            known = b"".join(self._detail(name, column[row]) for name, column in columns.items())
            if row in of_kernel:
                known += self._of_collective(collectives, of_kernel[row])
            return known + (fixed_field(EVENT_FLOW_END, self._flow(calls[row])) if calls[row] >= 0 else b"")

        return details

    def _of_collective(self, collectives: Table, row: int) -> bytes:
        known = b"".join(
            self._detail(name, int(getattr(collectives, name)[row])) for name in COLLECTIVE_NUMBERS
        )
        for name in COLLECTIVE_TEXTS:
            known += self._detail(name, self.text(int(getattr(collectives, f"{name}_id")[row])))
        return known

    def of_call(self, row: int) -> bytes:
        known = self._detail("correlation", int(self._trace.api.corr[row]))
        return known + (fixed_field(EVENT_FLOW, self._flow(row)) if self._launched[row] else b"")

    def of_op(self, row: int) -> bytes:
        ops = self._trace.operators
        known = self._detail("external_id", int(ops.external_id[row]))
        for name in OP_TEXTS:
            known += self._detail(name, self.text(int(getattr(ops, f"{name}_id")[row])))
        return known + self._arrows.get(row, b"")

    def _flow(self, call: int) -> int:
        """A launch's flow id, unique over ranks."""
        return (self._rank + 1) << 40 | call + 1

    def text(self, index: int) -> str:
        return self._trace.strings[index] if index >= 0 else ""

    def _detail(self, name: str, value: int | str) -> bytes:
        if value in (-1, ""):
            return b""
        encoded = text_field(DETAIL_TEXT, value) if isinstance(value, str) else int_field(DETAIL_INT, value)
        return bytes_field(EVENT_DETAIL, int_field(DETAIL_NAME, NUMBER_OF_DETAIL[name]) + encoded)


def _arrows(trace: Capture, rank: int) -> dict[int, bytes]:
    """By row of `operators`, the encoded ends of its arrows from forward to backward.

    An end lies in the innermost operator at its time, as in a viewer; arrows without both ends are left out.
    """
    flows = trace.flows
    row = innermost(trace.operators, flows.pid, flows.tid, flows.ts_ns)
    starts, ends = (
        dict(zip(flows.flow[chosen].tolist(), row[chosen].tolist(), strict=True))
        for chosen in ((row >= 0) & ~flows.is_end, (row >= 0) & flows.is_end)
    )
    found: dict[int, bytes] = {}
    for at, flow in enumerate(sorted(starts.keys() & ends.keys())):
        number = (rank + 1) << 40 | 1 << 39 | at
        for op, kind in ((starts[flow], EVENT_FLOW), (ends[flow], EVENT_FLOW_END)):
            found[op] = found.get(op, b"") + fixed_field(kind, number)
    return found
