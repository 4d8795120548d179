"""One step played again from its launches, as recorded and with one thing changed.

An operation starts after its launch, its predecessor on the stream and what it waits for on other streams; a
collective ends where the last rank started plus what it took from there. A host launches as recorded; where
it waited for an operation (a synchronize, a copy to the host) it goes on after that has ended. What crosses
streams is what the profiler recorded (a stream waits for an event). Where it recorded none, it is mined from
the recordings: the latest earlier operation of each other stream that had always ended, kept only where it
was what was waited for at least once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.recordings.ranks.common import (
    GPU_STEPS,
    UNKNOWN,
    HostWait,
    Together,
    host_waits,
    launched_in,
    usual_pace,
)
from lab.recordings.ranks.work import RankWork
from lab.stats import robust
from lab.stats.columns import distinct

# From a launch's return to its start, and from one operation of a stream to the next: as in recordings.
LAUNCH_NS, STREAM_NS = 2_000, 1_000
# An operation was held up by another stream if it started so soon after that, and so late after all else.
BOUND_NS, FREE_NS = 8_000, 15_000
# One that is known to have waited for some event starts later after it: the latency of events on an H200.
HELD_NS = 25_000
# What the start of one operation may take beyond all known causes and still be its own.
DELAY_NS = 20_000
# A replay of the unchanged recording that ends further off gives no what-if.
ACCEPTED_SHARE = 0.002
# Steps with more operations are not replayed: their rows would take minutes in plain Python.
MOST_OPERATIONS = 400_000

Waits = tuple[tuple[int, ...], ...]  # by operation: the places of those that it waits for
Legs = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Played:
    """The operations of one rank in one step, in the order of their launch, on the common clock.

    ready is when the launch call returned, lag what start then takes at most; dur is a collective's transfer.
    previous and awaited are the operations (places) that must have ended; call is -1 for no collective. legs:
    by place, the calls that it takes part in, and those that it waits for.
    awaited is as the profiler recorded it, or mined where it recorded no waits of streams; mined is what the
    recordings show. waits are the host's, for its own operations. delay is what starts take beyond (n,).
    held: whether its stream held it back for an event that is not known.
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
    floor: np.ndarray
    delay: np.ndarray
    held: np.ndarray
    awaited: Waits
    legs: Mapping[int, Legs]
    mined: Waits = ()
    waits: tuple[HostWait, ...] = ()

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
    """Start and end (n,) of every rank's operations, and what held each start.

    held_by: whether that was the host, and which operation's end, UNKNOWN for a launch that waited for none.
    latest_of: by rank and place of a collective, rank and place of the one that came last.
    """

    start: dict[int, list[float]]
    end: dict[int, list[float]]
    held_by: dict[int, list[tuple[bool, int]]]
    latest_of: dict[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Step:
    """One step of all ranks, ready to be replayed.

    spill_end: where GPU work of the step before reaches into it, the end of that on all GPUs, from which the
    length counts; a rank begins where that work ends on its own GPU. None: from the first begin on.
    """

    number: int
    ranks: dict[int, Played]
    spill_end: float | None = None

    @property
    def spills(self) -> bool:
        return self.spill_end is not None

    @property
    def begin(self) -> float:
        return min(played.begin for played in self.ranks.values())

    @property
    def since(self) -> float:
        return self.begin if self.spill_end is None else self.spill_end

    @property
    def recorded_ns(self) -> float:
        return max(float(played.end.max()) for played in self.ranks.values()) - self.since

    @property
    def size(self) -> int:
        return sum(len(played.rows) for played in self.ranks.values())

    def changed(self, change: Callable[[Played], Played]) -> Step:
        return replace(self, ranks={rank: change(played) for rank, played in self.ranks.items()})


def steps_of(together: Together) -> list[Step]:
    """Every step that all ranks recorded with launches, without dependencies across streams."""
    steps = []
    for number in together.steps:
        of_ranks = (_played(together, index, number) for index in range(len(together.works)))
        ranks = {played.rank: played for played in of_ranks if played is not None}
        if len(ranks) == len(together.works):
            spills = together.window_kind == GPU_STEPS and number != together.steps[0]
            steps.append(Step(number, ranks, max(p.begin for p in ranks.values()) if spills else None))
    return steps


def _played(together: Together, index: int, number: int) -> Played | None:
    work, window = together.works[index], together.window(index, number)
    rows = launched_in(together, index, number)
    call_rows = together.calls[index]
    if window is None or not len(rows) or (work.call_end[rows] < 0).any():
        return None
    # How long an unpaired send or receive waits is unknown, so nothing can be said of a step with one.
    if np.isin(rows, call_rows.row[call_rows.loose]).any():
        return None
    origin = together.origin_ns
    start, end, ready = (
        (together.common(index, values[rows]) - origin).astype(float)
        for values in (work.start, work.end, work.call_end)
    )
    call = np.full(len(work), UNKNOWN, dtype=np.int64)
    moved = np.zeros(len(work))
    call[call_rows.row] = np.where(call_rows.last_index != UNKNOWN, call_rows.call, UNKNOWN)
    moved[call_rows.row] = work.end[call_rows.row] - call_rows.all_in
    place = np.full(len(work), UNKNOWN, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    waits = []
    for wait in host_waits(work, rows):
        begin_ns, end_ns = together.common(index, np.array([wait.begin, wait.end])) - origin
        waits.append(wait._replace(begin=float(begin_ns), end=float(end_ns)))
    return Played(
        rank=work.rank,
        begin=float(together.common(index, np.array([window[0]]))[0] - origin),
        rows=rows,
        key=work.key[rows],
        stream=work.stream[rows],
        start=start,
        end=end,
        ready=ready,
        lag=np.minimum(LAUNCH_NS, start - ready),
        dur=np.where(call[rows] != UNKNOWN, moved[rows], end - start),
        call=call[rows],
        previous=_previous(work.stream[rows]),
        floor=_floor(together, index, rows, place),
        delay=np.zeros(len(rows)),
        held=np.isin(rows, work.held),
        awaited=_recorded(work, place, len(rows)),
        legs={int(place[row]): legs for row, legs in call_rows.legs.items() if place[row] >= 0},
        waits=tuple(waits),
    )


def _recorded(work: RankWork, place: np.ndarray, num_places: int) -> Waits:
    """What each operation waits for on other streams within its step; () where no such wait was recorded."""
    waits: list[list[int]] = [[] for _ in range(num_places)]
    for waiting, awaited in place[work.waits].tolist():
        if 0 <= awaited < waiting:
            waits[waiting].append(awaited)
    return tuple(map(tuple, waits)) if len(work.waits) else ()


def _floor(together: Together, index: int, rows: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The end of what an earlier step left on each one's stream, or made it wait for (n,); else -inf."""
    work = together.works[index]
    floor = np.full(len(rows), -np.inf)

    def on_common_clock(end: np.ndarray) -> np.ndarray:
        return (together.common(index, end) - together.origin_ns).astype(float)

    for stream in distinct(work.stream[rows]).tolist():
        first_place = int(np.flatnonzero(work.stream[rows] == stream)[0])
        earlier = (work.stream == stream) & (work.start < work.start[rows[first_place]])
        if earlier.any():
            floor[first_place] = on_common_clock(work.end[earlier].max(keepdims=True))[0]
    waits = work.waits[(place[work.waits[:, 0]] >= 0) & (place[work.waits[:, 1]] < 0)]
    np.maximum.at(floor, place[waits[:, 0]], on_common_clock(work.end[waits[:, 1]]))
    return floor


def _previous(stream: np.ndarray) -> np.ndarray:
    """The place of each operation's predecessor on its stream (n,), -1 for none."""
    order = np.argsort(stream, kind="stable")
    previous = np.full(len(stream), -1, dtype=np.int64)
    same = stream[order][1:] == stream[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def signature(played: Played) -> bytes:
    """Equal for ranks and steps that launch the same operations on the same streams."""
    # Stream numbers differ between ranks and runs, their order of use does not.
    _, streams = np.unique(played.stream, return_inverse=True)
    return np.stack([streams.ravel(), played.call != UNKNOWN], axis=1).astype(np.int32).tobytes()


def mined(instances: Sequence[Played]) -> Waits:
    """What each operation (n,) waits for on other streams, from instances with one signature."""
    example = instances[0]
    base = np.array([[instance.begin] for instance in instances])
    start, end, ready = (
        np.stack([getattr(instance, name) for instance in instances]) - base
        for name in ("start", "end", "ready")
    )
    held = np.stack([instance.held for instance in instances])
    before_end = np.where(example.previous >= 0, end[:, example.previous], -np.inf)
    free = start - np.maximum(ready, before_end)
    waits: list[list[int]] = [[] for _ in range(len(example.stream))]
    for stream in distinct(example.stream).tolist():
        places = np.flatnonzero(example.stream == stream)
        asked = np.flatnonzero(example.stream != stream)
        earlier = np.searchsorted(places, asked)
        # Only what had ended in every instance can be what an operation waits for.
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
    return tuple(map(tuple, waits))


def with_dependencies(groups: Sequence[Sequence[Step]]) -> list[list[Step]]:
    """The steps with their dependencies: recorded, or mined over all groups with the same operations."""
    by_signature: dict[bytes, list[Played]] = {}
    for steps in groups:
        for step in steps:
            for played in step.ranks.values():
                by_signature.setdefault(signature(played), []).append(played)
    mined_waits = {name: mined(instances) for name, instances in by_signature.items()}

    def with_waits(played: Played) -> Played:
        waits = mined_waits[signature(played)]
        return replace(played, awaited=played.awaited or waits, mined=waits)

    return [[step.changed(with_waits) for step in steps] for steps in groups]


def with_mined(step: Step) -> Step | None:
    """The step with what was mined beside what was recorded; None where that adds nothing."""

    def with_both(played: Played) -> Played:
        pairs = zip(played.awaited, played.mined, strict=True)
        return replace(
            played, awaited=tuple(tuple(sorted({*waits, *more_waits})) for waits, more_waits in pairs)
        )

    def num_waits(step: Step) -> int:
        return sum(len({*waits}) for played in step.ranks.values() for waits in played.awaited)

    with_all = step.changed(with_both)
    return with_all if num_waits(with_all) > num_waits(step) else None


def with_delays(step: Step, most_ns: float = DELAY_NS) -> Step:
    """The step with what each operation's start takes beyond all that is known, up to most_ns, as recorded.

    Event latencies and gaps of the GPU differ by a few us, which thousands of operations make ms. Longer ones
    are kernels that found no room on the GPU, or another program on it.
    """

    def with_delay(played: Played) -> Played:
        expected_ns = np.maximum(played.ready + played.lag, played.floor + STREAM_NS)
        queued = played.previous >= 0
        expected_ns[queued] = np.maximum(expected_ns[queued], played.end[played.previous[queued]] + STREAM_NS)
        for place, awaited in enumerate(played.awaited):
            for operation in awaited:
                expected_ns[place] = max(expected_ns[place], played.end[operation] + STREAM_NS)
        return replace(played, delay=np.clip(played.start - expected_ns, 0, most_ns))

    return step.changed(with_delay)


def play(step: Step) -> Outcome | None:
    """The step from its launches; None where the orders of collectives contradict each other."""
    outcome = Outcome({}, {}, {}, {})
    legs = [legs for played in step.ranks.values() for legs in played.legs.values()]
    missing = Counter(call for entered, _ in legs for call in entered)
    latest: dict[int, tuple[float, int, int]] = {}
    tasks = [task for played in step.ranks.values() for task in _tasks(played, outcome, missing, latest)]
    previous, positions = None, list[object]()
    while positions != previous:
        previous, positions = positions, [next(task, None) for task in tasks]
    return outcome if all(position is None for position in positions) else None


def _tasks(
    played: Played, outcome: Outcome, missing: Counter[int], latest: dict[int, tuple[float, int, int]]
) -> list[Iterator[object]]:
    """The host and the streams of a rank; each goes on as far as it can, then yields where it is held up.

    missing: how many operations must still enter a call; latest: (start, rank, place) of the last so far.
    """
    num_places = len(played.rows)
    start = outcome.start[played.rank] = [math.nan] * num_places
    end = outcome.end[played.rank] = [math.nan] * num_places
    held_by: list[tuple[bool, int]] = []
    outcome.held_by[played.rank] = held_by
    launched_ns: list[float] = []
    dur, floor, delay = np.maximum(played.dur, 0).tolist(), played.floor.tolist(), played.delay.tolist()
    previous, awaited = played.previous.tolist(), played.awaited or ((),) * num_places

    def host() -> Iterator[object]:
        waits = {wait.place: wait for wait in played.waits}
        later_ns, holder = 0.0, UNKNOWN  # what the host's waits add, and the last that held it
        for place, ready_ns in enumerate((played.ready + played.lag).tolist()):
            if wait := waits.get(place):
                while math.isnan(end[wait.on]):
                    yield place
                arrives, ended_ns = wait.begin + later_ns, end[wait.on] + wait.lag_ns
                later_ns = max(arrives, ended_ns) - wait.end
                holder = wait.on if ended_ns > arrives else holder
            launched_ns.append(ready_ns + later_ns)
            held_by.append((True, holder))

    def stream(number: int) -> Iterator[object]:
        for place in np.flatnonzero(played.stream == number).tolist():
            blockers = [op for op in (previous[place], *awaited[place]) if op >= 0]
            while len(launched_ns) <= place or any(math.isnan(end[op]) for op in blockers):
                yield place, "launched"
            start_ns = max(launched_ns[place], floor[place] + STREAM_NS)
            for op in blockers:
                if end[op] + STREAM_NS > start_ns:
                    start_ns, held_by[place] = end[op] + STREAM_NS, (False, op)
            start[place] = all_in_ns = start_ns + delay[place]
            arrival = start[place], played.rank, place
            entered, waits = played.legs.get(place, ((), ()))
            for call in entered:
                missing[call] -= 1
                latest[call] = max(latest.get(call, arrival), arrival)
            while any(missing[call] for call in waits):
                yield place, "started"
            if waits:
                all_in_ns, last_rank, last_place = max(latest[call] for call in waits)
                outcome.latest_of[played.rank, place] = last_rank, last_place
            end[place] = all_in_ns + dur[place]

    return [host(), *(stream(number) for number in distinct(played.stream).tolist())]


def error_share(step: Step, outcome: Outcome) -> float:
    """How far the end of the replay lies from the recorded one on the worst rank, as a share of the step."""
    errors = [abs(max(outcome.end[rank]) - played.end.max()) for rank, played in step.ranks.items()]
    return float(max(errors)) / step.recorded_ns


def length_ms(step: Step, outcome: Outcome | None = None) -> float:
    """Length of the step from its begin to the last end over ranks, in ms; NaN where it cannot be played."""
    outcome = outcome or play(step)
    return float("nan") if outcome is None else (max(map(max, outcome.end.values())) - step.since) / 1e6


def hosts_as_others(step: Step, fixed: Sequence[int]) -> Step | None:
    """The step with the hosts of these ranks, and their entry, as the median of the others.

    Of others that launch the same operations, else at their pace but never later than recorded.
    """
    peers = [played for rank, played in step.ranks.items() if rank not in fixed]
    ranks = dict(step.ranks)
    for rank in fixed:
        played = ranks[rank]
        alike = [peer for peer in peers if signature(peer) == signature(played)]
        models = alike or peers
        begin = robust.median([peer.begin for peer in (models if step.spills else peers)])
        busy = usual_pace(played.busy, [peer.busy for peer in models])
        if busy is None:
            return None
        ready = begin + busy
        if not alike:
            ready = np.minimum(ready, played.begin + played.busy)
        # A host whose launches wait for nothing: each wait is over as it begins, after the launch before it.
        launched = [(wait, float(ready[wait.place - 1])) for wait in played.waits]
        ranks[rank] = replace(
            played,
            begin=begin,
            ready=ready,
            floor=played.floor + (begin - played.begin),
            waits=tuple(wait._replace(begin=time_ns, end=time_ns) for wait, time_ns in launched),
        )
    return replace(step, ranks=ranks)


def entry_as_others(step: Step, rank: int) -> Step:
    """The step with this rank entering it when the others do, its host otherwise as recorded."""
    played = step.ranks[rank]
    earlier = played.begin - robust.median([p.begin for p in step.ranks.values() if p is not played])
    moved = replace(
        played,
        begin=played.begin - earlier,
        ready=played.ready - earlier,
        floor=played.floor - earlier,
        waits=tuple(w._replace(begin=w.begin - earlier, end=w.end - earlier) for w in played.waits),
    )
    return replace(step, ranks={**step.ranks, rank: moved})


def hosts_ready(step: Step) -> Step:
    """The step with everything launched at its begin: what the GPUs alone need."""

    def ready(played: Played) -> Played:
        begin = played.begin if step.spills else step.begin
        floor = played.floor if step.spills else np.full(len(played.floor), -np.inf)
        return replace(played, begin=begin, ready=np.full(len(played.ready), begin), floor=floor, waits=())

    return step.changed(ready)


def shorter(step: Step, less: Mapping[int, np.ndarray]) -> Step:
    """The step with operations shortened: rank -> ns less, by place (n,)."""
    return step.changed(
        lambda played: replace(played, dur=np.maximum(played.dur - less.get(played.rank, 0), 0))
    )
