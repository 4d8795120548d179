"""One rank of a merge: its events with new process, thread, flow and correlation numbers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import IO, Any

import msgspec
from msgspec import Raw

from lab.recordings.merge.output import CPU_PIDS, ENCODER, FIRST_TEXT_TID, RANK_PIDS, lanes
from lab.recordings.merge.recordings import NOTHING, Event, Recording, events_of, header_of

Row = tuple[bytes, bytes]  # pid and tid as they are written in the file

GPU_CATEGORIES = {b'"kernel"', b'"gpu_memcpy"', b'"gpu_memset"', b'"gpu_user_annotation"'}

CPU_CATEGORIES = {
    b'"cpu_op"',
    b'"user_annotation"',
    b'"cuda_runtime"',
    b'"cuda_driver"',
    b'"python_function"',
}

FLOWS = {b'"s"': 1, b'"t"': 0, b'"f"': 2}
BOTH_ENDS = 3

# Ids past this are hashes rather than counters; adding to them could leave the 53 bits that viewers keep.
LARGEST_ID = 1 << 48

_IDS = re.compile(
    rb'(?<!\\)("(?:correlation|External id|wait_on_cuda_event_record_corr_id)"\s*:\s*)([1-9]\d*)'
)

_INTEGER = re.compile(rb"-?\d+")


@dataclass
class Counters:
    """State carried from rank to rank: ids assigned, events counted, the separator before the next event."""

    next_flow: int = 1
    largest_id: int = 0
    written: int = 0
    gap: bytes = b"\n"
    dropped: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)

    def put(self, file: IO[bytes], events: Sequence[Any]) -> None:
        if events:
            file.write(self.gap + ENCODER.encode(events)[1:-1])
            self.gap = b",\n"
            self.written += len(events)

    def oddities(self) -> list[str]:
        return [f"{text} ({count} times)" for text, count in self.odd.items()]


class RankEvents:
    """Writes one rank: a first pass collects rows, names and flows, a second one writes the events."""

    def __init__(
        self,
        recording: Recording,
        shift_ns: int,
        numbers: Counters,
        *,
        cpu_ops: bool,
        salvage: bool,
        with_prefix: bool = False,
    ) -> None:
        self._prefix = b'"[R%d] ' % recording.rank if with_prefix else b""
        self._path, self._rank, self._numbers = recording.path, recording.rank, numbers
        self._cpu_ops, self._salvage = cpu_ops, salvage
        self._shift_us = Decimal(shift_ns) / 1000
        self._id_offset = numbers.largest_id
        self._rows: dict[tuple[bool, bytes, bytes], None] = {}
        self._unsure: dict[Row, bool] = {}
        self._names: dict[tuple[bytes, bytes, bytes], Raw] = {}
        self._flows: dict[tuple[bytes, bytes], Raw] = {}
        self._pids: dict[tuple[bool, bytes], Raw] = {}
        self._tids: dict[bytes, Raw] = {}
        self._lanes: list[int] = []  # of each GPU event with a duration, in the order of the file
        self._lane_tids: dict[tuple[bytes, bytes, int], Raw] = {}
        self._next_lane = 0

    def write(self, file: IO[bytes]) -> None:
        self._survey()
        self._numbers.put(file, self._name_records())
        for events in events_of(self._path, self._numbers.odd, salvage=self._salvage):
            self._numbers.put(file, [event for event in events if self._rewrite(event)])

    def _survey(self) -> None:
        """Collect which rows are on the GPU, their names, and the flows that have both ends."""
        ends: dict[tuple[bytes, bytes], int] = {}
        durations: list[tuple[Row, Decimal, Decimal]] = []
        # Odd events are counted in the second pass.
        for event in itertools.chain.from_iterable(events_of(self._path, Counter(), salvage=self._salvage)):
            phase, category, pid, tid = header_of(event)
            if phase == b'"M"':
                self._names[bytes(event.get("name", NOTHING)), pid, tid] = event.get("args", NOTHING)
            elif self._is_left_out(category):
                continue
            elif category in GPU_CATEGORIES or category in CPU_CATEGORIES:
                self._rows.setdefault((category in GPU_CATEGORIES, pid, tid))
                if phase == b'"X"' and category in GPU_CATEGORIES:
                    start_us = _decimal(event.get("ts", NOTHING))
                    durations.append(((pid, tid), start_us, start_us + _decimal(event.get("dur", NOTHING))))
            else:
                self._unsure.setdefault((pid, tid), False)
            if phase in FLOWS:
                key = category, bytes(event.get("id", NOTHING))
                ends[key] = ends.get(key, 0) | FLOWS[phase]
        complete = (key for key, end in ends.items() if end == BOTH_ENDS)
        self._flows = {
            key: _raw_number(number) for number, key in enumerate(complete, start=self._numbers.next_flow)
        }
        self._numbers.next_flow += len(self._flows)
        self._place_unsure_rows()
        self._assign_numbers()
        self._assign_lanes(durations)

    def _assign_lanes(self, durations: Sequence[tuple[Row, Decimal, Decimal]]) -> None:
        """A track of its own for what begins within an event and ends after it: viewers cut or drop it."""
        self._lanes = [0] * len(durations)
        by_row: dict[Row, list[int]] = {}
        for index in sorted(range(len(durations)), key=lambda i: (durations[i][1], -durations[i][2])):
            by_row.setdefault(durations[index][0], []).append(index)
        for (pid, tid), indices in by_row.items():
            _, starts, ends = zip(*(durations[index] for index in indices), strict=True)
            for index, lane in zip(indices, lanes(starts, ends), strict=True):
                self._lanes[index] = lane
                if lane and (pid, tid, lane) not in self._lane_tids:
                    number = FIRST_TEXT_TID + len(self._tids) + len(self._lane_tids)
                    self._lane_tids[pid, tid, lane] = _raw_number(number)

    def _place_unsure_rows(self) -> None:
        """Flows, and categories that occur on both sides, go where the other events of their row are."""
        gpus = {pid for on_gpu, pid, _ in self._rows if on_gpu}
        cpus = {pid for on_gpu, pid, _ in self._rows if not on_gpu}
        sure = set(self._rows)
        for pid, tid in self._unsure:
            beside = (True, pid, tid) in sure or (pid in gpus and pid not in cpus)
            self._unsure[pid, tid] = beside and (False, pid, tid) not in sure
            self._rows.setdefault((self._unsure[pid, tid], pid, tid))

    def _assign_numbers(self) -> None:
        """GPUs in order of their number; CPU processes in order of appearance, those with text ids last."""
        gpus = sorted({pid for on_gpu, pid, _ in self._rows if on_gpu}, key=lambda pid: (len(pid), pid))
        cpus = dict.fromkeys(pid for on_gpu, pid, _ in self._rows if not on_gpu)
        ordered = sorted(cpus, key=lambda pid: not _INTEGER.fullmatch(pid))
        first_pid = RANK_PIDS * self._rank
        self._pids = {(True, pid): _raw_number(first_pid + index) for index, pid in enumerate(gpus)}
        self._pids |= {
            (False, pid): _raw_number(first_pid + CPU_PIDS + index) for index, pid in enumerate(ordered)
        }
        texts = dict.fromkeys(tid for _, _, tid in self._rows if not _INTEGER.fullmatch(tid))
        self._tids = {tid: _raw_number(FIRST_TEXT_TID + index) for index, tid in enumerate(texts)}

    def _name_records(self) -> list[dict[str, Any]]:
        """Names for the processes and threads that have events, each once."""
        records = []
        for (on_gpu, pid), new in self._pids.items():
            label = name = f"GPU {_text_of(pid)}"
            if not on_gpu:
                process = self._metadata("process_name", pid, b"0", "name") or ""
                label, name = "CPU", f"CPU {process} {_text_of(pid)}"
            title = " ".join(f"[R{self._rank}] rank {self._rank} {name}".split())
            records += [
                _record("process_name", new, 0, {"name": title}),
                _record("process_labels", new, 0, {"labels": label}),
                _record("process_sort_index", new, 0, {"sort_index": new}),
            ]
        for on_gpu, pid, tid in self._rows:
            new, new_tid = self._pids[on_gpu, pid], self._tids.get(tid) or Raw(tid)
            unnamed = f"stream {_text_of(tid)}" if on_gpu else _text_of(tid) or "none"
            name = str(self._metadata("thread_name", pid, tid, "name") or unnamed).strip()
            records.append(_record("thread_name", new, new_tid, {"name": name}))
            order = self._metadata("thread_sort_index", pid, tid, "sort_index")
            if order is not None:
                records.append(_record("thread_sort_index", new, new_tid, {"sort_index": order}))
            for (gpu_pid, stream, lane), lane_tid in self._lane_tids.items() if on_gpu else ():
                if (gpu_pid, stream) == (pid, tid):
                    records.append(
                        _record("thread_name", new, lane_tid, {"name": f"{name}, overlapping {lane}"})
                    )
        return records

    def _metadata(self, name: str, pid: bytes, tid: bytes, key: str) -> Any:
        args = msgspec.json.decode(self._names.get((b'"%s"' % name.encode(), pid, tid), NOTHING))
        return args.get(key) if isinstance(args, dict) else None

    def _rewrite(self, event: Event) -> bool:
        """Move the event onto the common timeline; False if it is left out."""
        phase, category, pid, tid = header_of(event)
        if phase == b'"M"':
            return False
        if self._is_left_out(category):
            self._numbers.dropped[f"{_text_of(category)} events, left out on purpose"] += 1
            return False
        if phase in FLOWS:
            number = self._flows.get((category, bytes(event.get("id", NOTHING))))
            if number is None:
                self._numbers.dropped["flow events without their other end"] += 1
                return False
            event["id"] = number
        else:
            self._rewrite_ids(event)
        event["pid"] = self._pids[self._on_gpu(category, pid, tid), pid]
        event["tid"] = self._tids.get(tid) or Raw(tid)
        if phase == b'"X"' and category in GPU_CATEGORIES:
            lane, self._next_lane = self._lanes[self._next_lane], self._next_lane + 1
            event["tid"] = self._lane_tids.get((pid, tid, lane), event["tid"])
        name = bytes(event.get("name", b""))
        if self._prefix and name.startswith(b'"'):
            event["name"] = Raw(self._prefix + name[1:])
        if self._shift_us and "ts" in event:
            event["ts"] = self._shifted(event["ts"])
        return True

    def _rewrite_ids(self, event: Event) -> None:
        if "id" in event:  # async events share one space of ids in the format
            event["id"] = Raw(b'"r%d:%s"' % (self._rank, bytes(event["id"]).strip(b'"')))
        args = bytes(event.get("args", b"{}"))
        if args.startswith(b"{"):
            members = _IDS.sub(self._shift_id, args)[1:].lstrip()
            gap = b"" if members == b"}" else b","
            event["args"] = Raw(b'{"rank":%d%s%s' % (self._rank, gap, members))

    def _shift_id(self, match: re.Match[bytes]) -> bytes:
        number = int(match[2])
        if number > LARGEST_ID:
            self._numbers.odd["ids too large to be shifted, kept as recorded"] += 1
            return match[0]
        number += self._id_offset
        if number > self._numbers.largest_id:
            self._numbers.largest_id = number
        return match[1] + b"%d" % number

    def _on_gpu(self, category: bytes, pid: bytes, tid: bytes) -> bool:
        if category in GPU_CATEGORIES:
            return True
        return category not in CPU_CATEGORIES and self._unsure[pid, tid]

    def _is_left_out(self, category: bytes) -> bool:
        if category == b'"python_function"':
            return True
        return not self._cpu_ops and category in (b'"cpu_op"', b'"fwdbwd"')

    def _shifted(self, ts_us: Raw) -> Raw:
        try:
            return Raw(format(Decimal(bytes(ts_us).decode()) + self._shift_us, "f").encode())
        except (InvalidOperation, UnicodeDecodeError):
            self._numbers.odd["times that are not numbers, kept as recorded"] += 1
            return ts_us


def _decimal(number: Raw) -> Decimal:
    """0 where it is not a number: such an event is kept as recorded."""
    try:
        value = Decimal(bytes(number).decode())
    except (InvalidOperation, UnicodeDecodeError):
        return Decimal(0)
    return value if value.is_finite() else Decimal(0)


def _record(name: str, pid: Raw, tid: Raw | int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip('"')


def _raw_number(number: int) -> Raw:
    return Raw(b"%d" % number)
