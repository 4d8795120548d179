"""From packets to the events of torch's JSON: interned names resolved, begins and ends paired."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from lab.core.words import first_few
from lab.errors import BadDataError
from lab.recordings.kineto.columns import TABLE_OF
from lab.recordings.pftrace.arguments import Arguments, Interned, text
from lab.recordings.pftrace.packets import packets
from lab.recordings.pftrace.pairing import paired
from lab.recordings.protobuf import BadWire, items

# Field numbers of google/perfetto, protos/perfetto/trace.
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _STATS = 8, 10, 11, 12, 13, 35
_CLEARED, _DROPPED, _COMPRESSED, _COUNTER, _STAGE, _CLOCK, _DEFAULTS, _TRACK = 41, 42, 50, 52, 53, 58, 59, 60
_TRACK_UUID, _DURATION, _EXTRA, _GPU, _STAGE_IID, _NAME, _KERNEL, _NAME_IID, _LAUNCH = (
    11,
    2,
    6,
    11,
    14,
    17,
    19,
    20,
    21,
)
_BEGIN, _END, _INSTANT = 1, 2, 3
CATEGORY, NAME, SPECIFICATION, COMPUTE_KERNEL = 1, 2, 24, 1000  # kinds of interned texts
# GPU render stages, as newer versions of torch.profiler write GPU operations -> their category in the JSON.
STAGES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node",
    "HostNode": "graph_host_node",
}
_OWN_CLOCKS = range(64, 128)  # of one sequence, which only snapshots bring to other clocks
_BOOT_CLOCK = 6  # of packets that name none
LATEST_NS = 1 << 62  # no clock counts further
MOST_EVENTS = 1 << 27
_MOST_PARENTS = 16
_FLAG_CLEARED = 1
_ENCODER = msgspec.json.Encoder()


class Track(NamedTuple):
    """A row of the viewer; -1 and "" where its descriptor does not say."""

    name: str = ""
    pid: int = -1
    tid: int = -1
    process: str = ""
    parent: int = 0


@dataclass
class Slices:
    """Slices (n,): times, the pid and tid of their rows, and their JSON events without these.

    categories: all that were seen; counts: what was left out.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    pid: np.ndarray
    tid: np.ndarray
    events: list[bytes]
    tracks: list[Track]
    categories: set[str]
    counts: Counter[str]
    problems: list[str]


@dataclass
class _Sequence:
    """Packets of one writer: texts by kind and number, and the track of events that name none."""

    interned: Interned = field(default_factory=lambda: defaultdict(dict))
    track: int = 0


def read_slices(path: Path) -> Slices:
    """Every slice of a Perfetto file. Raises BadDataError where it is truncated or damaged."""
    reader = _Reader(path)
    for number, packet in enumerate(packets(path), start=1):
        try:
            reader.feed(packet)
        except BadWire as error:
            raise BadDataError(
                f"packet {number} is damaged: {error} in it", location=path, fix="copy or record it again"
            ) from error
    return reader.finish()


def last_fields(data: bytes, start: int, end: int) -> dict[int, tuple[int, int]]:
    """Field number -> value and end of the last such field of a message."""
    return {number: (value, stop) for number, value, stop, _ in items(data, start, end)}


class _Reader:
    """Collects events packet by packet; slices are paired at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sequences: dict[int, _Sequence] = defaultdict(_Sequence)
        self._tracks: dict[int, Track] = {}
        self._clocks: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._unknown_stages: Counter[str] = Counter()
        self._categories: set[str] = set()
        self._begins: list[bool] = []
        self._track_of: list[int] = []
        self._ts_ns: list[int] = []
        self._events: list[bytes] = []  # b"" of an end
        self._stages: list[tuple[int, int, int, bytes]] = []  # start, end, GPU, event

    def feed(self, packet: bytes) -> None:
        """Add one packet. Raises BadDataError for what torch.profiler does not write."""
        parts = last_fields(packet, 0, len(packet))
        if _COMPRESSED in parts:
            raise BadDataError(
                "a compressed packet with other fields, or inside another", location=self._path
            )
        sequence = self._sequences[_number(parts, _SEQUENCE)]
        if _number(parts, _FLAGS) & _FLAG_CLEARED or _number(parts, _CLEARED):
            sequence.interned.clear()
        self._counts["dropped"] += _number(parts, _DROPPED) > 0
        self._counts["samples"] += _COUNTER in parts
        if _INTERNED in parts:
            _intern(packet, parts[_INTERNED], sequence.interned)
        if _TRACK in parts:
            self._describe(packet, parts[_TRACK])
        if _DEFAULTS in parts:
            self._read_defaults(packet, parts[_DEFAULTS], sequence)
        if _STATS in parts:
            self._counts["lost"] = _lost(packet, parts[_STATS])
        ts_ns = _number(parts, _TIMESTAMP)
        if ts_ns:
            self._check_clock(parts.get(_CLOCK, (_BOOT_CLOCK, 0))[0])
        if _EVENT in parts:
            self._add_event(packet, parts[_EVENT], sequence, ts_ns)
        if _STAGE in parts:
            self._add_stage(packet, parts[_STAGE], sequence.interned, ts_ns)

    def _describe(self, packet: bytes, span: tuple[int, int]) -> None:
        parts = last_fields(packet, *span)
        name = text(packet, parts, 2) or text(packet, parts, 10)
        pid, tid, process = -1, -1, ""
        if 3 in parts:
            inside = last_fields(packet, *parts[3])
            pid, process = _number(inside, 1, -1), text(packet, inside, 6)
        if 4 in parts:
            inside = last_fields(packet, *parts[4])
            pid, tid = _number(inside, 1, -1), _number(inside, 2, -1)
            name = text(packet, inside, 5) or name
        self._tracks[_number(parts, 1)] = Track(name, pid, tid, process, _number(parts, 5))

    def _read_defaults(self, packet: bytes, span: tuple[int, int], sequence: _Sequence) -> None:
        """The track of events that name none, and the clock of packets that name none."""
        parts = last_fields(packet, *span)
        if _CLOCK in parts:
            self._check_clock(parts[_CLOCK][0])
        if _EVENT in parts:
            sequence.track = _number(last_fields(packet, *parts[_EVENT]), _TRACK_UUID)

    def _check_clock(self, clock: int) -> None:
        if clock in _OWN_CLOCKS:
            raise BadDataError(
                f"times of a clock of the sequence's own ({clock}), which torch.profiler does not write",
                location=self._path,
                fix="give torch.profiler's JSON trace",
            )
        self._clocks.add(clock)

    def _add_event(self, packet: bytes, span: tuple[int, int], sequence: _Sequence, ts_ns: int) -> None:
        parts = last_fields(packet, *span)
        kind = _number(parts, 9)
        if kind not in (_BEGIN, _END):
            self._counts["instants"] += kind == _INSTANT
            return
        self._begins.append(kind == _BEGIN)
        self._track_of.append(_number(parts, _TRACK_UUID) or sequence.track)
        self._ts_ns.append(ts_ns)
        self._events.append(self._event(packet, span, parts, sequence.interned) if kind == _BEGIN else b"")
        if len(self._events) > MOST_EVENTS:
            raise BadDataError(f"more than {MOST_EVENTS} events", location=self._path)

    def _event(
        self, packet: bytes, span: tuple[int, int], parts: dict[int, tuple[int, int]], interned: Interned
    ) -> bytes:
        name = text(packet, parts, 23) or interned[NAME].get(_number(parts, 10), "")
        category = text(packet, parts, 22) or interned[CATEGORY].get(_number(parts, 3), "")
        arguments = Arguments(interned)
        for number, start, end, _ in items(packet, *span):
            if number == 4:
                arguments.add_annotation(packet, start, end)
        flow = _number(parts, 47, -1) if 47 in parts else _number(parts, 48, -1)
        if flow >= 0 and TABLE_OF.get(category.lower(), "") in ("kernels", "runtime"):
            arguments.values.setdefault("correlation", flow)
        return self._encoded(name, category, arguments.values)

    def _add_stage(self, packet: bytes, span: tuple[int, int], interned: Interned, ts_ns: int) -> None:
        """A GPU operation as one packet with its duration; torch cuts what overlaps the next of its lane."""
        parts = last_fields(packet, *span)
        stage = interned[SPECIFICATION].get(_number(parts, _STAGE_IID), "?")
        kernel = interned[COMPUTE_KERNEL].get(_number(parts, _KERNEL), "")
        name = text(packet, parts, _NAME) or interned[NAME].get(_number(parts, _NAME_IID), "")
        category = "kernel" if kernel or _LAUNCH in parts else STAGES.get(stage)
        if category is None:
            self._unknown_stages[stage] += 1
            return
        arguments = Arguments(interned)
        for number, start, end, _ in items(packet, *span):
            if number == _EXTRA:
                arguments.add_extra(packet, start, end)
            elif number == _LAUNCH:
                arguments.add_launch(packet, start, end)
        event = self._encoded(name or kernel or stage, category, arguments.values)
        end_ns = min(ts_ns + max(_number(parts, _DURATION), 0), LATEST_NS)
        self._stages.append((ts_ns, end_ns, _number(parts, _GPU, -1), event))

    def _encoded(self, name: str, category: str, args: dict[str, Any]) -> bytes:
        self._categories.add(category)
        return _ENCODER.encode({"ph": "X", "cat": category, "name": name, "args": args}) if name else b""

    def finish(self) -> Slices:
        """The slices of the file by start, once every packet has been fed."""
        pairs = paired(self._track_of, self._ts_ns, self._begins)
        threads = {uuid: self._thread_of(uuid) for uuid in set(self._track_of)}
        rows = [
            (self._ts_ns[begin], self._ts_ns[end], *threads[self._track_of[begin]])
            for begin, end in pairs.rows
        ]
        rows += [(start_ns, end_ns, gpu, -1) for start_ns, end_ns, gpu, _ in self._stages]
        events = [*(self._events[begin] for begin, _ in pairs.rows), *(stage[3] for stage in self._stages)]
        slices = np.array(rows, dtype=np.int64).reshape(-1, 4)
        order = [row for row in np.argsort(slices[:, 0], kind="stable").tolist() if events[row]]
        start_ns, end_ns, pid, tid = slices[order].T
        self._counts.update(
            unpaired=pairs.open_begins + pairs.lone_ends,
            stages=self._unknown_stages.total(),
            read_stages=len(self._stages),
        )
        return Slices(
            start_ns=start_ns,
            end_ns=end_ns,
            pid=pid,
            tid=tid,
            events=[events[row] for row in order],
            tracks=list(self._tracks.values()),
            categories=self._categories,
            counts=self._counts,
            problems=[*pairs.problems(), *self._problems()],
        )

    def _problems(self) -> Iterator[str]:
        if len(self._clocks) > 1:
            clocks = sorted(self._clocks)
            yield f"times of {len(clocks)} clocks were not brought to one another: {clocks}"
        if self._unknown_stages:
            kinds = [f"{name} ({count})" for name, count in self._unknown_stages.most_common()]
            yield f"GPU render stages of kinds that lab does not know: {first_few(kinds, 5)}"

    def _thread_of(self, uuid: int) -> tuple[int, int]:
        """pid and tid of a track, or of the nearest above it that has them."""
        track = self._tracks.get(uuid, Track())
        for _ in range(_MOST_PARENTS):
            if track.pid >= 0 or track.tid >= 0:
                break
            track = self._tracks.get(track.parent, Track())
        return track.pid, track.tid


def _number(parts: dict[int, tuple[int, int]], number: int, default: int = 0) -> int:
    """A number as int64; a field of bytes gives nonsense, but no error."""
    value = parts[number][0] if number in parts else default
    return value - (1 << 64) if value >> 63 > 0 else value


def _intern(packet: bytes, span: tuple[int, int], interned: Interned) -> None:
    for kind, start, end, is_bytes in items(packet, *span):
        if is_bytes:
            entry = last_fields(packet, start, end)
            name = text(packet, entry, 2)
            if kind == COMPUTE_KERNEL:
                name = text(packet, entry, 3) or name  # demangled
            interned[kind][_number(entry, 1)] = name


def _lost(packet: bytes, span: tuple[int, int]) -> int:
    """What Perfetto itself counted as lost, in its statistics."""
    lost = 0
    for number, value, end, _ in items(packet, *span):
        if number == 8:
            lost += value
        elif number == 1:
            buffer = last_fields(packet, value, end)
            lost += sum(max(_number(buffer, counter), 0) for counter in (3, 18, 19))
    return lost
