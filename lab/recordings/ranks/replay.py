"""One step played again from its launches, as recorded and with one thing changed.

An operation starts after its launch, its predecessor on the stream and what it waits for on other streams; a
collective ends where the last rank started plus what it took from there. A host launches as recorded; where
it waited for an operation (a synchronize, a copy to the host) it goes on after that has ended. What crosses
streams is what the profiler recorded (a stream waits for an event). Where it recorded none, it is mined from
the recordings: the latest earlier operation of each other stream that had always ended, kept only where it
was what was waited for at least once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.recordings.ranks.common import UNKNOWN, Together, launched_in
from lab.recordings.ranks.hosts import HostWait, host_waits
from lab.recordings.ranks.work import RankWork
from lab.stats import robust
from lab.stats.columns import distinct

LAUNCH_NS, STREAM_NS = 2_000, 1_000
# An operation was held up by another stream if it started so soon after that, and so late after all else.
BOUND_NS, FREE_NS = 8_000, 15_000
# One that is known to have waited for some event starts later after it: the latency of events on an H200.
HELD_NS = 25_000
# What the start of one operation may take beyond all known causes and still be its own.
DELAY_NS = 20_000
ACCEPTED_SHARE = 0.002
# Steps with more operations are not replayed: their rows would take minutes in plain Python.
MOST_OPERATIONS = 400_000

HOST, STREAM, OTHER_STREAM, COLLECTIVE = range(4)


@dataclass(frozen=True)
class Played:
    """The operations of one rank in one step, in the order of their launch, on the common clock.

    ready is when the launch call returned, lag what start then takes at most; dur is a collective's transfer.
    previous and awaited are the operations (places) that must have ended; call is -1 for no collective.
    recorded is `awaited` as the profiler recorded it, None where it recorded no waits of streams; mined what
    the recordings show. waits are the host's, for its own operations. delay is what starts take beyond (n,),
    or empty for nothing. held: whether its stream held it back for an event that is not known.
    """

    rank: int
    begin: float
    rows: np.ndarray
    key: np.ndarray
    stream: np.ndarray
    start: np.ndarray
    end: np.ndarray
    ready: np.ndarray
    lag: np.ndarray
    dur: np.ndarray
    call: np.ndarray
    previous: np.ndarray
    awaited: tuple[tuple[int, ...], ...] = ()
    recorded: tuple[tuple[int, ...], ...] | None = None
    mined: tuple[tuple[int, ...], ...] = ()
    floor: np.ndarray = field(default_factory=lambda: np.empty(0))
    waits: tuple[HostWait, ...] = ()
    delay: np.ndarray = field(default_factory=lambda: np.empty(0))
    held: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=bool))

    @property
    def busy(self) -> np.ndarray:
        """When each launch (n,) would have returned after the step's begin, had the host not waited."""
        waited = np.zeros(len(self.ready) + 1)
        for wait in self.waits:
            waited[wait.place] += wait.end - wait.begin
        busy: np.ndarray = self.ready - self.begin - np.cumsum(waited)[:-1]
        return busy

    @property
    def host_ns(self) -> float:
        """What the host needs from the begin of the step to its last launch, without waits for the GPU."""
        return float(self.busy.max())


@dataclass(frozen=True)
class Outcome:
    """Start and end (n,) of every rank's operations; bound is what held each start: HOST, or a place."""

    start: dict[int, list[float]]
    end: dict[int, list[float]]
    bound: dict[int, list[tuple[int, int]]]
    last_rank: dict[int, int]
    finish: float


@dataclass(frozen=True)
class Step:
    """One step of all ranks, ready to be replayed; None in place of it where that is not possible."""

    number: int
    ranks: dict[int, Played]
    begin: float
    recorded_ns: float

    @property
    def size(self) -> int:
        return sum(len(one.rows) for one in self.ranks.values())


def steps_of(together: Together) -> list[Step]:
    """Every step that all ranks recorded with launches, without dependencies across streams."""
    steps = []
    for number in together.steps:
        ranks = {}
        for index, work in enumerate(together.works):
            played = _played(together, index, number)
            if played is None:
                break
            ranks[work.rank] = played
        else:
            begin = min(one.begin for one in ranks.values())
            end = max(float(one.end.max()) for one in ranks.values())
            steps.append(Step(number, ranks, begin, end - begin))
    return steps


def _played(together: Together, index: int, number: int) -> Played | None:
    work, window = together.works[index], together.window(index, number)
    rows = launched_in(together, index, number)
    if window is None or not len(rows) or (work.call_end[rows] < 0).any():
        return None
    origin = together.origin_ns
    start, end, ready = (
        (together.common(index, values[rows]) - origin).astype(float)
        for values in (work.start, work.end, work.call_end)
    )
    call = np.full(len(work), UNKNOWN, dtype=np.int64)
    moved = np.zeros(len(work))
    call_rows = together.calls[index]
    call[call_rows.row] = np.where(call_rows.last_index != UNKNOWN, call_rows.call, UNKNOWN)
    moved[call_rows.row] = work.end[call_rows.row] - call_rows.all_in
    stream = work.stream[rows]
    begin = float(together.common(index, np.array([window[0]]))[0] - origin)
    waits = host_waits(work, rows)
    spans = np.array([[wait.begin, wait.end] for wait in waits], dtype=np.int64).reshape(-1, 2)
    spans = (together.common(index, spans.ravel()) - origin).reshape(-1, 2).astype(float)
    return Played(
        rank=work.rank,
        begin=begin,
        rows=rows,
        key=work.key[rows],
        stream=stream,
        start=start,
        end=end,
        ready=ready,
        lag=np.minimum(LAUNCH_NS, start - ready),
        dur=np.where(call[rows] != UNKNOWN, moved[rows], end - start),
        call=call[rows],
        previous=_before(stream),
        recorded=_recorded(work, rows),
        floor=_floor(together, index, rows, stream),
        held=np.isin(rows, work.held),
        waits=tuple(
            wait._replace(begin=begin_ns, end=over)
            for wait, (begin_ns, over) in zip(waits, spans.tolist(), strict=True)
        ),
    )


def _recorded(work: RankWork, rows: np.ndarray) -> tuple[tuple[int, ...], ...] | None:
    """What each operation (n,) waits for on other streams within its step, as recorded."""
    if not len(work.waits):
        return None
    place = np.full(len(work), UNKNOWN, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    waits: list[list[int]] = [[] for _ in rows]
    for waiting, awaited in place[work.waits].tolist():
        if 0 <= awaited < waiting:
            waits[waiting].append(awaited)
    return tuple(tuple(waiting) for waiting in waits)


def _floor(together: Together, index: int, rows: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """The end of what an earlier step left on each one's stream, or made it wait for (n,); else -inf."""
    work = together.works[index]
    floor = np.full(len(rows), -np.inf)
    first_row = int(rows[0])
    for stream_id in distinct(stream).tolist():
        first_place = int(np.flatnonzero(stream == stream_id)[0])
        earlier = np.flatnonzero((work.stream == stream_id) & (work.start < work.start[rows[first_place]]))
        if len(earlier) and first_row >= 0:
            floor[first_place] = float(
                together.common(index, work.end[earlier].max()[None])[0] - together.origin_ns
            )
    place = np.full(len(work), UNKNOWN, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    waits = work.waits[(place[work.waits[:, 0]] >= 0) & (place[work.waits[:, 1]] < 0)]
    ended = (together.common(index, work.end[waits[:, 1]]) - together.origin_ns).astype(float)
    np.maximum.at(floor, place[waits[:, 0]], ended)
    return floor


def _before(stream: np.ndarray) -> np.ndarray:
    """The place of each operation's predecessor on its stream (n,), -1 for none."""
    order = np.argsort(stream, kind="stable")
    previous = np.full(len(stream), -1, dtype=np.int64)
    same = stream[order][1:] == stream[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def signature(played: Played) -> bytes:
    """Equal for ranks and steps that launch the same operations on the same streams."""
    _, streams = np.unique(played.stream, return_inverse=True)
    return np.stack([streams.ravel(), played.call != UNKNOWN], axis=1).astype(np.int32).tobytes()


def mined(instances: Sequence[Played]) -> tuple[tuple[int, ...], ...]:
    """What each operation (n,) waits for on other streams, from instances with one signature."""
    example = instances[0]
    base = np.array([[one.begin] for one in instances])
    start, end, ready = (
        np.stack([getattr(one, name) for one in instances]) - base for name in ("start", "end", "ready")
    )
    held = np.stack([one.held if len(one.held) else np.zeros(len(one.rows), bool) for one in instances])
    streams = distinct(example.stream)
    before_end = np.where(example.previous >= 0, end[:, example.previous], -np.inf)
    free = start - np.maximum(ready, before_end)
    waits: list[list[int]] = [[] for _ in range(len(example.stream))]
    for stream in streams.tolist():
        places = np.flatnonzero(example.stream == stream)
        asked = np.flatnonzero(example.stream != stream)
        earlier = np.searchsorted(places, asked)
        ended = np.stack(
            [
                np.searchsorted(
                    np.maximum.accumulate(end[i, places]), start[i, asked] + STREAM_NS, side="right"
                )
                for i in range(len(instances))
            ]
        ).min(axis=0)
        latest = np.minimum(ended, earlier) - 1
        asked, latest = asked[latest >= 0], latest[latest >= 0]
        gap = start[:, asked] - end[:, places[latest]]
        bound = np.where(held[:, asked], HELD_NS, BOUND_NS)
        binds = ((gap < bound) & (free[:, asked] > FREE_NS)).any(axis=0)
        for op, place in zip(asked[binds].tolist(), places[latest][binds].tolist(), strict=True):
            waits[op].append(place)
    return tuple(tuple(one) for one in waits)


def with_dependencies(groups: Sequence[Sequence[Step]]) -> list[list[Step]]:
    """The steps with their dependencies: recorded, or mined over all groups with the same operations."""
    by_signature: dict[bytes, list[Played]] = {}
    for steps in groups:
        for step in steps:
            for played in step.ranks.values():
                by_signature.setdefault(signature(played), []).append(played)
    mined_waits = {name: mined(found) for name, found in by_signature.items()}
    return [
        [
            Step(
                step.number,
                {
                    rank: _replace(
                        played,
                        awaited=played.recorded or mined_waits[signature(played)],
                        mined=mined_waits[signature(played)],
                    )
                    for rank, played in step.ranks.items()
                },
                step.begin,
                step.recorded_ns,
            )
            for step in steps
        ]
        for steps in groups
    ]


def with_mined(step: Step) -> Step | None:
    """The step with what was mined beside what was recorded; None where that adds nothing."""
    ranks = {}
    for rank, played in step.ranks.items():
        pairs = zip(played.awaited, played.mined, strict=True)
        ranks[rank] = _replace(
            played, awaited=tuple(tuple(sorted({*waits, *additions})) for waits, additions in pairs)
        )
    if all(
        ranks[rank].awaited == tuple(map(tuple, map(sorted, played.awaited)))
        for rank, played in step.ranks.items()
    ):
        return None
    return Step(step.number, ranks, step.begin, step.recorded_ns)


def with_delays(step: Step, most_ns: float = DELAY_NS) -> Step:
    """The step with what each operation's start takes beyond all that is known, up to most_ns, as recorded.

    Event latencies and gaps of the GPU differ by a few us, which thousands of operations make ms. Longer ones
    are kernels that found no room on the GPU, or another program on it.
    """
    ranks = {}
    for rank, played in step.ranks.items():
        expected_ns = np.maximum(played.ready + played.lag, played.floor + STREAM_NS)
        queued = played.previous >= 0
        expected_ns[queued] = np.maximum(expected_ns[queued], played.end[played.previous[queued]] + STREAM_NS)
        for place, awaited in enumerate(played.awaited):
            for operation in awaited:
                expected_ns[place] = max(expected_ns[place], played.end[operation] + STREAM_NS)
        ranks[rank] = _replace(played, delay=np.clip(played.start - expected_ns, 0, most_ns))
    return Step(step.number, ranks, step.begin, step.recorded_ns)


def _replace(played: Played, **changes: object) -> Played:
    return Played(**{**vars(played), **changes})


def play(step: Step) -> Outcome | None:
    """The step from its launches; None where the orders of collectives contradict each other."""
    members: Counter[int] = Counter()
    for played in step.ranks.values():
        members.update(played.call[played.call >= 0].tolist())
    lanes = {rank: _Lane(played) for rank, played in step.ranks.items()}
    entered: dict[int, list[tuple[float, int, int]]] = {}
    todo = True
    while todo:
        todo = False
        for lane in lanes.values():
            todo |= lane.advance(entered)
        for call in [call for call, ins in entered.items() if len(ins) == members[call]]:
            latest = max(entered[call])
            for _, rank, place in entered.pop(call):
                lanes[rank].leave(place, latest[0], latest[1])
            todo = True
    if any(lane.index < len(lane.start) or lane.inside != UNKNOWN for lane in lanes.values()):
        return None
    ends = {rank: lane.end for rank, lane in lanes.items()}
    return Outcome(
        start={rank: lane.start for rank, lane in lanes.items()},
        end=ends,
        bound={rank: lane.bound for rank, lane in lanes.items()},
        last_rank={call: rank for lane in lanes.values() for call, rank in lane.last_of.items()},
        finish=max(max(end) for end in ends.values()),
    )


class _Lane:
    """One rank while it is played."""

    def __init__(self, played: Played) -> None:
        count = len(played.rows)
        self.index, self.inside = 0, UNKNOWN
        self.rank = played.rank
        self.start, self.end = [0.0] * count, [0.0] * count
        self.bound: list[tuple[int, int]] = [(HOST, UNKNOWN)] * count
        self.last_of: dict[int, int] = {}
        self._launch_ns = (played.ready + played.lag).tolist()
        self._waits = {wait.place: wait for wait in played.waits}
        self._later, self._held_by = 0.0, UNKNOWN  # what the host's waits add, and the last that held it
        self._floor = played.floor.tolist()
        self._delay = played.delay.tolist() or [0.0] * count
        self._previous, self._awaited = played.previous.tolist(), played.awaited or ((),) * count
        self._dur, self._call = played.dur.tolist(), played.call.tolist()

    def advance(self, entered: dict[int, list[tuple[float, int, int]]]) -> bool:
        """Play on until a collective, whose partners may not be there yet."""
        start_index = self.index
        while self.index < len(self.start) and self.inside == UNKNOWN:
            self._begin(self.index)
            if self._call[self.index] >= 0:
                self.inside = self.index
                entered.setdefault(self._call[self.index], []).append(
                    (self.start[self.index], self.rank, self.index)
                )
            else:
                self.end[self.index] = self.start[self.index] + self._dur[self.index]
            self.index += 1
        return self.index > start_index

    def leave(self, place: int, all_in: float, last_rank: int) -> None:
        self.end[place] = max(all_in + self._dur[place], self.start[place])
        self.last_of[self._call[place]] = last_rank
        self.inside = UNKNOWN

    def _begin(self, place: int) -> None:
        if place in self._waits:
            self._wait(self._waits[place])
        start, bound = self._launch_ns[place] + self._later, (HOST, self._held_by)
        if self._floor[place] + STREAM_NS > start:
            start = self._floor[place] + STREAM_NS
        previous = self._previous[place]
        if previous >= 0 and self.end[previous] + STREAM_NS > start:
            start, bound = self.end[previous] + STREAM_NS, (STREAM, previous)
        for awaited in self._awaited[place]:
            if self.end[awaited] + STREAM_NS > start:
                start, bound = self.end[awaited] + STREAM_NS, (OTHER_STREAM, awaited)
        self.start[place], self.bound[place] = start + self._delay[place], bound

    def _wait(self, wait: HostWait) -> None:
        """The host goes on when the operation has ended, or at once where it already had."""
        arrives, ended_ns = wait.begin + self._later, self.end[wait.on] + wait.lag_ns
        self._later = max(arrives, ended_ns) - wait.end
        if ended_ns > arrives:
            self._held_by = wait.on


def accepted(step: Step, outcome: Outcome) -> bool:
    """Whether the unchanged replay ends where the recording did, on every rank within 0.2 % of the step."""
    return error_share(step, outcome) <= ACCEPTED_SHARE


def error_share(step: Step, outcome: Outcome) -> float:
    """How far the end of the replay lies from the recorded one on the worst rank, as a share of the step."""
    errors = [abs(max(outcome.end[rank]) - one.end.max()) for rank, one in step.ranks.items()]
    return float(max(errors)) / step.recorded_ns


def length_ms(step: Step, outcome: Outcome | None) -> float:
    """From the first begin over ranks to the last end, in ms; NaN where it could not be played."""
    if outcome is None:
        return float("nan")
    return (outcome.finish - min(one.begin for one in step.ranks.values())) / 1e6


def hosts_as_others(step: Step, fixed: Sequence[int]) -> Step | None:
    """The step with the hosts of these ranks, and their entry, as the median of the others."""
    peers = [one for rank, one in step.ranks.items() if rank not in fixed]
    ranks = dict(step.ranks)
    for rank in fixed:
        played = ranks[rank]
        alike = [one for one in peers if signature(one) == signature(played)]
        if not alike:
            return None
        begin = robust.median([one.begin for one in peers])
        ready = begin + np.median([one.busy for one in alike], axis=0)
        ranks[rank] = _replace(
            played,
            begin=begin,
            ready=ready,
            floor=played.floor + (begin - played.begin),
            waits=tuple(_short_wait(one, ready) for one in played.waits),
        )
    return Step(step.number, ranks, min(one.begin for one in ranks.values()), step.recorded_ns)


def _short_wait(wait: HostWait, ready: np.ndarray) -> HostWait:
    """The wait of a host whose launches (n,) wait for nothing: it is over as it begins, after the last."""
    begin_ns = float(ready[wait.place - 1])
    return wait._replace(begin=begin_ns, end=begin_ns)


def entry_as_others(step: Step, rank: int) -> Step:
    """The step with this rank entering it when the others do, its host otherwise as recorded."""
    peer_begins = [one.begin for other, one in step.ranks.items() if other != rank]
    played = step.ranks[rank]
    earlier = played.begin - robust.median(peer_begins)
    moved = {name: getattr(played, name) - earlier for name in ("begin", "ready", "floor")}
    waits = tuple(one._replace(begin=one.begin - earlier, end=one.end - earlier) for one in played.waits)
    ranks = {**step.ranks, rank: _replace(played, **moved, waits=waits)}
    return Step(step.number, ranks, min(one.begin for one in ranks.values()), step.recorded_ns)


def hosts_ready(step: Step) -> Step:
    """The step with everything launched at its begin: what the GPUs alone need."""
    ranks = {
        rank: _replace(
            played,
            begin=step.begin,
            ready=np.full(len(played.ready), step.begin),
            floor=played.floor - np.inf,
            waits=(),
        )
        for rank, played in step.ranks.items()
    }
    return Step(step.number, ranks, step.begin, step.recorded_ns)


def shorter(step: Step, less: Mapping[int, np.ndarray]) -> Step:
    """The step with operations shortened: rank -> ns less, by place (n,)."""
    ranks = {
        rank: _replace(played, dur=np.maximum(played.dur - less[rank], 0)) if rank in less else played
        for rank, played in step.ranks.items()
    }
    return Step(step.number, ranks, step.begin, step.recorded_ns)
