"""One rank as Perfetto packets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import IO

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.merge.output import CPU_PIDS, FIRST_TEXT_TID, RANK_PIDS
from lab.recordings.merge.pftrace import packets
from lab.recordings.merge.pftrace.packets import bytes_field, int_field, interned, text_field
from lab.recordings.merge.pftrace.slices import (
    CATEGORIES,
    DETAILS,
    RowSlices,
    SliceGroup,
    lanes,
    rows_by_process,
    slice_groups,
)


class RankWriter:
    """One rank as one packet sequence: names first, then the slices of each row in order of time."""

    def __init__(self, trace: Capture, rank: int, shift_ns: int, file: IO[bytes]) -> None:
        self._trace, self._rank, self._shift_ns, self._file = trace, rank, shift_ns, file
        self._sequence = int_field(packets.SEQUENCE, rank + 1)
        self._flagged = self._sequence + int_field(packets.FLAGS, packets.NEEDS_STATE)
        self._uuids = itertools.count((rank + 1) << 32)

    def write(self, *, cpu_ops: bool) -> int:
        """Write the rank's packets; returns how many slices they hold."""
        self._write_names()
        groups = slice_groups(self._trace, self._rank, cpu_ops=cpu_ops)
        for on_gpu in (True, False):
            on_side = [group for group in groups if group.on_gpu == on_gpu]
            for index, (pid, rows) in enumerate(rows_by_process(on_side)):
                shown_pid = RANK_PIDS * self._rank + (0 if on_gpu else CPU_PIDS) + index
                name = f"[R{self._rank}] rank {self._rank} {'GPU' if on_gpu else 'CPU'} {self._shown(pid)}"
                process = int_field(packets.PROCESS_PID, shown_pid) + text_field(packets.PROCESS_NAME, name)
                uuid = self._write_track(bytes_field(packets.TRACK_PROCESS, process))
                for row in rows:
                    track = self._thread(on_gpu, shown_pid, row.tid, uuid)
                    self._write_slices(track, on_side, row)
        return sum(len(group.table) for group in groups)

    def _write_names(self) -> None:
        """Write each name once; slices refer to it by number."""
        kinds = (
            (packets.INTERNED_CATEGORY, CATEGORIES),
            (packets.INTERNED_NAME, ["(no name)", *self._trace.strings]),
            (packets.INTERNED_DETAIL, DETAILS),
        )
        names = [
            interned(kind, number, name)
            for kind, texts in kinds
            for number, name in enumerate(texts, start=1)
        ]
        state = int_field(packets.FLAGS, packets.STATE_CLEARED | packets.NEEDS_STATE)
        self._packet(self._sequence + state + bytes_field(packets.INTERNED, b"".join(names)))

    def _thread(self, on_gpu: bool, shown_pid: int, tid: int, process: int) -> Callable[[int], int]:
        """The track of each lane of a row, written when first needed; lane 0 is the thread itself."""
        name = f"{'stream' if on_gpu else 'thread'} {self._shown(tid)}"
        number = tid if 0 <= tid < 1 << 31 else FIRST_TEXT_TID + abs(tid) % FIRST_TEXT_TID
        thread = int_field(packets.THREAD_PID, shown_pid) + int_field(packets.THREAD_TID, number)
        thread += text_field(packets.THREAD_NAME, name)
        tracks: dict[int, int] = {}

        def track(lane: int) -> int:
            if lane not in tracks and lane == 0:
                tracks[0] = self._write_track(bytes_field(packets.TRACK_THREAD, thread), process)
            elif lane not in tracks:
                label = text_field(packets.TRACK_NAME, f"{name} (lane {lane + 1})")
                tracks[lane] = self._write_track(label, track(0))
            return tracks[lane]

        return track

    def _write_track(self, description: bytes, parent: int | None = None) -> int:
        uuid = next(self._uuids)
        above = b"" if parent is None else int_field(packets.TRACK_PARENT, parent)
        body = int_field(packets.TRACK_UUID, uuid) + above + description
        self._packet(self._sequence + bytes_field(packets.TRACK, body))
        return uuid

    def _write_slices(
        self, track: Callable[[int], int], groups: Sequence[SliceGroup], slices: RowSlices
    ) -> None:
        """Begin and end of each slice of one row, in order of time within each lane."""
        lane_of = lanes(slices.start, slices.end)
        for lane in range(int(lane_of.max()) + 1):
            uuid = int_field(packets.EVENT_TRACK, track(lane))
            begin, end = (
                int_field(packets.EVENT_TYPE, t) + uuid for t in (packets.SLICE_BEGIN, packets.SLICE_END)
            )
            of_lane = np.flatnonzero(lane_of == lane)
            pending: list[int] = []
            columns = (column[of_lane].tolist() for column in slices[1:])
            for group, row, begin_ns, end_ns in zip(*columns, strict=True):
                while pending and pending[-1] <= begin_ns:
                    self._event(pending.pop(), end)
                self._event(begin_ns, begin + groups[group].fields(row))
                pending.append(end_ns)
            while pending:
                self._event(pending.pop(), end)

    def _event(self, ts_ns: int, body: bytes) -> None:
        time = int_field(packets.TIMESTAMP, ts_ns + self._shift_ns)
        self._packet(time + self._flagged + bytes_field(packets.TRACK_EVENT, body))

    def _packet(self, body: bytes) -> None:
        self._file.write(bytes_field(packets.PACKET, body))

    def _shown(self, number: int) -> str:
        """A pid or tid; a text one stands as -2 minus its index in `strings`."""
        return str(number) if number > -2 else self._trace.strings[-2 - number]
