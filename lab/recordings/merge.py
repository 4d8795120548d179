"""All ranks of one run on one timeline for Perfetto: event by event, never a whole trace in memory.

Per rank r: GPUs have pids from 1000r on, the CPU side from 1000r + 500; thread numbers stay. Flows get new ids
and are written only if both ends are there; correlation and External id are shifted alike, so that no arrow and
no id crosses ranks. Times are moved onto the earliest rank's base. Format: Google's "Trace Event Format" with
the fields that pytorch/kineto writes (`libkineto/src/output_json.cpp`).
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import msgspec
from msgspec import Raw

from lab.core.files import replacing
from lab.errors import LabError
from lab.recordings.pieces import EventPieces, Piece, elements

packer: ModuleType
try:
    from isal import igzip as packer
except ModuleNotFoundError:  # a few times slower, the same format
    packer = gzip

Event = dict[str, Raw]
Row = tuple[bytes, bytes]  # pid and tid as they are written in the file

RANK_PIDS = 1000
CPU_PIDS = 500
FIRST_TEXT_TID = 1 << 30  # above any thread number of Linux
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
# Ids past this are no counters but hashes; adding to them could leave the 53 bits that viewers keep.
LARGEST_ID = 1 << 48

_IDS = re.compile(
    rb'(?<!\\)("(?:correlation|External id|wait_on_cuda_event_record_corr_id)"\s*:\s*)([1-9]\d*)'
)
_INTEGER = re.compile(rb"-?\d+")
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_NOTHING = Raw(b'""')


class _Skipped(msgspec.Struct):
    """An event of which nothing is read."""


_SKIP = msgspec.json.Decoder(list[_Skipped])


@dataclass(frozen=True)
class Merged:
    """What became of a merge; path is None where nothing could be merged.

    written and dropped count events, offsets_ns says by how much each rank's times were moved, `missing` lists
    ranks that should be there and are not (no trace, or a broken one), problems are sentences.
    """

    path: Path | None
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    written: int
    dropped: dict[str, int]
    offsets_ns: dict[int, int]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """One rank's file as its frame describes it; base_ns is 0 where times are absolute."""

    path: Path
    rank: int
    base_ns: int
    frame: dict[str, Any]


def merge_json(
    traces: Sequence[tuple[int | None, Path]],
    target: Path,
    *,
    offsets_ns: Mapping[int, int] | None = None,
    cpu_ops: bool = True,
    salvage: bool = False,
) -> Merged:
    """Merge `traces`, pairs of (rank as the path says or None, file), into the gzip file `target`.

    offsets_ns (rank -> ns) is added to a rank's times beyond its base. cpu_ops=False leaves out CPU operators.
    A trace that cannot be read is left out and said so; nothing is written if none can be read. The same
    input gives the same bytes. Raises StorageError where `target` cannot be written.
    """
    found, problems = recordings(traces, salvage=salvage)
    if not found:
        return Merged(None, (), (), 0, {}, {}, tuple(problems))
    base_ns = min(one.base_ns for one in found)
    shifts = {one.rank: one.base_ns - base_ns + (offsets_ns or {}).get(one.rank, 0) for one in found}
    numbers = _Numbers()
    with packed(target) as file:
        file.write(b'{"traceEvents":[')
        for one in found:
            _Rank(one, shifts[one.rank], numbers, cpu_ops=cpu_ops, salvage=salvage).write(file)
        file.write(b"\n],\n" + _ENCODER.encode(_frame(found, base_ns, shifts, numbers))[1:] + b"\n")
    return Merged(
        path=target,
        ranks=tuple(one.rank for one in found),
        missing=absent(found),
        written=numbers.written,
        dropped=dict(numbers.dropped),
        offsets_ns=shifts,
        problems=(*problems, *numbers.oddities()),
    )


def recordings(
    traces: Sequence[tuple[int | None, Path]], *, salvage: bool
) -> tuple[list[Recording], list[str]]:
    """The readable traces by rank, and a sentence for each that is not. The rank that a trace says counts."""
    found: dict[int, Recording] = {}
    problems: list[str] = []
    for named, path in traces:
        try:
            frame = _read_frame(path, salvage=salvage)
        except LabError as error:
            problems.append(f"left out: {error.what} ({error.where})")
            continue
        told = _natural(_info(frame).get("rank"))
        rank = named if told is None else told
        if rank is None:
            rank = max(found, default=-1) + 1
            problems.append(f"nothing says which rank this is, so it is shown as rank {rank} ({path})")
        if rank in found:
            problems.append(f"left out: another trace says too that it is rank {rank} ({path})")
            continue
        found[rank] = Recording(path, rank, _natural(frame.get("baseTimeNanoseconds")) or 0, frame)
    return [found[rank] for rank in sorted(found)], problems


def absent(found: Sequence[Recording]) -> tuple[int, ...]:
    """Ranks below the world's size that have no recording."""
    size = max((_natural(_info(one.frame).get("world_size")) or 0 for one in found), default=0)
    have = {one.rank for one in found}
    return tuple(rank for rank in range(min(size, 1 << 16)) if rank not in have)


@contextmanager
def packed(target: Path) -> Iterator[IO[bytes]]:
    """A gzip file that appears when it is whole; without name or time in it, so that bytes repeat."""
    with (
        replacing(target) as file,
        packer.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=2, mtime=0) as gz,
    ):
        yield gz


@dataclass
class _Numbers:
    """What goes on from rank to rank: ids given out, events counted, whether a comma is due."""

    next_flow: int = 1
    largest_id: int = 0
    written: int = 0
    gap: bytes = b"\n"
    dropped: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)

    def put(self, file: IO[bytes], events: Sequence[Any]) -> None:
        if events:
            file.write(self.gap + _ENCODER.encode(events)[1:-1])
            self.gap = b",\n"
            self.written += len(events)

    def oddities(self) -> list[str]:
        return [f"{text} ({count} times)" for text, count in self.odd.items()]


class _Rank:
    """One rank's way into the file: a first look for rows, names and flows, a second one that writes."""

    def __init__(
        self, found: Recording, shift_ns: int, numbers: _Numbers, *, cpu_ops: bool, salvage: bool
    ) -> None:
        self._path, self._rank, self._numbers = found.path, found.rank, numbers
        self._cpu_ops, self._salvage = cpu_ops, salvage
        self._shift_us = Decimal(shift_ns) / 1000
        self._id_offset = numbers.largest_id
        self._rows: dict[tuple[bool, bytes, bytes], None] = {}
        self._unsure: dict[Row, bool] = {}
        self._names: dict[tuple[bytes, bytes, bytes], Raw] = {}
        self._flows: dict[tuple[bytes, bytes], Raw] = {}
        self._pids: dict[tuple[bool, bytes], Raw] = {}
        self._tids: dict[bytes, Raw] = {}

    def write(self, file: IO[bytes]) -> None:
        self._look()
        self._numbers.put(file, self._name_records())
        for events in _events(self._path, self._numbers.odd, salvage=self._salvage):
            self._numbers.put(file, [event for event in events if self._rewrite(event)])

    def _look(self) -> None:
        """Learn which rows lie on which side, what they are called, and which flows have both ends."""
        ends: dict[tuple[bytes, bytes], int] = {}
        # What is odd is counted by the second look.
        for event in itertools.chain.from_iterable(_events(self._path, Counter(), salvage=self._salvage)):
            phase, category, pid, tid = _head(event)
            if phase == b'"M"':
                self._names[bytes(event.get("name", _NOTHING)), pid, tid] = event.get("args", _NOTHING)
            elif self._is_left_out(category):
                continue
            elif category in GPU_CATEGORIES or category in CPU_CATEGORIES:
                self._rows.setdefault((category in GPU_CATEGORIES, pid, tid))
            else:
                self._unsure.setdefault((pid, tid), False)
            if phase in FLOWS:
                key = category, bytes(event.get("id", _NOTHING))
                ends[key] = ends.get(key, 0) | FLOWS[phase]
        whole = (key for key, seen in ends.items() if seen == BOTH_ENDS)
        self._flows = {key: _raw(number) for number, key in enumerate(whole, start=self._numbers.next_flow)}
        self._numbers.next_flow += len(self._flows)
        self._settle()
        self._give_numbers()

    def _settle(self) -> None:
        """Flows, and categories that occur on both sides, lie where their row's other events do."""
        gpus = {pid for on_gpu, pid, _ in self._rows if on_gpu}
        cpus = {pid for on_gpu, pid, _ in self._rows if not on_gpu}
        known = set(self._rows)
        for pid, tid in self._unsure:
            beside = (True, pid, tid) in known or (pid in gpus and pid not in cpus)
            self._unsure[pid, tid] = beside and (False, pid, tid) not in known
            self._rows.setdefault((self._unsure[pid, tid], pid, tid))

    def _give_numbers(self) -> None:
        """GPUs in order of their number; of the CPU side the first process with work first, texts last."""
        gpus = sorted({pid for on_gpu, pid, _ in self._rows if on_gpu}, key=lambda pid: (len(pid), pid))
        cpus = dict.fromkeys(pid for on_gpu, pid, _ in self._rows if not on_gpu)
        ordered = sorted(cpus, key=lambda pid: not _INTEGER.fullmatch(pid))
        first = RANK_PIDS * self._rank
        self._pids = {(True, pid): _raw(first + place) for place, pid in enumerate(gpus)}
        self._pids |= {(False, pid): _raw(first + CPU_PIDS + place) for place, pid in enumerate(ordered)}
        texts = dict.fromkeys(tid for _, _, tid in self._rows if not _INTEGER.fullmatch(tid))
        self._tids = {tid: _raw(FIRST_TEXT_TID + place) for place, tid in enumerate(texts)}

    def _name_records(self) -> list[dict[str, Any]]:
        """Names for the processes and threads that have events, each once."""
        records = []
        for (on_gpu, pid), new in self._pids.items():
            label = f"GPU {_shown(pid)}" if on_gpu else "CPU"
            name = (
                label
                if on_gpu
                else f"CPU {self._told('process_name', pid, b'0', 'name') or ''} {_shown(pid)}"
            )
            title = " ".join(f"[R{self._rank}] rank {self._rank} {name}".split())
            records += [
                _record("process_name", new, 0, {"name": title}),
                _record("process_labels", new, 0, {"labels": label}),
                _record("process_sort_index", new, 0, {"sort_index": new}),
            ]
        for on_gpu, pid, tid in self._rows:
            new, new_tid = self._pids[on_gpu, pid], self._tids.get(tid) or Raw(tid)
            unnamed = f"stream {_shown(tid)}" if on_gpu else _shown(tid) or "none"
            name = str(self._told("thread_name", pid, tid, "name") or unnamed).strip()
            records.append(_record("thread_name", new, new_tid, {"name": name}))
            order = self._told("thread_sort_index", pid, tid, "sort_index")
            if order is not None:
                records.append(_record("thread_sort_index", new, new_tid, {"sort_index": order}))
        return records

    def _told(self, name: str, pid: bytes, tid: bytes, key: str) -> Any:
        args = msgspec.json.decode(self._names.get((b'"%s"' % name.encode(), pid, tid), _NOTHING))
        return args.get(key) if isinstance(args, dict) else None

    def _rewrite(self, event: Event) -> bool:
        """Give the event its place on the common timeline; False: it does not go there."""
        phase, category, pid, tid = _head(event)
        if phase == b'"M"':
            return False
        if self._is_left_out(category):
            self._numbers.dropped[f"{_shown(category)} events, left out on purpose"] += 1
            return False
        if phase in FLOWS:
            number = self._flows.get((category, bytes(event.get("id", _NOTHING))))
            if number is None:
                self._numbers.dropped["flow events without their other end"] += 1
                return False
            event["id"] = number
        else:
            self._rewrite_ids(event)
        event["pid"] = self._pids[self._on_gpu(category, pid, tid), pid]
        event["tid"] = self._tids.get(tid) or Raw(tid)
        if self._shift_us and "ts" in event:
            event["ts"] = self._shifted(event["ts"])
        return True

    def _rewrite_ids(self, event: Event) -> None:
        if "id" in event:  # async events share one space of ids in the format
            event["id"] = Raw(b'"r%d:%s"' % (self._rank, bytes(event["id"]).strip(b'"')))
        args = bytes(event.get("args", b"{}"))
        if args.startswith(b"{"):
            rest = _IDS.sub(self._shift_id, args)[1:].lstrip()
            gap = b"" if rest == b"}" else b","
            event["args"] = Raw(b'{"rank":%d%s%s' % (self._rank, gap, rest))

    def _shift_id(self, found: re.Match[bytes]) -> bytes:
        number = int(found[2])
        if number > LARGEST_ID:
            self._numbers.odd["ids too large to be shifted stay as they were recorded"] += 1
            return found[0]
        number += self._id_offset
        if number > self._numbers.largest_id:
            self._numbers.largest_id = number
        return found[1] + b"%d" % number

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
            self._numbers.odd["times that are no numbers stay as they were recorded"] += 1
            return ts_us


def _head(event: Event) -> tuple[bytes, bytes, bytes, bytes]:
    """Phase, category, pid and tid as they are written, quotes and all."""
    return (
        bytes(event.get("ph", _NOTHING)),
        bytes(event.get("cat", _NOTHING)),
        bytes(event.get("pid", _NOTHING)),
        bytes(event.get("tid", _NOTHING)),
    )


def _events(path: Path, odd: Counter[str], *, salvage: bool) -> Iterator[list[Event]]:
    """The events of a file, a piece at a time; what is no JSON is left out and counted in `odd`."""
    pieces = EventPieces(path, salvage=salvage)
    for piece in pieces:
        try:
            piece.text.decode()  # skipped strings are copied unread: the output must be UTF-8 all the same
            yield _EVENTS.decode(b"[" + piece.text + b"]")
        except (ValueError, RecursionError):
            yield _one_by_one(pieces, piece, odd)


def _one_by_one(pieces: EventPieces, piece: Piece, odd: Counter[str]) -> list[Event]:
    found = elements(piece.text)
    end = found.spans[-1][1] if found.spans else 0
    if end < len(piece.text):
        pieces.give_back(end)
    if found.stray >= 0:
        odd["text that is no event lies between events"] += 1
    events = []
    for start, stop in found.spans:
        try:
            text = piece.text[start:stop].decode("utf-8", "replace")
            loose = json.loads(text, strict=False, parse_float=Decimal, parse_constant=lambda _: None)
            events.append(_EVENT.decode(_ENCODER.encode(loose)))
        except (ValueError, RecursionError, InvalidOperation):
            odd["events that are not JSON were left out"] += 1
    return events


def _read_frame(path: Path, *, salvage: bool) -> dict[str, Any]:
    """What stands around the events; finds out too whether the file can be read to its end."""
    pieces = EventPieces(path, salvage=salvage)
    for piece in pieces:
        try:
            _SKIP.decode(b"[" + piece.text + b"]")
        except (ValueError, RecursionError):
            _one_by_one(pieces, piece, Counter())
    try:
        frame = json.loads(pieces.frame.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        if salvage:
            return {}
        raise pieces.bad(f"what stands around traceEvents is not JSON ({error})", 0) from error
    return frame if isinstance(frame, dict) else {}


def _frame(
    found: Sequence[Recording], base_ns: int, shifts: Mapping[int, int], numbers: _Numbers
) -> dict[str, Any]:
    """The document around the events: what holds for all ranks, and what was done to each."""
    first = found[0].frame
    kept: dict[str, Any] = {key: first[key] for key in ("schemaVersion", "deviceProperties") if key in first}
    return {
        "displayTimeUnit": "ms",
        **kept,
        **({"baseTimeNanoseconds": base_ns} if base_ns else {}),
        "distributedInfo": [one.frame.get("distributedInfo") for one in found],
        "merged": {
            "ranks": [one.rank for one in found],
            "missing_ranks": list(absent(found)),
            "offsets_ns": {str(rank): shift for rank, shift in shifts.items()},
            "left_out": dict(numbers.dropped),
        },
    }


def _info(frame: Mapping[str, Any]) -> dict[str, Any]:
    found = frame.get("distributedInfo")
    return found if isinstance(found, dict) else {}


def _record(name: str, pid: Raw, tid: Raw | int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip('"')


def _raw(number: int) -> Raw:
    return Raw(b"%d" % number)


def _natural(value: Any) -> int | None:
    """A number that can be meant as one; a hostile file may say anything."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return value if fits else None
