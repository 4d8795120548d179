"""What one rank did: its GPU operations with their launches, its steps, and its host's calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.owners import first_index
from lab.recordings.phase_names import is_step, step_number
from lab.recordings.tables import Table
from lab.stats.columns import distinct, distinct_rows

COMP, COMM, COPY = views.COMP, views.COMM, views.MEMCOPY

# Calls in which the host waits: for the device, for memory, or for a pageable copy.
_BLOCKING = re.compile(r"Synchronize|(cuda|hip)Malloc(?!Async)|(cuda|hip)Free(?!Async)|(cuda|hip)Memcpy$")


@dataclass(frozen=True)
class RankWork:
    """One rank's operations in the order of the recording, times in ns on the rank's own clock.

    kind is COMP, COMM or COPY; call_begin and call_end are the launch call's, -1 where it was not recorded;
    key indexes `keys`: (op that launched it, "" unknown; dims, strides, kernel, grid).
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
    steps: np.ndarray
    blocking_calls: np.ndarray
    calls: np.ndarray
    host_ops: np.ndarray
    collectives: Table
    waits: np.ndarray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    held: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def launched(self) -> np.ndarray:
        """When each operation (n,) was launched; its start where the launch was not recorded."""
        launched: np.ndarray = np.where(self.call_begin >= 0, self.call_begin, self.start)
        return launched


def work_of(trace: Capture, rank: int | None = None) -> RankWork:
    """The work of one trace; rank: used where the trace does not say which it is."""
    if trace.meta.rank is not None:
        rank = trace.meta.rank
    device = views.device_of(trace)
    return RankWork(
        rank=-1 if rank is None else rank,
        device=device,
        host=trace.meta.host or "",
        steps=_steps(trace),
        **(_of_gpu(trace) if device == "gpu" else _of_cpu(trace)),
    )


def common_keys(works: Sequence[RankWork]) -> tuple[list[tuple[str, ...]], list[np.ndarray]]:
    """The keys of several ranks as one list, and the number in it of each key of each rank."""
    number_of_key: dict[tuple[str, ...], int] = {}
    numbers = [
        np.array([number_of_key.setdefault(key, len(number_of_key)) for key in work.keys], dtype=np.int64)
        for work in works
    ]
    return list(number_of_key), numbers


def _of_gpu(trace: Capture) -> dict[str, Any]:
    kernels, runtime = trace.ops, trace.api
    call = views.launch_calls(trace)
    begin, end = (np.append(times_ns, -1)[call] for times_ns in (runtime.start_ns, runtime.end_ns))
    key, keys = _keys(trace, views.link_ops(trace))
    devices = kernels.device.astype(np.int64) - min(kernels.device.min(initial=0), 0)
    waits, held = _stream_waits(trace, begin)
    return {
        "start": kernels.start_ns,
        "end": kernels.end_ns,
        "kind": views.classify(trace),
        # Stream numbers repeat on each GPU of a process.
        "stream": kernels.stream + (devices << 32),
        "call_begin": begin,
        "call_end": end,
        "key": key,
        "keys": keys,
        **_host_spans(trace, call[call >= 0]),
        "collectives": views.collective_instances(trace),
        "waits": waits,
        "held": held,
    }


def _stream_waits(trace: Capture, call_begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recorded waits of streams for events: rows (operation, the one it awaits); operations (n,) that waited
    for an event that is not known.

    An event stands for the last operation launched on its stream before it was recorded; what waits is the
    first operation launched on the other stream after the wait. Whatever follows there waits by its order.
    """
    waits, kernels = trace.waits, trace.ops
    waited, recorded = (_call_times(trace, column) for column in (waits.corr, waits.record))
    is_known = recorded >= 0
    relevant = (waited >= 0) & ~(is_known & (waits.stream == waits.on_stream))
    # By launch, for streams run in that order; starts tell apart what one call launched.
    order = np.lexsort((kernels.start_ns, call_begin))
    order = order[call_begin[order] >= 0]
    pairs, held = [np.empty((0, 2), dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    columns = np.stack([waits.device, waits.stream, waits.on_stream], axis=1)
    for device, stream, on_stream in distinct_rows(columns[relevant])[0].tolist():
        chosen = relevant & (columns == (device, stream, on_stream)).all(axis=1)
        on_device = order[kernels.device[order] == device]
        waiting, awaited = (on_device[kernels.stream[on_device] == number] for number in (stream, on_stream))
        next_index = np.searchsorted(call_begin[waiting], waited[chosen])
        last_index = np.searchsorted(call_begin[awaited], recorded[chosen]) - 1
        follows = next_index < len(waiting)
        paired = follows & is_known[chosen] & (last_index >= 0)
        pairs.append(np.stack([waiting[next_index[paired]], awaited[last_index[paired]]], axis=1))
        held.append(waiting[next_index[follows & ~is_known[chosen]]])
    return distinct_rows(np.concatenate(pairs))[0], distinct(np.concatenate(held))


def _call_times(trace: Capture, correlation: np.ndarray) -> np.ndarray:
    """When each call (n,) began, the earliest of equal numbers; -1 where it was not recorded."""
    order = np.argsort(trace.api.start_ns, kind="stable")
    call = first_index(np.where(correlation > 0, correlation, -1), trace.api.corr[order])
    times: np.ndarray = np.append(trace.api.start_ns[order], -1)[call]
    return times


def _of_cpu(trace: Capture) -> dict[str, Any]:
    """Computing ops and gloo's ranges as operations that launch themselves."""
    ops, comm = (
        table.where(trace.by_text(rule, table.name_id))
        for table, rule in (
            (trace.operators, views.launches.is_computation),
            (trace.annotations, views.launches.is_gloo),
        )
    )
    start = np.concatenate([ops.start_ns, comm.start_ns])
    used, key = np.unique(np.concatenate([ops.name_id, comm.name_id]), return_inverse=True)
    texts = trace.text(used).tolist()
    collectives = views.collective_instances(trace)
    # Rows of ranges -> rows of this work, where gloo's ranges stand behind the ops in the same order.
    row = len(ops) + np.searchsorted(np.sort(collectives.row), collectives.row)
    no_spans = np.empty((0, 2), dtype=np.int64)
    return {
        "start": start,
        "end": start + np.concatenate([ops.dur_ns, comm.dur_ns]),
        "kind": np.repeat(np.array([COMP, COMM], dtype=np.int8), [len(ops), len(comm)]),
        "stream": np.concatenate([ops.tid, comm.tid]),
        "call_begin": start,
        "call_end": start,
        "key": key.ravel(),
        "keys": tuple((text, "", "", text, "") for text in texts),
        **dict.fromkeys(("blocking_calls", "calls", "host_ops"), no_spans),
        "collectives": Table({**collectives.as_dict(), "row": row}),
    }


def _keys(trace: Capture, link: np.ndarray) -> tuple[np.ndarray, tuple[tuple[str, ...], ...]]:
    """What makes two kernels the same: op, dims, strides, kernel and grid."""
    kernels, ops = trace.ops, trace.operators
    columns = [np.append(getattr(ops, name), -1)[link] for name in ("name_id", "dims_id", "strides_id")]
    columns += [kernels.name_id, kernels.grid_x, kernels.grid_y, kernels.grid_z]
    distinct, key = distinct_rows(np.stack(columns, axis=1).astype(np.int64))
    text = trace.name
    keys = tuple(
        (text(op), text(dims), text(strides), text(name), f"{x},{y},{z}")
        for op, dims, strides, name, x, y, z in distinct.tolist()
    )
    return key.ravel(), keys


def _named_number(text: str) -> int:
    """7 of `train step 7`, as programs name steps for nsys; -1 for anything else."""
    digits = re.search(r"\d{1,9}$", text)
    return int(digits[0]) if digits and is_step(text) else -1


def _host_spans(trace: Capture, launches: np.ndarray) -> dict[str, np.ndarray]:
    """What the threads that launch kernels did."""
    runtime, ops = trace.api, trace.operators
    threads = distinct(runtime.tid[launches]) if len(launches) else np.empty(0, dtype=np.int64)
    calls = runtime.where(np.isin(runtime.tid, threads))
    busy = ops.where(np.isin(ops.tid, threads))
    spans = np.stack([calls.start_ns, calls.end_ns], axis=1)
    blocking = trace.by_text(lambda text: _BLOCKING.search(text) is not None, calls.name_id)
    return {
        "blocking_calls": spans[blocking],
        "calls": spans[~blocking],
        "host_ops": np.stack([busy.start_ns, busy.end_ns], axis=1),
    }


def _steps(trace: Capture) -> np.ndarray:
    """(number, begin, end) of each ProfilerStep#N of the host, else of each named step, by begin."""
    ranges = trace.annotations
    number = trace.by_text(step_number, ranges.name_id, -1)
    if not (number >= 0).any():
        number = trace.by_text(_named_number, ranges.name_id, -1)
    rows = np.stack([number, ranges.start_ns, ranges.end_ns], axis=1)[number >= 0]
    rows = distinct_rows(rows.astype(np.int64))[0]
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    # Windows must not overlap, or an instant would count twice.
    rows[:-1, 2] = np.minimum(rows[:-1, 2], rows[1:, 1])
    return rows
