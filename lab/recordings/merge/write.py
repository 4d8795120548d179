"""Ranks that are in memory as one JSON file: every slice, what lab reads of it, and the arrows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import msgspec
import numpy as np

from lab.core.files import replacing
from lab.recordings import views
from lab.recordings.capture import Capture, shared_memory_bytes
from lab.recordings.kineto import STREAM_WAIT
from lab.recordings.kineto.decode import Args
from lab.recordings.owners import first_index
from lab.recordings.tables import KERNEL, Table

packer: ModuleType

try:
    from isal import igzip as packer
except ModuleNotFoundError:  # a few times slower, the same format
    packer = gzip

RANK_PIDS, CPU_PIDS = 1000, 500
FIRST_TEXT_TID = 1 << 30  # above any thread number of Linux
# In the order of the values of `ops.kind`.
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
# Columns that a viewer shows by a slice's place and name, and those that stand in another form.
_SHOWN = {
    *("process", "start_ns", "end_ns", "kind", "pid", "tid", "end_tid", "name_id", "text_id", "ts_ns"),
    *("row", "domain", "kernel", "op", "dynamic_smem_bytes", "static_smem_bytes"),
    *(f"{name}_{axis}" for name in ("grid", "block") for axis in "xyz"),
}
# What Kineto calls the columns, which its reader names alike; kinds of copies are numbers here, texts there.
_KINETO = {
    field.name: field.encode_name
    for field in msgspec.structs.fields(Args)
    if not field.name.endswith("_kind")
} | {"corr": "correlation", "seq": "Sequence number"}
_LISTS = {"dims", "types", "strides", "concrete", "in_split", "out_split"}  # texts of JSON
_IDS = {"corr", "external_id", "record"}  # shifted, so that no rank has another's
# Ids past this are hashes rather than counters; adding to them could leave the 53 bits that viewers keep.
_LARGEST_ID = 1 << 48
# What the readers alone can tell; the other findings follow from the merged rows again.
_READERS_RULES = ("C", "D", "N", "O", "X")
_EVENTS_AT_ONCE = 10_000
_ENCODER = msgspec.json.Encoder()

Event = dict[str, Any]


@dataclass
class _Slices:
    """Slices of one table (n,): names, args by name (-1, "" for unknown), and their rows in a viewer."""

    table: Table
    categories: Sequence[str]
    names: Sequence[str]
    pid: np.ndarray
    tid: np.ndarray
    args: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True)
class _Rank:
    """One rank, what is added to its times and ids, and what stands before its names."""

    rank: int
    trace: Capture
    shift_ns: int
    first_id: int
    prefix: str


def merge_captures(
    ranks: Mapping[int, Capture],
    target: Path,
    *,
    offsets_ns: Mapping[int, int] | None = None,
    absent: Sequence[int] = (),
    cpu_ops: bool = True,
    with_prefix: bool = False,
) -> None:
    """Write these ranks into `target`, gzip if it ends in .gz; the same input gives the same bytes.

    offsets_ns is added to a rank's times; absent: ranks that the file is to say are missing. cpu_ops=False
    leaves out operators. with_prefix: every event's name begins with its rank, `[R3] `, as the original sweep
    writes it. Raises StorageError where `target` cannot be written.
    """
    tables = [table for trace in ranks.values() for table in (trace.ops, trace.api, trace.operators)]
    base_ns = min((int(table.start_ns.min()) for table in tables if len(table)), default=0)
    with _packed(target) as file:
        file.write(_ENCODER.encode(_frame(ranks, base_ns, absent))[:-1] + b',"traceEvents":[')
        gap, first_id = b"\n", 0
        for rank, trace in ranks.items():
            shift_ns = (offsets_ns or {}).get(rank, 0) - base_ns
            prefix = f"[R{rank}] " if with_prefix else ""
            events = _events_of(_Rank(rank, trace, shift_ns, first_id, prefix), cpu_ops=cpu_ops)
            while batch := list(islice(events, _EVENTS_AT_ONCE)):
                file.write(gap + _ENCODER.encode(batch)[1:-1])
                gap = b",\n"
            first_id = _largest_id(trace, first_id)
        file.write(b"\n]}\n")


@contextmanager
def _packed(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears once it is complete, gzip where its name ends so; equal input, equal bytes."""
    with replacing(target) as file:
        if target.suffix != ".gz":
            yield file
            return
        with packer.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=2, mtime=0) as gz:
            yield gz


def _frame(ranks: Mapping[int, Capture], base_ns: int, absent: Sequence[int]) -> dict[str, Any]:
    """The document around the events: whose they are, and what the recordings lack that rows do not show."""
    leader = next(iter(ranks.values()))
    versions = {
        "torch_version": leader.meta.torch_version,
        "cuda_runtime_version": leader.meta.cuda_version,
        "hip_runtime_version": leader.meta.hip_version,
    }
    devices = [
        {"id": device.device, "name": device.name, "numSms": device.num_sms or 0} for device in leader.devices
    ]
    jobs = [
        {"rank": rank, "world_size": trace.meta.world_size, "backend": trace.meta.backend}
        for rank, trace in ranks.items()
    ]
    lacks = [
        msgspec.structs.replace(lack, process=-1, text=f"rank {rank}: {lack.text}")
        for rank, trace in ranks.items()
        for lack in trace.lacks
        if lack.rule in _READERS_RULES or (lack.rule == "Z" and lack.place == "hole")
    ]
    return {
        "displayTimeUnit": "ms",
        **{name: version for name, version in versions.items() if version is not None},
        **({"deviceProperties": devices} if devices else {}),
        "baseTimeNanoseconds": base_ns,
        "distributedInfo": jobs,
        "merged": {"ranks": [*ranks], "missing_ranks": [*absent], "lacks": lacks},
    }


def _largest_id(trace: Capture, at_least: int) -> int:
    columns = [getattr(table, name) for table in (trace.ops, trace.api) for name in ("corr", "external_id")]
    ids = np.concatenate([*columns, trace.operators.external_id])
    return at_least + int(ids[ids <= _LARGEST_ID].max(initial=0))


def _events_of(of: _Rank, *, cpu_ops: bool) -> Iterator[Event]:
    """The events of one rank: names of its rows, slices, arrows from launches and from forward operators."""
    trace = of.trace
    kernels, calls = _kernels(of), _of_table(of, trace.api, "cuda_runtime")
    gpu = [kernels, _of_table(of, trace.gpu_ranges, "gpu_user_annotation"), _stream_waits(of)]
    cpu = [calls, _of_table(of, trace.annotations, "user_annotation")]
    if cpu_ops:
        cpu.append(_of_table(of, trace.operators, "cpu_op", _communication(of, trace.comm_ops, "op")))
    # Ends of arrows are slices of no time, which lie in the operator around them.
    flows = trace.flows.where(np.full(len(trace.flows), cpu_ops))
    flows = flows.with_columns(start_ns=flows.ts_ns, end_ns=flows.ts_ns)
    arrows = _Slices(flows, [], [], flows.pid, flows.tid, {})
    yield from _place(of, gpu, on_gpu=True)
    yield from _place(of, [*cpu, arrows], on_gpu=False)
    for group in (*gpu, *cpu):
        yield from _slices(of, group)
    launch = views.launch_calls(trace)
    kernel = np.flatnonzero(launch >= 0)
    first_flow = (of.rank + 1) << 40
    for group, rows in ((calls, np.unique(launch[kernel])), (kernels, kernel)):
        ids = (rows if group is calls else launch[rows]) + first_flow
        yield from _ends(of, group, rows, ids, "ac2g", np.full(len(rows), group is kernels))
    flow, is_end = flows.flow, flows.is_end
    paired = np.intersect1d(flow[is_end], flow[~is_end])
    rows = np.flatnonzero(np.isin(flow, paired))
    ids = np.searchsorted(paired, flow[rows]) + first_flow + (1 << 39)
    yield from _ends(of, arrows, rows, ids, "fwdbwd", is_end[rows])


def _kernels(of: _Rank) -> _Slices:
    trace, ops = of.trace, of.trace.ops
    kinds = np.where(trace.work, KERNEL, ops.kind)  # a whole graph in one row computes, too
    categories = [_GPU_CATEGORIES[kind] for kind in kinds.tolist()]
    args = _details(of, ops) | _communication(of, trace.collectives, "kernel")
    for name in ("grid", "block"):
        sizes = np.stack([getattr(ops, f"{name}_{axis}") for axis in "xyz"], axis=1)
        args[name] = [size if size[0] > 0 else -1 for size in sizes.tolist()]
    args["shared memory"] = shared_memory_bytes(ops).tolist()
    return _Slices(ops, categories, trace.text(ops.name_id).tolist(), ops.device, ops.stream, args)


def _of_table(
    of: _Rank, table: Table, category: str, more: Mapping[str, Sequence[Any]] | None = None
) -> _Slices:
    names = of.trace.text(table.name_id).tolist()
    args = _details(of, table) | dict(more or {})
    return _Slices(table, [category] * len(table), names, table.pid, table.tid, args)


def _stream_waits(of: _Rank) -> _Slices:
    """Waits of streams for events, as slices of no time, where the call makes the stream wait."""
    waits, api = of.trace.waits, of.trace.api
    call = first_index(waits.corr, api.corr)
    called_ns = api.start_ns[call[call >= 0]]
    table = waits.where(call >= 0).with_columns(start_ns=called_ns, end_ns=called_ns)
    names = [STREAM_WAIT] * len(table)
    return _Slices(table, ["cuda_sync"] * len(table), names, table.device, table.stream, _details(of, table))


def _communication(of: _Rank, table: Table, row: str) -> dict[str, list[Any]]:
    """What NCCL's metadata says of each GPU row, or of each operator; `row` is the column that names it."""
    size = len(of.trace.ops if row == "kernel" else of.trace.operators)
    index = np.full(size, -1, dtype=np.int64)
    index[getattr(table, row)] = np.arange(len(table))
    # One more row of unknown values stands for those without a collective.
    more = Table({name: np.append(column, column.dtype.type(-1)) for name, column in table.as_dict().items()})
    columns = {name: column for name, column in more.take(index).as_dict().items() if name != row}
    return _details(of, Table(columns), seq="Seq")


def _details(of: _Rank, table: Table, **names: str) -> dict[str, list[Any]]:
    """Collect other details of each row: numbers, and texts by the 32-bit ids of strings."""
    details = {}
    for column in table:
        if column in _SHOWN:
            continue
        values = getattr(table, column)
        name = column
        if column.endswith("_id") and values.dtype == np.int32:
            name = column.removesuffix("_id")
            values = _json_texts(of.trace, values) if name in _LISTS else of.trace.text(values)
        elif column in _IDS:
            is_shifted = (values > 0) & (values <= _LARGEST_ID)
            values = np.where(is_shifted, values + of.first_id, values)
        details[names.get(name) or _KINETO.get(name, name)] = values.tolist()
    return details


def _json_texts(trace: Capture, ids: np.ndarray) -> np.ndarray:
    """Texts of JSON (n,), to be written as they are; as texts where they are damaged."""
    used, position = np.unique(ids, return_inverse=True)
    texts = np.empty(len(used), dtype=object)
    for index, text in enumerate(trace.text(used).tolist()):
        texts[index] = text
        with suppress(ValueError, RecursionError):
            json.loads(text)
            texts[index] = msgspec.Raw(text)
    columns: np.ndarray = texts[position.reshape(-1)]
    return columns


def _place(of: _Rank, groups: Sequence[_Slices], *, on_gpu: bool) -> Iterator[Event]:
    """Give slices the pid and tid under which they are shown; yields the names of these rows."""
    trace, rank = of.trace, of.rank

    def joined(columns: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(columns).astype(np.int64)

    def shown(number: int) -> str:
        """A pid or tid; a text one stands as -2 minus its index in `strings`."""
        return str(number) if number > -2 else trace.strings[-2 - number]

    def named(table: Table, *key: int) -> str:
        columns = (table.pid, table.tid) if len(key) > 1 else (table.pid,)
        rows = np.flatnonzero((np.stack(columns, axis=1) == key).all(axis=1))
        return "" if on_gpu or not len(rows) else trace.name(int(table.name_id[rows[0]]))

    pid, tid = joined([group.pid for group in groups]), joined([group.tid for group in groups])
    start, end = (joined([getattr(group.table, name) for group in groups]) for name in ("start_ns", "end_ns"))
    side, row_name = ("GPU", "stream") if on_gpu else ("CPU", "thread")
    shown_pid, shown_tid, next_tid = np.zeros_like(pid), np.zeros_like(tid), FIRST_TEXT_TID
    order = np.lexsort((-end, start, tid, pid))
    for index, process in enumerate(np.unique(pid).tolist()):
        number = RANK_PIDS * rank + (0 if on_gpu else CPU_PIDS) + index
        words = [f"[R{rank}] rank {rank} {side}", named(trace.process_names, process), shown(process)]
        yield _naming("process_name", number, 0, " ".join(filter(None, words)))
        of_process = order[pid[order] == process]
        for thread in np.unique(tid[of_process]).tolist():
            rows = of_process[tid[of_process] == thread]
            lane_of_row = np.zeros(len(rows), dtype=np.int64)
            # torch.profiler's operators and calls stay on their thread, by which a reader joins them.
            if on_gpu or trace.collector != "kineto":
                lane_of_row[:] = lanes(start[rows].tolist(), end[rows].tolist())
            own_name = named(trace.thread_names, process, thread).strip() or f"{row_name} {shown(thread)}"
            for lane in range(lane_of_row.max() + 1):
                is_number = lane == 0 and 0 <= thread < 1 << 31
                next_tid += not is_number
                lane_tid = thread if is_number else next_tid
                yield _naming(
                    "thread_name", number, lane_tid, own_name + (f", overlapping {lane}" if lane else "")
                )
                shown_pid[rows[lane_of_row == lane]] = number
                shown_tid[rows[lane_of_row == lane]] = lane_tid
    edges = np.cumsum([len(group) for group in groups])[:-1]
    for group, pids, tids in zip(groups, np.split(shown_pid, edges), np.split(shown_tid, edges), strict=True):
        group.pid, group.tid = pids, tids


def _naming(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def lanes(starts: Sequence[Any], ends: Sequence[Any]) -> list[int]:
    """The lane of each slice of one row, given by start and longest first: slices of one lane only nest.

    Viewers cut or drop what begins within a slice and ends after it, so that goes to the first lane where the
    last open slice has ended or contains it.
    """
    slice_lanes = []
    open_ends: list[list[Any]] = []  # by lane, outermost first
    for start, end in zip(starts, ends, strict=True):
        for lane, lane_ends in enumerate(open_ends):
            while lane_ends and lane_ends[-1] <= start:
                lane_ends.pop()
            if not lane_ends or lane_ends[-1] >= end:
                lane_ends.append(end)
                slice_lanes.append(lane)
                break
        else:
            slice_lanes.append(len(open_ends))
            open_ends.append([end])
    return slice_lanes


def _slices(of: _Rank, group: _Slices) -> Iterator[Event]:
    columns = (group.pid, group.tid, group.table.start_ns + of.shift_ns, group.table.dur_ns)
    rows = zip(group.categories, group.names, *(column.tolist() for column in columns), strict=True)
    args = zip(*group.args.values(), strict=True) if group.args else [()] * len(group)
    for (category, name, pid, tid, start_ns, dur_ns), values in zip(rows, args, strict=True):
        details = {key: value for key, value in zip(group.args, values, strict=True) if value not in (-1, "")}
        yield {
            "ph": "X",
            "cat": category,
            "name": of.prefix + (name or "(no name)"),
            "pid": pid,
            "tid": tid,
            "ts": start_ns / 1000,
            "dur": dur_ns / 1000,
            "args": {"rank": of.rank, **details},
        }


def _ends(
    of: _Rank, group: _Slices, rows: np.ndarray, ids: np.ndarray, name: str, is_end: np.ndarray
) -> Iterator[Event]:
    """Ends of arrows at the begin of slices; `ids` (n,) pair a start with its end."""
    start_ns = group.table.start_ns[rows] + of.shift_ns
    columns = (ids, is_end, group.pid[rows], group.tid[rows], start_ns)
    for number, ends, pid, tid, ts_ns in zip(*(column.tolist() for column in columns), strict=True):
        phase: Event = {"ph": "f", "bp": "e"} if ends else {"ph": "s"}
        place = {"id": number, "pid": pid, "tid": tid, "ts": ts_ns / 1000}
        yield {**phase, "cat": name, "name": of.prefix + name, **place}
