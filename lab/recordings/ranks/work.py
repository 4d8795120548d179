"""What one rank did: its GPU operations with their launches, its steps, and its host's calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np

from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.phase_names import step_number
from lab.recordings.tables import Table
from lab.stats.columns import distinct, distinct_rows

COMP, COMM, COPY = views.COMP, views.COMM, views.MEMCOPY

# Calls in which the host waits: for the device, for memory, or for a pageable copy.
_BLOCKING = re.compile(r"Synchronize|(cuda|hip)Malloc(?!Async)|(cuda|hip)Free(?!Async)|(cuda|hip)Memcpy$")


@dataclass(frozen=True)
class RankWork:
    """One rank's operations in the order of the recording, times in ns on the rank's own clock.

    kind is COMP, COMM or COPY; call_begin and call_end are the launch call's, -1 where it was not recorded;
    key indexes `keys`: (op, dims, strides, kernel, grid); op indexes `ops` (what launched it, 0: unknown).
    steps: rows of (number, begin, end), which tile; empty without step marks. blocking_calls, calls and
    host_ops are spans (n, 2) of the threads that launch. waits: rows (operation, the one on another stream
    whose end it awaits), where the profiler recorded them. held: operations that a stream held back for an
    event of which the profiler recorded no more. On a CPU ops stand in for kernels.
    """

    rank: int
    device: str
    host: str
    start: np.ndarray
    end: np.ndarray
    kind: np.ndarray
    stream: np.ndarray
    call_begin: np.ndarray
    call_end: np.ndarray
    key: np.ndarray
    keys: tuple[tuple[str, ...], ...]
    op: np.ndarray
    ops: tuple[str, ...]
    steps: np.ndarray
    blocking_calls: np.ndarray
    calls: np.ndarray
    host_ops: np.ndarray
    collectives: Table
    waits: np.ndarray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    held: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.start)


def work_of(trace: Capture, rank: int | None = None) -> RankWork:
    """The work of one trace; rank: used where the trace does not say which it is."""
    mine = trace.meta.rank if trace.meta.rank is not None else (rank if rank is not None else -1)
    on_gpu = views.device_of(trace) == "gpu"
    work = _of_gpu(trace, mine) if on_gpu else _of_cpu(trace, mine)
    return replace(
        work, host=trace.meta.host or "", steps=_steps(trace), collectives=_collectives(trace, work)
    )


def _of_gpu(trace: Capture, rank: int) -> RankWork:
    kernels, runtime = trace.ops, trace.api
    call = views.launch_calls(trace)
    known = call >= 0
    begin, end = np.full(len(kernels), -1, dtype=np.int64), np.full(len(kernels), -1, dtype=np.int64)
    begin[known] = runtime.start_ns[call[known]]
    end[known] = runtime.end_ns[call[known]]
    link = views.link_ops(trace)
    key, keys = _keys(trace, link)
    op, ops = _op_names(trace, link)
    devices = kernels.device.astype(np.int64) - min(kernels.device.min(initial=0), 0)
    return RankWork(
        rank=rank,
        device="gpu",
        host="",
        start=kernels.start_ns,
        end=kernels.end_ns,
        kind=views.classify(trace),
        stream=kernels.stream + (devices << 32),
        call_begin=begin,
        call_end=end,
        key=key,
        keys=keys,
        op=op,
        ops=ops,
        steps=_NO_STEPS,
        **_host_spans(trace, call[known]),
        collectives=_NO_ROWS,
        waits=_stream_waits(trace, begin),
        held=_held(trace, begin),
    )


def _stream_waits(trace: Capture, call_begin: np.ndarray) -> np.ndarray:
    """Rows (operation, the one it awaits) of the recorded waits of streams for events.

    An event stands for the last operation launched on its stream before it was recorded; what waits is the
    first operation launched on the other stream after the wait. Whatever follows there waits by its order.
    """
    waits, kernels = trace.waits, trace.ops
    waited, recorded = (_call_times(trace, column) for column in (waits.corr, waits.record))
    told = (waited >= 0) & (recorded >= 0) & (waits.stream != waits.on_stream)
    launched = np.lexsort((kernels.start_ns, call_begin))
    launched = launched[call_begin[launched] >= 0]
    found = [np.empty((0, 2), dtype=np.int64)]
    kinds = np.stack([waits.device, waits.stream, waits.on_stream], axis=1)
    for device, stream, on_stream in distinct_rows(kinds[told])[0].tolist():
        mine = told & (kinds == (device, stream, on_stream)).all(axis=1)
        here = launched[kernels.device[launched] == device]
        waiting, awaited = (here[kernels.stream[here] == one] for one in (stream, on_stream))
        after = np.searchsorted(call_begin[waiting], waited[mine])
        before = np.searchsorted(call_begin[awaited], recorded[mine]) - 1
        both = (after < len(waiting)) & (before >= 0)
        found.append(np.stack([waiting[after[both]], awaited[before[both]]], axis=1))
    return distinct_rows(np.concatenate(found))[0]


def _held(trace: Capture, call_begin: np.ndarray) -> np.ndarray:
    """The first operations launched after waits of their streams for events that are not known (n,)."""
    waits, kernels = trace.waits, trace.ops
    waited, recorded = (_call_times(trace, column) for column in (waits.corr, waits.record))
    loose = (waited >= 0) & (recorded < 0)
    launched = np.argsort(call_begin, kind="stable")
    launched = launched[call_begin[launched] >= 0]
    found = [np.empty(0, dtype=np.int64)]
    kinds = np.stack([waits.device, waits.stream], axis=1)
    for device, stream in distinct_rows(kinds[loose])[0].tolist():
        here = launched[(kernels.device[launched] == device) & (kernels.stream[launched] == stream)]
        after = np.searchsorted(call_begin[here], waited[loose & (kinds == (device, stream)).all(axis=1)])
        found.append(here[after[after < len(here)]])
    return distinct(np.concatenate(found))


def _call_times(trace: Capture, correlation: np.ndarray) -> np.ndarray:
    """When each call (n,) began, -1 where it was not recorded."""
    runtime = trace.api
    if not len(runtime):
        return np.full(len(correlation), -1, dtype=np.int64)
    order = np.lexsort((runtime.start_ns, runtime.corr))
    known = runtime.corr[order]
    at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    found = (known[at] == correlation) & (correlation > 0)
    times: np.ndarray = np.where(found, runtime.start_ns[order[at]], -1)
    return times


def _of_cpu(trace: Capture, rank: int) -> RankWork:
    """Computing ops and gloo's ranges as operations that launch themselves."""
    names = trace.strings
    computes = np.array([*(views.timeline.is_computation(text) for text in names), False])
    talks = np.array([*(views.timeline.is_gloo(text) for text in names), False])
    ops = trace.operators.where(computes[trace.operators.name_id])
    found = np.flatnonzero(talks[trace.annotations.name_id])
    comm = trace.annotations.take(found)
    start = np.concatenate([ops.start_ns, comm.start_ns])
    name_id = np.concatenate([ops.name_id, comm.name_id])
    used, key = np.unique(name_id, return_inverse=True)
    texts = tuple(names[index] for index in used.tolist())
    return RankWork(
        rank=rank,
        device="cpu",
        host="",
        start=start,
        end=np.concatenate([ops.end_ns, comm.end_ns]),
        kind=np.repeat(np.array([COMP, COMM], dtype=np.int8), [len(ops), len(comm)]),
        stream=np.concatenate([ops.tid, comm.tid]),
        call_begin=start,
        call_end=start,
        key=key.ravel(),
        keys=tuple((text, "", "", text, "") for text in texts),
        op=key.ravel() + 1,
        ops=("", *texts),
        steps=_NO_STEPS,
        blocking_calls=_NO_SPANS,
        calls=_NO_SPANS,
        host_ops=_NO_SPANS,
        collectives=_NO_ROWS,
    )


def _collectives(trace: Capture, work: RankWork) -> Table:
    """`views.collective_instances` with `row` as the row of this work."""
    table = views.collective_instances(trace)
    if work.device == "gpu":
        return table
    # Rows of ranges -> rows of this work, where gloo's ranges stand behind the ops in the same order.
    first = int((work.kind == COMP).sum())
    place = np.searchsorted(np.sort(table.row), table.row)
    return Table({**table.as_dict(), "row": first + place})


def _keys(trace: Capture, link: np.ndarray) -> tuple[np.ndarray, tuple[tuple[str, ...], ...]]:
    """What makes two kernels the same: op, dims, strides, kernel and grid."""
    kernels, ops = trace.ops, trace.operators
    columns = [
        np.where(link >= 0, getattr(ops, name)[link], -1) if len(ops) else np.full(len(link), -1)
        for name in ("name_id", "dims_id", "strides_id")
    ]
    columns += [kernels.name_id, kernels.grid_x, kernels.grid_y, kernels.grid_z]
    rows = np.stack([np.asarray(column, dtype=np.int64) for column in columns], axis=1)
    distinct, key = distinct_rows(rows)

    def text(index: int) -> str:
        return trace.strings[index] if index >= 0 else ""

    keys = tuple(
        (text(op), text(dims), text(strides), text(name), f"{x},{y},{z}")
        for op, dims, strides, name, x, y, z in distinct.tolist()
    )
    return key.ravel(), keys


def _op_names(trace: Capture, link: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    names = (
        np.where(link >= 0, trace.operators.name_id[link], -1)
        if len(trace.operators)
        else np.full(len(link), -1)
    )
    used, op = np.unique(np.append(names, -1), return_inverse=True)
    return op.ravel()[:-1], tuple(trace.strings[index] if index >= 0 else "" for index in used.tolist())


def _host_spans(trace: Capture, launches: np.ndarray) -> dict[str, np.ndarray]:
    """What the threads that launch kernels did."""
    runtime, ops = trace.api, trace.operators
    threads = distinct(runtime.tid[launches]) if len(launches) else np.empty(0, dtype=np.int64)
    waits = np.array([*(bool(_BLOCKING.search(text)) for text in trace.strings), False])
    calls = runtime.where(np.isin(runtime.tid, threads))
    busy = ops.where(np.isin(ops.tid, threads))
    spans = np.stack([calls.start_ns, calls.end_ns], axis=1)
    blocking = waits[calls.name_id]
    return {
        "blocking_calls": spans[blocking],
        "calls": spans[~blocking],
        "host_ops": np.stack([busy.start_ns, busy.end_ns], axis=1),
    }


def _steps(trace: Capture) -> np.ndarray:
    """(number, begin, end) of each ProfilerStep#N of the host, by begin."""
    numbers = np.array([*(step_number(text) for text in trace.strings), -1])
    ranges = trace.annotations
    found = ranges.where(numbers[ranges.name_id] >= 0)
    rows = np.stack([numbers[found.name_id], found.start_ns, found.end_ns], axis=1)
    rows = distinct_rows(rows.astype(np.int64))[0]
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    # Windows must not overlap, or an instant would count twice.
    rows[:-1, 2] = np.minimum(rows[:-1, 2], rows[1:, 1])
    return rows


_NO_SPANS = np.empty((0, 2), dtype=np.int64)
_NO_STEPS = np.empty((0, 3), dtype=np.int64)
_NO_ROWS = Table({})
