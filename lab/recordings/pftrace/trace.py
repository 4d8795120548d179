"""From packets to slices: interned names resolved, clocks made one, begins and ends paired."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lab.errors import BadDataError
from lab.recordings.capture import Strings
from lab.recordings.pftrace import values
from lab.recordings.pftrace.clocks import Clocks
from lab.recordings.pftrace.packets import Batch, batches
from lab.recordings.pftrace.pairing import paired
from lab.recordings.pftrace.stages import COMPUTE_ARG, COMPUTE_KERNEL, SPECIFICATION, Found, Stages
from lab.recordings.protobuf import BadWire, Fields, fields

# Field numbers of google/perfetto, protos/perfetto/trace.
_CLOCKS, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _STATS = 6, 8, 10, 11, 12, 13, 35
_CLEARED, _DROPPED, _COMPRESSED, _COUNTER, _STAGE, _CLOCK, _DEFAULTS, _TRACK = 41, 42, 50, 52, 53, 58, 59, 60
_TRACK_UUID = 11  # of an event, and of the defaults of events
_BEGIN, _END, _INSTANT = 1, 2, 3
CATEGORY, NAME, KEY, TEXT = 1, 2, 3, 29  # kinds of interned texts
MOST_EVENTS = 1 << 27
_FLAG_CLEARED = 1


@dataclass(frozen=True)
class Track:
    """A row of the viewer; -1 and "" where its descriptor does not say."""

    name: str = ""
    pid: int = -1
    tid: int = -1
    process: str = ""
    parent: int = 0


@dataclass
class Events:
    """Begins and ends of slices as columns (n,), in the order of the file."""

    track: np.ndarray
    ts_ns: np.ndarray
    begins: np.ndarray
    name_id: np.ndarray
    category_id: np.ndarray
    flow: np.ndarray


@dataclass(frozen=True)
class Arguments:
    """Arguments of events, columns (m,): row of the event, id of the key, its number and text, or -1."""

    event: np.ndarray
    key_id: np.ndarray
    number: np.ndarray
    text_id: np.ndarray


@dataclass
class Slices:
    """Slices (n,) by track, then time; `begin` is the event that opened each, arguments refer to events."""

    begin: np.ndarray
    track: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    name_id: np.ndarray
    category_id: np.ndarray
    flow: np.ndarray
    arguments: Arguments
    num_events: int
    strings: Strings
    tracks: dict[int, Track]
    dropped: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def text(self, ids: np.ndarray) -> np.ndarray:
        lookup: np.ndarray = np.array([*self.strings.texts, ""], dtype=object)
        found: np.ndarray = lookup[ids]
        return found

    def numbers(self, *keys: str) -> np.ndarray:
        """The number (n,) of an argument of each slice by any of its names, or -1; texts of digits count."""
        rows = self._rows(keys)
        number, text = self.arguments.number[rows], self.arguments.text_id[rows]
        used, which = np.unique(text, return_inverse=True)
        digits = np.array([_number(self.strings.texts[one]) if one >= 0 else -1 for one in used.tolist()])
        if len(rows):
            number = np.where(text >= 0, digits[which], number)
        return self._of_slices(rows, number)

    def texts(self, *keys: str) -> np.ndarray:
        """The text (n,) of an argument of each slice as a string id, or -1."""
        rows = self._rows(keys)
        return self._of_slices(rows, self.arguments.text_id[rows])

    def _of_slices(self, rows: np.ndarray, found: np.ndarray) -> np.ndarray:
        of_event = np.full(self.num_events, -1, dtype=np.int64)
        of_event[self.arguments.event[rows]] = found
        of_slice: np.ndarray = of_event[self.begin]
        return of_slice

    def _rows(self, keys: tuple[str, ...]) -> np.ndarray:
        """Rows of the arguments of these names."""
        order, key = self._by_key
        found = []
        for name in keys:
            if (wanted := self._ids.get(name)) is not None:
                found.append(order[slice(*np.searchsorted(key, [wanted, wanted + 1]))])
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    @cached_property
    def _by_key(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.arguments.key_id, kind="stable")
        return order, self.arguments.key_id[order]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {text: index for index, text in enumerate(self.strings.texts)}


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
        self._clocks = Clocks()
        self._interned: dict[int, list[tuple[int, int, int]]] = {
            kind: [] for kind in (CATEGORY, NAME, KEY, TEXT, SPECIFICATION, COMPUTE_KERNEL, COMPUTE_ARG)
        }
        self._events: list[dict[str, np.ndarray]] = []
        self._arguments: list[dict[str, np.ndarray]] = []
        self._num_events = 0
        self._stages = Stages(self._strings)

    def feed(self, batch: Batch) -> None:
        if not len(batch.starts):
            return
        data, count = batch.data, len(batch.starts)
        top = fields(data, batch.starts, batch.ends)
        if (top.number == _COMPRESSED).any():
            raise BadDataError(
                "a compressed packet with other fields, or inside another", location=self._path
            )
        sequence = top.column(_SEQUENCE, count, 0)
        cleared = (top.column(_FLAGS, count, 0) & _FLAG_CLEARED) | (top.column(_CLEARED, count, 0) > 0)
        state = self._states(sequence, cleared > 0)
        self._counts["dropped"] += int((top.column(_DROPPED, count, 0) > 0).sum())
        self._counts["samples"] += int((top.number == _COUNTER).sum())
        self._intern(data, top.of(_INTERNED), state)
        self._describe(data, top.of(_TRACK))
        self._defaults(data, top.of(_DEFAULTS), state)
        self._lost(data, top.of(_STATS))
        ts_ns = self._clocks.on_one(data, top, state, count, _CLOCKS, _TIMESTAMP, _CLOCK, _DEFAULTS)
        self._add(data, top.of(_EVENT), state, ts_ns)
        self._stages.add(data, top.of(_STAGE), state, ts_ns)

    def _states(self, sequence: np.ndarray, cleared: np.ndarray) -> np.ndarray:
        """The state (n,) of each packet."""
        state = np.empty(len(sequence), dtype=np.int64)
        order = np.argsort(sequence, kind="stable")
        used, first = np.unique(sequence[order], return_index=True)
        for which, rows in zip(used.tolist(), np.split(order, first[1:]), strict=True):
            before = self._generation.get(which, 0)
            generation = before + np.cumsum(cleared[rows])
            self._generation[which] = int(generation[-1])
            used_here, of_row = np.unique(generation, return_inverse=True)
            ids = [self._state_of.setdefault((which, one), len(self._state_of)) for one in used_here.tolist()]
            state[rows] = np.array(ids)[of_row]
        return state

    def _intern(self, data: np.ndarray, found: Fields, state: np.ndarray) -> None:
        if not len(found.message):
            return
        inside = fields(data, found.value, found.end)
        for kind, known in self._interned.items():
            entries = inside.of(kind)
            if not len(entries.message):
                continue
            parts = fields(data, entries.value, entries.end)
            iids = parts.column(1, len(entries.message), 0)
            texts = np.full(len(entries.message), -1, dtype=np.int64)
            for number in (2, 3) if kind == COMPUTE_KERNEL else (2,):  # 3: a kernel's demangled name
                named = parts.of(number)
                texts[named.message] = values.texts(data, named.value, named.end, self._strings)
            owner = state[found.message[entries.message]]
            known += zip(owner.tolist(), iids.tolist(), texts.tolist(), strict=True)

    def _describe(self, data: np.ndarray, found: Fields) -> None:
        for start, end in zip(found.value.tolist(), found.end.tolist(), strict=True):
            own = fields(data, np.array([start]), np.array([end]))
            uuid = int(own.column(1, 1, 0)[0])
            name = self._text(data, own, 2) or self._text(data, own, 10)
            pid, tid, process = -1, -1, ""
            for number in (3, 4):
                part = own.of(number)
                if not len(part.message):
                    continue
                inside = fields(data, part.value[-1:], part.end[-1:])
                pid = int(inside.column(1, 1)[0])
                if number == 3:
                    process = self._text(data, inside, 6)
                else:
                    tid, name = int(inside.column(2, 1)[0]), self._text(data, inside, 5) or name
            self._tracks[uuid] = Track(name, pid, tid, process, int(own.column(5, 1, 0)[0]))

    def _text(self, data: np.ndarray, found: Fields, number: int) -> str:
        part = found.of(number)
        if not len(part.message):
            return ""
        return data[part.value[-1] : part.end[-1]].tobytes().decode("utf-8", "replace")

    def _defaults(self, data: np.ndarray, found: Fields, state: np.ndarray) -> None:
        for row in range(len(found.message)):
            own = fields(data, found.value[row : row + 1], found.end[row : row + 1])
            part = own.of(_EVENT)
            if len(part.message):
                inside = fields(data, part.value[-1:], part.end[-1:])
                self._default_track[int(state[found.message[row]])] = int(inside.column(_TRACK_UUID, 1, 0)[0])

    def _lost(self, data: np.ndarray, found: Fields) -> None:
        """What Perfetto itself counted as lost, from its last statistics."""
        if not len(found.message):
            return
        own = fields(data, found.value[-1:], found.end[-1:])
        buffers = own.of(1)
        lost = int(own.column(8, 1, 0)[0])
        if len(buffers.message):
            inside = fields(data, buffers.value, buffers.end)
            lost += sum(int(inside.column(number, len(buffers.message), 0).sum()) for number in (3, 18, 19))
        self._counts["lost"] = max(lost, 0)

    def _add(self, data: np.ndarray, found: Fields, state: np.ndarray, ts_ns: np.ndarray) -> None:
        if not len(found.message):
            return
        count = len(found.message)
        own = fields(data, found.value, found.end)
        kind = own.column(9, count)
        self._counts["instants"] += int((kind == _INSTANT).sum())
        kept = np.flatnonzero((kind == _BEGIN) | (kind == _END))
        place = np.full(count, -1, dtype=np.int64)
        place[kept] = np.arange(len(kept)) + self._num_events
        state = state[found.message]
        track = own.column(_TRACK_UUID, count, 0)
        if self._default_track:
            default = np.zeros(len(self._state_of), dtype=np.int64)
            default[list(self._default_track)] = list(self._default_track.values())
            track = np.where(track == 0, default[state], track)
        inline = np.full((2, count), -1, dtype=np.int64)
        for row, number in ((0, 23), (1, 22)):
            part = own.of(number)
            inline[row, part.message] = values.texts(data, part.value, part.end, self._strings)
        flow = own.column(47, count)
        flow = np.where(flow < 0, own.column(48, count), flow)
        self._events.append(
            {
                "track": track[kept],
                "ts_ns": ts_ns[found.message][kept],
                "begins": kind[kept] == _BEGIN,
                "state": state[kept],
                "name_iid": own.column(10, count)[kept],
                "name_id": inline[0][kept],
                "category_iid": own.column(3, count)[kept],
                "category_id": inline[1][kept],
                "flow": flow[kept],
            }
        )
        self._num_events += len(kept)
        if self._num_events > MOST_EVENTS:
            raise BadDataError(f"more than {MOST_EVENTS} events", location=self._path)
        given = own.of(4)
        mine = place[given.message] >= 0
        given = Fields(*(column[mine] for column in given))
        if len(given.message):
            made = values.arguments(data, given, self._strings)
            self._arguments.append({"event": place[given.message], "state": state[given.message], **made})

    def finish(self) -> Slices:
        events, given = _joined(self._events, _EVENT_KINDS), _joined(self._arguments, _ARGUMENT_KINDS)
        names = self._resolved(NAME, events["state"], events["name_iid"], events["name_id"])
        categories = self._resolved(CATEGORY, events["state"], events["category_iid"], events["category_id"])
        keys = self._resolved(KEY, given["state"], given["key_iid"], given["key_id"])
        texts = self._resolved(TEXT, given["state"], given["text_iid"], given["text_id"])
        problems = list(self._clocks.problems)
        pairs = paired(events["track"], events["ts_ns"], events["begins"])
        problems += pairs.problems()
        begin = pairs.begin
        found = Slices(
            begin=begin,
            track=events["track"][begin],
            start_ns=events["ts_ns"][begin],
            end_ns=events["ts_ns"][pairs.end],
            name_id=names[begin],
            category_id=categories[begin],
            flow=events["flow"][begin],
            arguments=Arguments(given["event"], keys, given["number"], texts),
            num_events=self._num_events,
            strings=self._strings,
            tracks=self._tracks,
            dropped=self._counts + Counter(unpaired=pairs.open_begins + pairs.lone_ends),
            problems=problems,
        )
        return _with_stages(found, self._stages.finish(self._resolved)) if self._stages.count else found

    def _resolved(self, kind: int, state: np.ndarray, iid: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Text ids (n,): the event's own text, else the interned one of its state, else -1."""
        known = np.array(self._interned[kind], dtype=np.int64).reshape(-1, 3)
        if not len(known) or not len(iid):
            return own
        ids = np.unique(known[:, 1])
        key = known[:, 0] * len(ids) + np.searchsorted(ids, known[:, 1])
        order = np.argsort(key, kind="stable")
        key, text = key[order], known[order, 2]
        at = np.minimum(np.searchsorted(ids, iid), len(ids) - 1)
        wanted = state * len(ids) + at
        place = np.searchsorted(key, wanted, side="right") - 1  # the last of equals counts
        hit = (ids[at] == iid) & (place >= 0) & (key[np.maximum(place, 0)] == wanted)
        return np.where((own < 0) & hit, text[np.maximum(place, 0)], own)


_EVENT_KINDS = [
    "track",
    "ts_ns",
    "begins",
    "state",
    "name_iid",
    "name_id",
    "category_iid",
    "category_id",
    "flow",
]
_ARGUMENT_KINDS = ["event", "state", "key_iid", "key_id", "number", "text_iid", "text_id"]


def _joined(parts: list[dict[str, np.ndarray]], names: list[str]) -> dict[str, np.ndarray]:
    if not parts:
        return {name: np.empty(0, dtype=bool if name == "begins" else np.int64) for name in names}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _with_stages(slices: Slices, stages: Found) -> Slices:
    """The slices and, behind them, the render stages: slices of no track, with a device and lane."""
    count, first, more = len(stages.slices["start_ns"]), slices.num_events, stages.arguments
    unknown = np.full(count, -1, dtype=np.int64)
    rows = np.arange(count) + first
    keys = [np.full(count, slices.strings.id(name)) for name in ("device", "lane")]
    given = slices.arguments
    arguments = Arguments(
        event=np.concatenate([given.event, more["row"] + first, rows, rows]),
        key_id=np.concatenate([given.key_id, more["key_id"], *keys]),
        number=np.concatenate([given.number, more["number"], stages.slices["device"], unknown]),
        text_id=np.concatenate([given.text_id, more["text_id"], unknown, stages.slices["lane_id"]]),
    )
    own = stages.slices
    return replace(
        slices,
        begin=np.concatenate([slices.begin, rows]),
        track=np.concatenate([slices.track, unknown]),
        start_ns=np.concatenate([slices.start_ns, own["start_ns"]]),
        end_ns=np.concatenate([slices.end_ns, own["end_ns"]]),
        name_id=np.concatenate([slices.name_id, own["name_id"]]),
        category_id=np.concatenate([slices.category_id, own["category_id"]]),
        flow=np.concatenate([slices.flow, unknown]),
        arguments=arguments,
        num_events=first + count,
        dropped=slices.dropped + Counter(stages=stages.unknown.total(), read_stages=count),
        problems=[*slices.problems, *_unknown_stages(stages.unknown)],
    )


def _unknown_stages(unknown: Counter[str]) -> list[str]:
    some = ", ".join(f"{name} ({count})" for name, count in unknown.most_common(5))
    return [f"GPU render stages of kinds that lab does not know: {some}"] if unknown else []


def _number(text: str) -> int:
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else -1
