"""One rank as Perfetto packets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import IO

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.merge.output import CPU_PIDS, FIRST_TEXT_TID, RANK_PIDS
from lab.recordings.merge.pftrace import packets
from lab.recordings.merge.pftrace.details import CATEGORIES, NUMBER_OF_DETAIL, SliceDetails
from lab.recordings.merge.pftrace.lanes import RowSlices, SliceGroup, lanes, rows_by_process
from lab.recordings.merge.pftrace.packets import bytes_field, int_field, interned, text_field
from lab.recordings.tables import KERNEL, Table


class RankWriter:
    """One rank as one packet sequence: names first, then the slices of each row in order of time."""

    def __init__(self, trace: Capture, rank: int, shift_ns: int, file: IO[bytes]) -> None:
        self._trace, self._rank, self._shift_ns, self._file = trace, rank, shift_ns, file
        self._sequence = int_field(packets.SEQUENCE, rank + 1)
        self._flagged = self._sequence + int_field(packets.FLAGS, packets.NEEDS_STATE)
        self._uuids = itertools.count((rank + 1) << 32)
        self._details = SliceDetails(trace, rank)

    def write(self, *, cpu_ops: bool) -> int:
        """Write the rank's packets; returns how many slices they hold."""
        self._write_names()
        groups = [group for group in self._groups(cpu_ops) if len(group.table)]
        count = 0
        for on_gpu in (True, False):
            beside = [group for group in groups if group.on_gpu == on_gpu]
            for index, (pid, rows) in enumerate(rows_by_process(beside)):
                process = self._write_process(on_gpu, pid, index)
                for row in rows:
                    thread = self._thread(on_gpu, pid, index, row.tid, process)
                    self._write_slices(thread, beside, row)
                    count += len(row.start)
        return count

    def _groups(self, cpu_ops: bool) -> list[SliceGroup]:
        trace = self._trace
        kernels, on_gpu, off_gpu = trace.ops, trace.gpu_ranges, trace.annotations
        kinds = np.where(trace.work, KERNEL, kernels.kind)  # a whole graph in one row computes, too
        found = [
            SliceGroup(True, kernels.device, kernels.stream, kernels, kinds, self._details.of_kernels()),
            SliceGroup(True, on_gpu.pid, on_gpu.tid, on_gpu, _repeated(4, on_gpu), lambda row: b""),
            SliceGroup(
                False,
                trace.api.pid,
                trace.api.tid,
                trace.api,
                _repeated(5, trace.api),
                self._details.of_call,
            ),
            SliceGroup(False, off_gpu.pid, off_gpu.tid, off_gpu, _repeated(3, off_gpu), lambda row: b""),
        ]
        ops = SliceGroup(
            False,
            trace.operators.pid,
            trace.operators.tid,
            trace.operators,
            _repeated(6, trace.operators),
            self._details.of_op,
        )
        return [*found, ops] if cpu_ops else found

    def _write_names(self) -> None:
        """Write each name once; slices refer to it by number."""
        categories = [
            interned(packets.INTERNED_CATEGORY, at, name) for at, name in enumerate(CATEGORIES, start=1)
        ]
        names = [
            interned(packets.INTERNED_NAME, at, name) for at, name in enumerate(self._trace.strings, start=2)
        ]
        details = [interned(packets.INTERNED_DETAIL, at, name) for name, at in NUMBER_OF_DETAIL.items()]
        unnamed = interned(packets.INTERNED_NAME, 1, "(no name)")
        state = int_field(packets.FLAGS, packets.STATE_CLEARED | packets.NEEDS_STATE)
        body = b"".join([*categories, unnamed, *names, *details])
        self._packet(self._sequence + state + bytes_field(packets.INTERNED, body))

    def _write_process(self, on_gpu: bool, pid: int, index: int) -> int:
        uuid, shown = next(self._uuids), self._shown(pid)
        name = f"[R{self._rank}] rank {self._rank} {'GPU' if on_gpu else 'CPU'} {shown}"
        process = int_field(packets.PROCESS_PID, self._pid(on_gpu, index)) + text_field(
            packets.PROCESS_NAME, name
        )
        self._packet(
            self._sequence
            + bytes_field(
                packets.TRACK,
                int_field(packets.TRACK_UUID, uuid) + bytes_field(packets.TRACK_PROCESS, process),
            )
        )
        return uuid

    def _thread(self, on_gpu: bool, pid: int, index: int, tid: int, process: int) -> Callable[[int], int]:
        """The track of each lane of a row, written when first needed; lane 0 is the thread itself."""
        name = f"stream {self._shown(tid)}" if on_gpu else f"thread {self._shown(tid)}"
        number = tid if 0 <= tid < 1 << 31 else FIRST_TEXT_TID + abs(tid) % FIRST_TEXT_TID
        thread = int_field(packets.THREAD_PID, self._pid(on_gpu, index)) + int_field(
            packets.THREAD_TID, number
        )
        thread += text_field(packets.THREAD_NAME, name)
        tracks: dict[int, int] = {}

        def track(lane: int) -> int:
            if lane not in tracks:
                tracks[lane] = next(self._uuids)
                what = (
                    bytes_field(packets.TRACK_THREAD, thread)
                    if lane == 0
                    else text_field(packets.TRACK_NAME, f"{name} (lane {lane + 1})")
                )
                parent = process if lane == 0 else track(0)
                described = (
                    int_field(packets.TRACK_UUID, tracks[lane])
                    + int_field(packets.TRACK_PARENT, parent)
                    + what
                )
                self._packet(self._sequence + bytes_field(packets.TRACK, described))
            return tracks[lane]

        return track

    def _write_slices(
        self, track: Callable[[int], int], groups: Sequence[SliceGroup], slices: RowSlices
    ) -> None:
        """Begin and end of each slice of one row, in order of time within each lane."""
        lane_of = lanes(slices.start, slices.end)
        for lane in range(int(lane_of.max()) + 1):
            uuid = int_field(packets.EVENT_TRACK, track(lane))
            mine = np.flatnonzero(lane_of == lane)
            pending: list[int] = []
            columns = (column[mine].tolist() for column in slices[1:])
            for group, row, begin_ns, end_ns in zip(*columns, strict=True):
                while pending and pending[-1] <= begin_ns:
                    self._event(pending.pop(), int_field(packets.EVENT_TYPE, packets.SLICE_END) + uuid)
                self._event(
                    begin_ns,
                    int_field(packets.EVENT_TYPE, packets.SLICE_BEGIN)
                    + uuid
                    + _slice_fields(groups[group], row),
                )
                pending.append(end_ns)
            while pending:
                self._event(pending.pop(), int_field(packets.EVENT_TYPE, packets.SLICE_END) + uuid)

    def _event(self, ts_ns: int, body: bytes) -> None:
        self._packet(
            int_field(packets.TIMESTAMP, ts_ns + self._shift_ns)
            + self._flagged
            + bytes_field(packets.TRACK_EVENT, body)
        )

    def _packet(self, body: bytes) -> None:
        self._file.write(bytes_field(packets.PACKET, body))

    def _pid(self, on_gpu: bool, index: int) -> int:
        return RANK_PIDS * self._rank + (0 if on_gpu else CPU_PIDS) + index

    def _shown(self, number: int) -> str:
        return str(number) if number > -2 else self._details.text(-2 - number)


def _slice_fields(group: SliceGroup, row: int) -> bytes:
    name = int_field(packets.EVENT_NAME, int(group.table.name_id[row]) + 2)
    return int_field(packets.EVENT_CATEGORY, int(group.categories[row]) + 1) + name + group.details(row)


def _repeated(category: int, table: Table) -> np.ndarray:
    return np.full(len(table), category)
