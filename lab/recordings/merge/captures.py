"""Ranks that are in memory as one JSON file: every slice, what lab reads of it, and the arrows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.merge.output import CPU_PIDS, ENCODER, FIRST_TEXT_TID, RANK_PIDS, lanes, packed
from lab.recordings.tables import KERNEL, Table

# In the order of the values of `ops.kind`.
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
# Columns that a viewer shows by a slice's place and name.
_SHOWN = {"process", "start_ns", "end_ns", "kind", "pid", "tid", "end_tid", "name_id", "kernel", "op"}
_EVENTS_AT_ONCE = 10_000

Event = dict[str, Any]


@dataclass
class _Slices:
    """Slices of one table (n,): categories, args by name (-1, "" for unknown), and their rows in a viewer."""

    table: Table
    categories: Sequence[str]
    pid: np.ndarray
    tid: np.ndarray
    args: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.table)


def merge_captures(
    ranks: Mapping[int, Capture], target: Path, *, offsets_ns: Mapping[int, int] | None = None
) -> None:
    """Write these ranks into `target`, gzip if it ends in .gz; offsets_ns is added to a rank's times."""
    tables = [table for trace in ranks.values() for table in (trace.ops, trace.api, trace.operators)]
    base_ns = min((int(table.start_ns.min()) for table in tables if len(table)), default=0)
    frame = {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        "distributedInfo": [{"rank": rank, "world_size": t.meta.world_size} for rank, t in ranks.items()],
        "merged": {"ranks": [*ranks]},
    }
    with packed(target) as file:
        file.write(ENCODER.encode(frame)[:-1] + b',"traceEvents":[')
        gap = b"\n"
        for rank, trace in ranks.items():
            events = _events_of(trace, rank, (offsets_ns or {}).get(rank, 0) - base_ns)
            while batch := list(islice(events, _EVENTS_AT_ONCE)):
                file.write(gap + ENCODER.encode(batch)[1:-1])
                gap = b",\n"
        file.write(b"\n]}\n")


def _events_of(trace: Capture, rank: int, shift_ns: int) -> Iterator[Event]:
    """The events of one rank: names of its rows, slices, arrows from launches and from forward operators."""
    kernels, calls = _kernels(trace), _of_table(trace, trace.api, "cuda_runtime")
    gpu = [kernels, _of_table(trace, trace.gpu_ranges, "gpu_user_annotation")]
    ranges = _of_table(trace, trace.annotations, "user_annotation")
    cpu = [calls, ranges, _of_table(trace, trace.operators, "cpu_op")]
    arrows = _arrows(trace)
    yield from _place(trace, rank, gpu, on_gpu=True)
    yield from _place(trace, rank, [*cpu, arrows], on_gpu=False)
    for group in (*gpu, *cpu):
        yield from _slices(trace, rank, shift_ns, group)
    launch = views.launch_calls(trace)
    kernel = np.flatnonzero(launch >= 0)
    first_flow = (rank + 1) << 40
    for group, rows in ((calls, np.unique(launch[kernel])), (kernels, kernel)):
        ids = (rows if group is calls else launch[rows]) + first_flow
        yield from _ends(group, rows, ids, "ac2g", np.full(len(rows), group is kernels), shift_ns)
    flow = trace.flows.flow
    paired = np.intersect1d(flow[trace.flows.is_end], flow[~trace.flows.is_end])
    rows = np.flatnonzero(np.isin(flow, paired))
    ids = np.searchsorted(paired, flow[rows]) + first_flow + (1 << 39)
    yield from _ends(arrows, rows, ids, "fwdbwd", trace.flows.is_end[rows], shift_ns)


def _kernels(trace: Capture) -> _Slices:
    ops, collectives = trace.ops, trace.collectives
    row = np.full(len(ops) + 1, -1, dtype=np.int64)
    row[collectives.kernel] = np.arange(len(collectives))
    row = row[:-1]
    of_call = Table({name: np.append(getattr(collectives, name), -1)[row] for name in collectives})
    kinds = np.where(trace.work, KERNEL, ops.kind)  # a whole graph in one row computes, too
    categories = [_GPU_CATEGORIES[kind] for kind in kinds.tolist()]
    return _Slices(ops, categories, ops.device, ops.stream, _details(trace, ops) | _details(trace, of_call))


def _of_table(trace: Capture, table: Table, category: str) -> _Slices:
    return _Slices(table, [category] * len(table), table.pid, table.tid, _details(trace, table))


def _details(trace: Capture, table: Table) -> dict[str, np.ndarray]:
    """Collect other details of each row: numbers, and texts by the 32-bit ids of strings."""
    details = {}
    for name in table:
        column = getattr(table, name)
        is_text = name.endswith("_id") and column.dtype == np.int32
        if name not in _SHOWN:
            details[name.removesuffix("_id") if is_text else name] = trace.text(column) if is_text else column
    return details


def _arrows(trace: Capture) -> _Slices:
    """Ends of arrows as slices of no time, which lie in the operator around them."""
    flows = trace.flows
    table = flows.with_columns(start_ns=flows.ts_ns, end_ns=flows.ts_ns)
    return _Slices(table, [], flows.pid, flows.tid, {})


def _place(trace: Capture, rank: int, groups: Sequence[_Slices], *, on_gpu: bool) -> Iterator[Event]:
    """Give slices the pid and tid under which they are shown; yields the names of these rows."""

    def joined(columns: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(columns).astype(np.int64)

    def shown(number: int) -> str:
        """A pid or tid; a text one stands as -2 minus its index in `strings`."""
        return str(number) if number > -2 else trace.strings[-2 - number]

    pid, tid = joined([group.pid for group in groups]), joined([group.tid for group in groups])
    start, end = (joined([getattr(group.table, name) for group in groups]) for name in ("start_ns", "end_ns"))
    side, row_name = ("GPU", "stream") if on_gpu else ("CPU", "thread")
    shown_pid, shown_tid, next_tid = np.zeros_like(pid), np.zeros_like(tid), FIRST_TEXT_TID
    order = np.lexsort((-end, start, tid, pid))
    for index, process in enumerate(np.unique(pid).tolist()):
        number = RANK_PIDS * rank + (0 if on_gpu else CPU_PIDS) + index
        title = f"[R{rank}] rank {rank} {side} {shown(process)}"
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": title}}
        of_process = order[pid[order] == process]
        for thread in np.unique(tid[of_process]).tolist():
            rows = of_process[tid[of_process] == thread]
            lane_of_row = np.array(lanes(start[rows].tolist(), end[rows].tolist()))
            for lane in range(lane_of_row.max() + 1):
                is_number = lane == 0 and 0 <= thread < 1 << 31
                next_tid += not is_number
                lane_tid = thread if is_number else next_tid
                name = f"{row_name} {shown(thread)}" + (f", overlapping {lane}" if lane else "")
                yield {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": number,
                    "tid": lane_tid,
                    "args": {"name": name},
                }
                shown_pid[rows[lane_of_row == lane]] = number
                shown_tid[rows[lane_of_row == lane]] = lane_tid
    edges = np.cumsum([len(group) for group in groups])[:-1]
    for group, pids, tids in zip(groups, np.split(shown_pid, edges), np.split(shown_tid, edges), strict=True):
        group.pid, group.tid = pids, tids


def _slices(trace: Capture, rank: int, shift_ns: int, group: _Slices) -> Iterator[Event]:
    table = group.table
    columns = (trace.text(table.name_id), group.pid, group.tid, table.start_ns + shift_ns, table.dur_ns)
    rows = zip(group.categories, *(column.tolist() for column in columns), strict=True)
    args = zip(*(column.tolist() for column in group.args.values()), strict=True)
    for (category, name, pid, tid, start_ns, dur_ns), values in zip(
        rows, args if group.args else ((),) * len(group), strict=True
    ):
        details = {key: value for key, value in zip(group.args, values, strict=True) if value not in (-1, "")}
        yield {
            "ph": "X",
            "cat": category,
            "name": name or "(no name)",
            "pid": pid,
            "tid": tid,
            "ts": start_ns / 1000,
            "dur": dur_ns / 1000,
            "args": {"rank": rank, **details},
        }


def _ends(
    group: _Slices, rows: np.ndarray, ids: np.ndarray, name: str, is_end: np.ndarray, shift_ns: int
) -> Iterator[Event]:
    """Ends of arrows at the begin of slices; `ids` (n,) pair a start with its end."""
    columns = (ids, is_end, group.pid[rows], group.tid[rows], group.table.start_ns[rows] + shift_ns)
    for number, ends, pid, tid, ts_ns in zip(*(column.tolist() for column in columns), strict=True):
        phase: Event = {"ph": "f", "bp": "e"} if ends else {"ph": "s"}
        yield {**phase, "cat": name, "name": name, "id": number, "pid": pid, "tid": tid, "ts": ts_ns / 1000}
