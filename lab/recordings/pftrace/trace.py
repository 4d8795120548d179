"""From packets to slices: interned names resolved, begins and ends paired, tracks named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.core.words import first_few
from lab.errors import BadDataError
from lab.recordings.capture import Strings
from lab.recordings.pftrace import values
from lab.recordings.pftrace.packets import Batch, batches
from lab.recordings.pftrace.pairing import paired
from lab.recordings.pftrace.stages import COMPUTE_ARG, COMPUTE_KERNEL, SPECIFICATION, Columns, Stages, joined
from lab.recordings.protobuf import BadWire, Fields, fields, inside, text_of, texts

# Field numbers of google/perfetto, protos/perfetto/trace.
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _STATS = 8, 10, 11, 12, 13, 35
_CLEARED, _DROPPED, _COMPRESSED, _COUNTER, _STAGE, _CLOCK, _DEFAULTS, _TRACK = 41, 42, 50, 52, 53, 58, 59, 60
_TRACK_UUID = 11  # of an event, and of the defaults of events
_BEGIN, _END, _INSTANT = 1, 2, 3
CATEGORY, NAME, KEY, TEXT = 1, 2, 3, 29  # kinds of interned texts
_KINDS = (CATEGORY, NAME, KEY, TEXT, SPECIFICATION, COMPUTE_KERNEL, COMPUTE_ARG)
_OWN_CLOCKS = range(64, 128)  # of one sequence, which only snapshots bring to other clocks
_BOOT_CLOCK = 6  # of packets that name none
MOST_EVENTS = 1 << 27
_MOST_PARENTS = 16
_FLAG_CLEARED = 1
_EVENT_COLUMNS = "track ts_ns begins state name_iid name_id category_iid category_id flow"
_ARGUMENT_COLUMNS = "event state key_iid key_id number text_iid text_id"
_SLICE_COLUMNS = "start_ns end_ns name_id category_id pid tid flow"


class Track(NamedTuple):
    """A row of the viewer; -1 and "" where its descriptor does not say."""

    name: str = ""
    pid: int = -1
    tid: int = -1
    process: str = ""
    parent: int = 0


@dataclass
class Slices:
    """Slices by start, of which -1 was not recorded. counts: what was left out.

    columns (n,): start_ns, end_ns, name_id, category_id, pid, tid, flow; arguments (m,): row of the slice,
    key_id, number, text_id.
    """

    columns: Columns
    arguments: Columns
    strings: Strings
    tracks: list[Track]
    counts: Counter[str]
    problems: list[str]


def read_slices(path: Path) -> Slices:
    """Every slice of a Perfetto file. Raises BadDataError where it is truncated or damaged."""
    reader = _Reader(path)
    for batch in batches(path):
        try:
            reader.feed(batch)
        except BadWire as error:
            raise BadDataError(
                f"damaged packets: {error}", location=path, fix="copy or record it again"
            ) from error
    return reader.finish()


class _Reader:
    """Collects columns batch by batch; interned ids are resolved at the end, by the state they belong to.

    A state is a sequence of packets between two clearings of its interned data: within one, an id has one
    meaning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._strings = Strings()
        self._tracks: dict[int, Track] = {}
        self._counts: Counter[str] = Counter()
        self._generation: dict[int, int] = {}
        self._state_of: dict[tuple[int, int], int] = {}
        self._default_track: dict[int, int] = {}
        self._clocks: set[int] = set()
        self._interned: dict[int, list[np.ndarray]] = {kind: [] for kind in _KINDS}
        self._events: list[Columns] = []
        self._arguments: list[Columns] = []
        self._num_events = 0
        self._stages = Stages(self._strings)

    def feed(self, batch: Batch) -> None:
        data, count = batch.data, len(batch.starts)
        packets = fields(data, batch.starts, batch.ends)
        if (packets.number == _COMPRESSED).any():
            raise BadDataError(
                "a compressed packet with other fields, or inside another", location=self._path
            )
        sequence = packets.column(_SEQUENCE, count, 0)
        cleared = packets.column(_FLAGS, count, 0) & _FLAG_CLEARED > 0
        state = self._states(sequence, cleared | (packets.column(_CLEARED, count, 0) > 0))
        ts_ns = packets.column(_TIMESTAMP, count, 0)
        self._counts["dropped"] += int((packets.column(_DROPPED, count, 0) > 0).sum())
        self._counts["samples"] += int((packets.number == _COUNTER).sum())
        self._intern(data, packets.of(_INTERNED), state)
        for start, end in zip(*packets.of(_TRACK)[2:], strict=True):
            self._describe(data, fields(data, start[None], end[None]))
        self._read_defaults(data, packets.of(_DEFAULTS), state)
        self._check_clocks(packets.column(_CLOCK, count, _BOOT_CLOCK)[ts_ns != 0])
        self._count_lost(data, packets.of(_STATS))
        self._add_events(data, packets.of(_EVENT), state, ts_ns)
        self._stages.add(data, packets.of(_STAGE), state, ts_ns)

    def _states(self, sequence: np.ndarray, cleared: np.ndarray) -> np.ndarray:
        """The state (n,) of each packet."""
        state = np.empty(len(sequence), dtype=np.int64)
        for number in np.unique(sequence).tolist():
            rows = np.flatnonzero(sequence == number)
            generation = self._generation.get(number, 0) + np.cumsum(cleared[rows])
            self._generation[number] = int(generation[-1])
            used, index = np.unique(generation, return_inverse=True)
            ids = [self._state_of.setdefault((number, key), len(self._state_of)) for key in used.tolist()]
            state[rows] = np.array(ids)[index]
        return state

    def _intern(self, data: np.ndarray, interned: Fields, state: np.ndarray) -> None:
        """Rows (state, iid, text id) of each kind of interned texts."""
        by_kind = inside(data, interned)
        for kind, rows in self._interned.items():
            entries = by_kind.of(kind)
            if not len(entries.message):
                continue
            parts, count = inside(data, entries), len(entries.message)
            name = texts(data, parts.of(2), self._strings, count)
            if kind == COMPUTE_KERNEL:
                demangled = texts(data, parts.of(3), self._strings, count)
                name = np.where(demangled < 0, name, demangled)
            owner = state[interned.message[entries.message]]
            rows.append(np.stack([owner, parts.column(1, count, 0), name], axis=1))

    def _describe(self, data: np.ndarray, track: Fields) -> None:
        name = text_of(data, track, 2) or text_of(data, track, 10)
        pid, tid, process = -1, -1, ""
        for start, end in zip(*track.of(3)[2:], strict=True):
            described = fields(data, start[None], end[None])
            pid, process = int(described.column(1, 1)[0]), text_of(data, described, 6)
        for start, end in zip(*track.of(4)[2:], strict=True):
            described = fields(data, start[None], end[None])
            pid, tid = int(described.column(1, 1)[0]), int(described.column(2, 1)[0])
            name = text_of(data, described, 5) or name
        uuid, parent = int(track.column(1, 1, 0)[0]), int(track.column(5, 1, 0)[0])
        self._tracks[uuid] = Track(name, pid, tid, process, parent)

    def _read_defaults(self, data: np.ndarray, defaults: Fields, state: np.ndarray) -> None:
        """The track of events that name none, and the clock of packets that name none."""
        parts = inside(data, defaults)
        self._check_clocks(parts.of(_CLOCK).value)
        events = parts.of(_EVENT)
        uuids = inside(data, events).column(_TRACK_UUID, len(events.message), 0)
        owner = state[defaults.message[events.message]]
        self._default_track |= dict(zip(owner.tolist(), uuids.tolist(), strict=True))

    def _check_clocks(self, clocks: np.ndarray) -> None:
        self._clocks |= set(np.unique(clocks).tolist())
        if private := [clock for clock in self._clocks if clock in _OWN_CLOCKS]:
            raise BadDataError(
                f"times of a clock of the sequence's own ({private[0]}), which torch.profiler does not write",
                location=self._path,
                fix="give torch.profiler's JSON trace",
            )

    def _count_lost(self, data: np.ndarray, stats: Fields) -> None:
        """What Perfetto itself counted as lost, from its last statistics."""
        if not len(stats.message):
            return
        counts = fields(data, stats.value[-1:], stats.end[-1:])
        buffers = counts.of(1)
        of_buffer, size = inside(data, buffers), len(buffers.message)
        lost = sum(int(of_buffer.column(number, size, 0).sum()) for number in (3, 18, 19))
        self._counts["lost"] = max(lost + int(counts.column(8, 1, 0)[0]), 0)

    def _add_events(self, data: np.ndarray, packets: Fields, state: np.ndarray, ts_ns: np.ndarray) -> None:
        events, count = inside(data, packets), len(packets.message)
        kind, state = events.column(9, count), state[packets.message]
        self._counts["instants"] += int((kind == _INSTANT).sum())
        is_slice = (kind == _BEGIN) | (kind == _END)
        row = np.where(is_slice, np.cumsum(is_slice) - 1 + self._num_events, -1)
        track = events.column(_TRACK_UUID, count, 0)
        if self._default_track:
            default = np.zeros(len(self._state_of), dtype=np.int64)
            default[list(self._default_track)] = list(self._default_track.values())
            track = np.where(track == 0, default[state], track)
        flow = events.column(47, count)
        columns = {
            "track": track,
            "ts_ns": ts_ns[packets.message],
            "begins": (kind == _BEGIN).astype(np.int64),
            "state": state,
            "name_iid": events.column(10, count),
            "name_id": texts(data, events.of(23), self._strings, count),
            "category_iid": events.column(3, count),
            "category_id": texts(data, events.of(22), self._strings, count),
            "flow": np.where(flow < 0, events.column(48, count), flow),
        }
        self._events.append({name: column[is_slice] for name, column in columns.items()})
        self._num_events += int(is_slice.sum())
        if self._num_events > MOST_EVENTS:
            raise BadDataError(f"more than {MOST_EVENTS} events", location=self._path)
        annotations = events.of(4)
        annotations = annotations.where(is_slice[annotations.message])
        owner = {"event": row[annotations.message], "state": state[annotations.message]}
        self._arguments.append(owner | values.arguments(data, annotations, self._strings))

    def finish(self) -> Slices:
        """The slices of the file, once every batch has been fed."""
        events, arguments = joined(self._events, _EVENT_COLUMNS), joined(self._arguments, _ARGUMENT_COLUMNS)
        pairs = paired(events["track"], events["ts_ns"], events["begins"] > 0)
        names = self._resolved(NAME, events["state"], events["name_iid"], events["name_id"])
        categories = self._resolved(CATEGORY, events["state"], events["category_iid"], events["category_id"])
        threads = {uuid: self._thread_of(uuid) for uuid in np.unique(events["track"]).tolist()}
        tracks = events["track"][pairs.begin].tolist()
        slices = {
            "start_ns": events["ts_ns"][pairs.begin],
            "end_ns": events["ts_ns"][pairs.end],
            "name_id": names[pairs.begin],
            "category_id": categories[pairs.begin],
            "pid": np.array([threads[uuid][0] for uuid in tracks], dtype=np.int64),
            "tid": np.array([threads[uuid][1] for uuid in tracks], dtype=np.int64),
            "flow": events["flow"][pairs.begin],
        }
        row_of_event = np.full(self._num_events, -1, dtype=np.int64)
        row_of_event[pairs.begin] = np.arange(len(pairs.begin))
        row = row_of_event[arguments["event"]]
        of_slices = {
            "row": row,
            "key_id": self._resolved(KEY, arguments["state"], arguments["key_iid"], arguments["key_id"]),
            "number": arguments["number"],
            "text_id": self._resolved(TEXT, arguments["state"], arguments["text_iid"], arguments["text_id"]),
        }
        of_slices = {name: column[row >= 0] for name, column in of_slices.items()}
        self._counts["unpaired"] = pairs.open_begins + pairs.lone_ends
        problems = pairs.problems()
        if len(self._clocks) > 1:
            problems.append(
                f"times of {len(self._clocks)} clocks were not brought to one another: {sorted(self._clocks)}"
            )
        columns = [slices]
        if self._stages.count:
            stages = self._stages.finish(self._resolved)
            unknown = np.full(len(stages.slices["pid"]), -1, dtype=np.int64)
            columns.append({"tid": unknown, "flow": unknown, **stages.slices})
            first_row = len(pairs.begin)
            of_slices = joined(
                [of_slices, stages.arguments | {"row": stages.arguments["row"] + first_row}],
                " ".join(of_slices),
            )
            self._counts.update(stages=stages.unknown.total(), read_stages=len(unknown))
            if stages.unknown:
                kinds = [f"{name} ({count})" for name, count in stages.unknown.most_common()]
                problems.append(f"GPU render stages of kinds that lab does not know: {first_few(kinds, 5)}")
        unsorted = joined(columns, _SLICE_COLUMNS)
        order = np.argsort(unsorted["start_ns"], kind="stable")
        of_slices["row"] = np.argsort(order, kind="stable")[of_slices["row"]]
        return Slices(
            columns={name: column[order] for name, column in unsorted.items()},
            arguments=of_slices,
            strings=self._strings,
            tracks=list(self._tracks.values()),
            counts=self._counts,
            problems=problems,
        )

    def _thread_of(self, uuid: int) -> tuple[int, int]:
        """pid and tid of a track, or of the nearest above it that has them."""
        track = self._tracks.get(uuid, Track())
        for _ in range(_MOST_PARENTS):
            if track.pid >= 0 or track.tid >= 0:
                break
            track = self._tracks.get(track.parent, Track())
        return track.pid, track.tid

    def _resolved(self, kind: int, state: np.ndarray, iid: np.ndarray, text_id: np.ndarray) -> np.ndarray:
        """Text ids (n,): the event's own text, else the interned one of its state, else -1."""
        rows = np.concatenate([np.empty((0, 3), dtype=np.int64), *self._interned[kind]])
        if not len(rows) or not len(iid):
            return text_id
        ids = np.unique(rows[:, 1])
        key = rows[:, 0] * len(ids) + np.searchsorted(ids, rows[:, 1])
        order = np.argsort(key, kind="stable")
        key, interned = key[order], rows[order, 2]
        index = np.minimum(np.searchsorted(ids, iid), len(ids) - 1)
        wanted = state * len(ids) + index
        row = np.maximum(np.searchsorted(key, wanted, side="right") - 1, 0)  # the last of equals counts
        return np.where((text_id < 0) & (ids[index] == iid) & (key[row] == wanted), interned[row], text_id)
