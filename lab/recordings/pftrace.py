"""All ranks of one run as Perfetto's own format: smaller than JSON, and it opens faster.

A file is a list of TracePackets (google/perfetto, `protos/perfetto/trace/trace_packet.proto`, track_event.proto,
track_descriptor.proto, interned_data.proto); the few fields used here are encoded by hand. Ranks keep the process
numbers of `lab.recordings.merge`. Slices that overlap on a row without one holding the other get lanes of their own,
since a track holds nested slices only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from lab.errors import LabError
from lab.recordings import views
from lab.recordings.merge import CPU_PIDS, FIRST_TEXT_TID, RANK_PIDS, Merged, packed
from lab.recordings.tables import Table, Trace

# Field numbers and values of the public format.
PACKET, TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS, TRACK = 1, 8, 10, 11, 12, 13, 60
EVENT_CATEGORY, EVENT_DETAIL, EVENT_TYPE, EVENT_NAME, EVENT_TRACK = 3, 4, 9, 10, 11
EVENT_FLOW, EVENT_FLOW_END = 47, 48
DETAIL_NAME, DETAIL_INT, DETAIL_TEXT = 1, 4, 6
TRACK_UUID, TRACK_NAME, TRACK_PROCESS, TRACK_THREAD, TRACK_PARENT = 1, 2, 3, 4, 5
PROCESS_PID, PROCESS_NAME, THREAD_PID, THREAD_TID, THREAD_NAME = 1, 6, 1, 2, 5
INTERNED_CATEGORY, INTERNED_NAME, INTERNED_DETAIL = 1, 2, 3
SLICE_BEGIN, SLICE_END = 1, 2
STATE_CLEARED, NEEDS_STATE = 1, 2

# The first three stand at the numbers that `kernels.kind` uses.
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


def merge_pftrace(
    traces: Sequence[tuple[int | None, Path]],
    target: Path,
    *,
    load: Callable[[Path], Trace],
    offsets_ns: Mapping[int, int] | None = None,
    cpu_ops: bool = True,
) -> Merged:
    """Merge `traces`, pairs of (rank as the path says or None, file), into the gzip file `target`.

    load reads one trace; one rank is in memory at a time. Otherwise as `lab.recordings.merge.merge_json`.
    """
    problems: list[str] = []
    loaded = _loaded(traces, load, problems)
    first = next(loaded, None)
    if first is None:
        return Merged(None, (), (), 0, {}, {}, tuple(problems))
    offsets_ns = offsets_ns or {}
    written, world_size, ranks = 0, 0, []
    with packed(target) as file:
        for rank, trace in itertools.chain([first], loaded):
            shift_ns = offsets_ns.get(rank, 0)
            written += _RankWriter(trace, rank, shift_ns, file).write(cpu_ops=cpu_ops)
            world_size = max(world_size, trace.meta.world_size or 0)
            ranks.append(rank)
    missing = tuple(rank for rank in range(world_size) if rank not in ranks)
    shifts = {rank: offsets_ns.get(rank, 0) for rank in ranks}
    return Merged(target, tuple(ranks), missing, written, {}, shifts, tuple(problems))


def lanes(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """The lane (n,) of each slice, given by start and longest first, so that in a lane slices only nest.

    A slice goes to the first lane where the slice that is open then either has ended or holds it.
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


def _loaded(
    traces: Sequence[tuple[int | None, Path]], load: Callable[[Path], Trace], problems: list[str]
) -> Iterator[tuple[int, Trace]]:
    """The readable traces with their ranks, each rank once; a sentence in `problems` for the others."""
    seen: set[int] = set()
    for named, path in traces:
        try:
            trace = load(path)
        except LabError as error:
            problems.append(f"left out: {error.what} ({error.where})")
            continue
        rank = named if trace.meta.rank is None else trace.meta.rank
        if rank is None:
            rank = max(seen, default=-1) + 1
            problems.append(f"nothing says which rank this is, so it is shown as rank {rank} ({path})")
        if rank in seen:
            problems.append(f"left out: another trace says too that it is rank {rank} ({path})")
            continue
        seen.add(rank)
        yield rank, trace


@dataclass(frozen=True)
class _Group:
    """Slices of one table (n,): where they lie, what they are called, and their details as encoded bytes."""

    on_gpu: bool
    pid: np.ndarray
    tid: np.ndarray
    table: Table
    categories: np.ndarray
    details: Callable[[int], bytes]


class _RankWriter:
    """One rank as one packet sequence: names first, then the slices of each row in order of time."""

    def __init__(self, trace: Trace, rank: int, shift_ns: int, file: IO[bytes]) -> None:
        self._trace, self._rank, self._shift_ns, self._file = trace, rank, shift_ns, file
        self._sequence = _int(SEQUENCE, rank + 1)
        self._flagged = self._sequence + _int(FLAGS, NEEDS_STATE)
        self._uuids = itertools.count((rank + 1) << 32)
        self._details = {name: place for place, name in enumerate(DETAILS, start=1)}
        self._calls = views.launch_calls(trace)
        self._launched = np.zeros(len(trace.runtime), dtype=bool)
        self._launched[self._calls[self._calls >= 0]] = True

    def write(self, *, cpu_ops: bool) -> int:
        """Write the rank's packets; returns how many slices they hold."""
        self._write_names()
        groups = [group for group in self._groups(cpu_ops) if len(group.table)]
        count = 0
        for on_gpu in (True, False):
            beside = [group for group in groups if group.on_gpu == on_gpu]
            for place, (pid, rows) in enumerate(_by_process(beside)):
                process = self._write_process(on_gpu, pid, place)
                for tid, of_group, of_row, start, end in rows:
                    thread = self._thread(on_gpu, pid, place, tid, process)
                    self._write_slices(thread, beside, of_group, of_row, start, end)
                    count += len(start)
        return count

    def _groups(self, cpu_ops: bool) -> list[_Group]:
        trace = self._trace
        kernels, ranges = trace.kernels, trace.ranges
        on_gpu, off_gpu = ranges.where(ranges.on_gpu), ranges.where(~ranges.on_gpu)
        found = [
            _Group(True, kernels.device, kernels.stream, kernels, kernels.kind, self._kernel_details()),
            _Group(True, on_gpu.pid, on_gpu.tid, on_gpu, _same(4, on_gpu), lambda row: b""),
            _Group(
                False,
                trace.runtime.pid,
                trace.runtime.tid,
                trace.runtime,
                _same(5, trace.runtime),
                self._call_details,
            ),
            _Group(False, off_gpu.pid, off_gpu.tid, off_gpu, _same(3, off_gpu), lambda row: b""),
        ]
        ops = _Group(False, trace.ops.pid, trace.ops.tid, trace.ops, _same(6, trace.ops), self._op_details)
        return [*found, ops] if cpu_ops else found

    def _kernel_details(self) -> Callable[[int], bytes]:
        columns = {name: getattr(self._trace.kernels, name).tolist() for name in KERNEL_DETAILS}
        told = self._trace.collectives
        of_kernel = {kernel: row for row, kernel in enumerate(told.kernel.tolist())}
        calls = self._calls.tolist()

        def details(row: int) -> bytes:
            known = b"".join(self._detail(name, column[row]) for name, column in columns.items())
            if row in of_kernel:
                known += self._collective_details(told, of_kernel[row])
            return known + (_fixed(EVENT_FLOW_END, self._flow(calls[row])) if calls[row] >= 0 else b"")

        return details

    def _collective_details(self, told: Table, row: int) -> bytes:
        known = b"".join(self._detail(name, int(getattr(told, name)[row])) for name in COLLECTIVE_NUMBERS)
        for name in COLLECTIVE_TEXTS:
            known += self._detail(name, self._text(int(getattr(told, f"{name}_id")[row])))
        return known

    def _call_details(self, row: int) -> bytes:
        known = self._detail("correlation", int(self._trace.runtime.correlation[row]))
        return known + (_fixed(EVENT_FLOW, self._flow(row)) if self._launched[row] else b"")

    def _op_details(self, row: int) -> bytes:
        ops = self._trace.ops
        known = self._detail("external_id", int(ops.external_id[row]))
        for name in OP_TEXTS:
            known += self._detail(name, self._text(int(getattr(ops, f"{name}_id")[row])))
        return known

    def _flow(self, call: int) -> int:
        """A launch's flow id, unique over ranks."""
        return (self._rank + 1) << 40 | call + 1

    def _text(self, index: int) -> str:
        return self._trace.strings[index] if index >= 0 else ""

    def _detail(self, name: str, value: int | str) -> bytes:
        if value in (-1, ""):
            return b""
        told = _text(DETAIL_TEXT, value) if isinstance(value, str) else _int(DETAIL_INT, value)
        return _part(EVENT_DETAIL, _int(DETAIL_NAME, self._details[name]) + told)

    def _write_names(self) -> None:
        """Names are written once and meant by number afterwards."""
        categories = [_interned(INTERNED_CATEGORY, at, name) for at, name in enumerate(CATEGORIES, start=1)]
        names = [_interned(INTERNED_NAME, at, name) for at, name in enumerate(self._trace.strings, start=2)]
        details = [_interned(INTERNED_DETAIL, at, name) for name, at in self._details.items()]
        unnamed = _interned(INTERNED_NAME, 1, "(no name)")
        state = _int(FLAGS, STATE_CLEARED | NEEDS_STATE)
        body = b"".join([*categories, unnamed, *names, *details])
        self._packet(self._sequence + state + _part(INTERNED, body))

    def _write_process(self, on_gpu: bool, pid: int, place: int) -> int:
        uuid, shown = next(self._uuids), self._shown(pid)
        name = f"[R{self._rank}] rank {self._rank} {'GPU' if on_gpu else 'CPU'} {shown}"
        process = _int(PROCESS_PID, self._pid(on_gpu, place)) + _text(PROCESS_NAME, name)
        self._packet(self._sequence + _part(TRACK, _int(TRACK_UUID, uuid) + _part(TRACK_PROCESS, process)))
        return uuid

    def _thread(self, on_gpu: bool, pid: int, place: int, tid: int, process: int) -> Callable[[int], int]:
        """The track of each lane of a row, described when it is first asked for; lane 0 is the thread's own."""
        name = f"stream {self._shown(tid)}" if on_gpu else f"thread {self._shown(tid)}"
        number = tid if 0 <= tid < 1 << 31 else FIRST_TEXT_TID + abs(tid) % FIRST_TEXT_TID
        thread = _int(THREAD_PID, self._pid(on_gpu, place)) + _int(THREAD_TID, number)
        thread += _text(THREAD_NAME, name)
        tracks: dict[int, int] = {}

        def track(lane: int) -> int:
            if lane not in tracks:
                tracks[lane] = next(self._uuids)
                what = (
                    _part(TRACK_THREAD, thread)
                    if lane == 0
                    else _text(TRACK_NAME, f"{name} (lane {lane + 1})")
                )
                parent = process if lane == 0 else track(0)
                described = _int(TRACK_UUID, tracks[lane]) + _int(TRACK_PARENT, parent) + what
                self._packet(self._sequence + _part(TRACK, described))
            return tracks[lane]

        return track

    def _write_slices(
        self,
        track: Callable[[int], int],
        groups: Sequence[_Group],
        of_group: np.ndarray,
        of_row: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
    ) -> None:
        """Begin and end of each slice of one row, in order of time within each lane."""
        lane_of = lanes(start, end)
        for lane in range(int(lane_of.max()) + 1):
            uuid = _int(EVENT_TRACK, track(lane))
            mine = np.flatnonzero(lane_of == lane)
            pending: list[int] = []
            columns = (column[mine].tolist() for column in (of_group, of_row, start, end))
            for group, row, begin_ns, end_ns in zip(*columns, strict=True):
                while pending and pending[-1] <= begin_ns:
                    self._event(pending.pop(), _int(EVENT_TYPE, SLICE_END) + uuid)
                self._event(begin_ns, _int(EVENT_TYPE, SLICE_BEGIN) + uuid + _told(groups[group], row))
                pending.append(end_ns)
            while pending:
                self._event(pending.pop(), _int(EVENT_TYPE, SLICE_END) + uuid)

    def _event(self, ts_ns: int, body: bytes) -> None:
        self._packet(_int(TIMESTAMP, ts_ns + self._shift_ns) + self._flagged + _part(TRACK_EVENT, body))

    def _packet(self, body: bytes) -> None:
        self._file.write(_part(PACKET, body))

    def _pid(self, on_gpu: bool, place: int) -> int:
        return RANK_PIDS * self._rank + (0 if on_gpu else CPU_PIDS) + place

    def _shown(self, number: int) -> str:
        return str(number) if number > -2 else self._text(-2 - number)


def _told(group: _Group, row: int) -> bytes:
    name = _int(EVENT_NAME, int(group.table.name_id[row]) + 2)
    return _int(EVENT_CATEGORY, int(group.categories[row]) + 1) + name + group.details(row)


def _by_process(groups: Sequence[_Group]) -> Iterator[tuple[int, list[tuple[int, Any, Any, Any, Any]]]]:
    """Per pid its rows (tid, group, row in it, start, end): a row's slices by start, longest first."""
    if not groups:
        return
    sizes = [len(group.table) for group in groups]
    pid = np.concatenate([group.pid for group in groups]).astype(np.int64)
    tid = np.concatenate([group.tid for group in groups])
    start = np.concatenate([group.table.ts_ns for group in groups])
    end = start + np.concatenate([group.table.dur_ns for group in groups])
    of_group = np.repeat(np.arange(len(groups)), sizes)
    of_row = np.concatenate([np.arange(size) for size in sizes])
    order = np.lexsort((-end, start, tid, pid))
    for process in np.unique(pid).tolist():
        mine = order[pid[order] == process]
        rows = [mine[tid[mine] == thread] for thread in np.unique(tid[mine]).tolist()]
        yield process, [(int(tid[at[0]]), of_group[at], of_row[at], start[at], end[at]) for at in rows]


def _same(category: int, table: Table) -> np.ndarray:
    return np.full(len(table), category)


def _interned(kind: int, number: int, text: str) -> bytes:
    return _part(kind, _int(1, number) + _text(2, text))


def _int(field: int, value: int) -> bytes:
    """A number as the format's varint; negative ones as their 64-bit complement."""
    return _varint(field << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + value.to_bytes(8, "little")


def _text(field: int, text: str) -> bytes:
    return _part(field, text.encode("utf-8", "replace"))


def _part(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


_SMALL = [bytes([value]) for value in range(0x80)]
