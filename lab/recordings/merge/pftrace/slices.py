"""The slices of one rank, what a viewer shows beside each, and the rows and lanes that they stand in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.merge.pftrace import packets
from lab.recordings.merge.pftrace.packets import bytes_field, fixed_field, int_field, text_field
from lab.recordings.owners import innermost
from lab.recordings.tables import KERNEL, Table

# The first three in the order of the values of `kernels.kind`.
CATEGORIES = (
    *("kernel", "gpu_memcpy", "gpu_memset"),
    *("user_annotation", "gpu_user_annotation", "cuda_runtime", "cpu_op"),
)
_GEOMETRY = tuple(f"{shape}_{axis}" for shape in ("grid", "block") for axis in "xyz")
_KERNEL_DETAILS = ("device", "stream", "correlation", "external_id", *_GEOMETRY, "bytes")
_COLLECTIVE_NUMBERS = ("in_nelems", "out_nelems", "group_size", "seq", "dst_rank", "src_rank", "group_rank")
_COLLECTIVE_TEXTS = ("collective", "dtype", "pg_name", "pg_desc", "pg_ranks")
_OP_TEXTS = ("dims", "types", "strides")
DETAILS = (*_KERNEL_DETAILS, *_COLLECTIVE_NUMBERS, *_COLLECTIVE_TEXTS, *_OP_TEXTS)
NUMBER_OF_DETAIL = {name: number for number, name in enumerate(DETAILS, start=1)}


@dataclass(frozen=True)
class SliceGroup:
    """Slices of one table (n,): position, category, details by name (-1, "" for unknown), encoded arrows."""

    on_gpu: bool
    table: Table
    pid: np.ndarray
    tid: np.ndarray
    categories: np.ndarray
    details: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    arrows: Mapping[int, bytes] = field(default_factory=dict)

    def fields(self, row: int) -> bytes:
        """Category, name, details and arrows of a slice, as fields of its event."""
        parts = [
            int_field(packets.EVENT_CATEGORY, int(self.categories[row]) + 1),
            int_field(packets.EVENT_NAME, int(self.table.name_id[row]) + 2),
        ]
        for name, values in self.details.items():
            value = values[row]
            if value not in (-1, ""):
                is_text = isinstance(value, str)
                number = int_field(packets.DETAIL_NAME, NUMBER_OF_DETAIL[name])
                encoded = text_field(packets.DETAIL_TEXT, str(value)) if is_text else b""
                encoded = encoded or int_field(packets.DETAIL_INT, int(value))
                parts.append(bytes_field(packets.EVENT_DETAIL, number + encoded))
        return b"".join([*parts, self.arrows.get(row, b"")])


def slice_groups(trace: Capture, rank: int, *, cpu_ops: bool) -> list[SliceGroup]:
    """All slices of a rank; flow ids are unique over ranks."""
    kernels, runtime, ops = trace.ops, trace.api, trace.operators
    on_gpu, off_gpu = trace.gpu_ranges, trace.annotations

    def texts(ids: np.ndarray) -> list[str]:
        return [trace.strings[index] if index >= 0 else "" for index in ids.tolist()]

    def group(
        category: str,
        table: Table,
        details: Mapping[str, Sequence[int | str]],
        arrows: Mapping[int, bytes],
    ) -> SliceGroup:
        categories = np.full(len(table), CATEGORIES.index(category))
        return SliceGroup(
            category.startswith("gpu"), table, table.pid, table.tid, categories, details, arrows
        )

    flow = {call: (rank + 1) << 40 | call + 1 for call in views.launch_calls(trace).tolist() if call >= 0}
    ends = enumerate(views.launch_calls(trace).tolist())
    groups = [
        SliceGroup(
            True,
            kernels,
            kernels.device,
            kernels.stream,
            np.where(trace.work, KERNEL, kernels.kind),  # a whole graph in one row computes, too
            {name: getattr(kernels, name).tolist() for name in _KERNEL_DETAILS if name != "correlation"}
            | {"correlation": kernels.corr.tolist()}
            | _of_collectives(trace, texts),
            {row: fixed_field(packets.EVENT_FLOW_END, flow[call]) for row, call in ends if call >= 0},
        ),
        group("gpu_user_annotation", on_gpu, {}, {}),
        group(
            "cuda_runtime",
            runtime,
            {"correlation": runtime.corr.tolist()},
            {call: fixed_field(packets.EVENT_FLOW, number) for call, number in flow.items()},
        ),
        group("user_annotation", off_gpu, {}, {}),
    ]
    if cpu_ops:
        details = {name: texts(getattr(ops, f"{name}_id")) for name in _OP_TEXTS}
        ids: dict[str, Sequence[int | str]] = {"external_id": ops.external_id.tolist()}
        groups.append(group("cpu_op", ops, ids | details, _op_arrows(trace, rank)))
    return [group for group in groups if len(group.table)]


def _of_collectives(
    trace: Capture, texts: Callable[[np.ndarray], list[str]]
) -> dict[str, Sequence[int | str]]:
    """Columns (n,) of what kernels of collectives say of their call."""
    table = trace.collectives
    row = np.full(len(trace.ops) + 1, -1, dtype=np.int64)
    row[table.kernel] = np.arange(len(table))
    row = row[:-1]
    numbers = {name: np.append(getattr(table, name), -1)[row].tolist() for name in _COLLECTIVE_NUMBERS}
    return numbers | {
        name: texts(np.append(getattr(table, f"{name}_id"), -1)[row]) for name in _COLLECTIVE_TEXTS
    }


def _op_arrows(trace: Capture, rank: int) -> dict[int, bytes]:
    """By row of `ops`, the encoded ends of its arrows from forward to backward.

    An end lies in the innermost operator at its time, as in a viewer; arrows without both ends are left out.
    """
    flows = trace.flows
    row = innermost(trace.operators, flows.pid, flows.tid, flows.ts_ns)
    starts, ends = (
        dict(zip(flows.flow[chosen].tolist(), row[chosen].tolist(), strict=True))
        for chosen in ((row >= 0) & ~flows.is_end, (row >= 0) & flows.is_end)
    )
    arrows: dict[int, bytes] = {}
    for index, flow in enumerate(sorted(starts.keys() & ends.keys())):
        number = (rank + 1) << 40 | 1 << 39 | index
        for op, kind in ((starts[flow], packets.EVENT_FLOW), (ends[flow], packets.EVENT_FLOW_END)):
            arrows[op] = arrows.get(op, b"") + fixed_field(kind, number)
    return arrows


class RowSlices(NamedTuple):
    """The slices of one row of the viewer, by start, longest first: group, row in its table, times."""

    tid: int
    of_group: np.ndarray
    of_row: np.ndarray
    start: np.ndarray
    end: np.ndarray


def rows_by_process(groups: Sequence[SliceGroup]) -> Iterator[tuple[int, list[RowSlices]]]:
    """Each pid with its rows."""
    if not groups:
        return
    sizes = [len(group.table) for group in groups]
    pid = np.concatenate([group.pid for group in groups]).astype(np.int64)
    tid = np.concatenate([group.tid for group in groups])
    start = np.concatenate([group.table.start_ns for group in groups])
    end = start + np.concatenate([group.table.dur_ns for group in groups])
    of_group = np.repeat(np.arange(len(groups)), sizes)
    of_row = np.concatenate([np.arange(size) for size in sizes])
    order = np.lexsort((-end, start, tid, pid))
    for process in np.unique(pid).tolist():
        of_process = order[pid[order] == process]
        rows = [of_process[tid[of_process] == thread] for thread in np.unique(tid[of_process]).tolist()]
        yield (
            process,
            [RowSlices(int(tid[row[0]]), of_group[row], of_row[row], start[row], end[row]) for row in rows],
        )


def lanes(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """The lane (n,) of each slice, given by start and longest first, so that slices of one lane only nest.

    A slice goes to the first lane where the last open slice has ended or contains it.
    """
    result = np.zeros(len(start_ns), dtype=np.int64)
    open_ends: list[list[int]] = []
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        for lane, ends in enumerate(open_ends):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or ends[-1] >= end:
                ends.append(end)
                result[row] = lane
                break
        else:
            result[row] = len(open_ends)
            open_ends.append([end])
    return result
