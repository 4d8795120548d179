"""From the records of some runs to the first place where bits differ, and the kind of difference. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from lab.rooms.trials.replay.read import Event, Record
from lab.rooms.trials.replay.sources import Source, source_of

Verdict = Literal["bitwise", "run-to-run", "machine-to-machine", "input pipeline", "nothing seen"]
DETERMINISTIC = 100  # attempts from this number on ran with deterministic algorithms
PLACES = {
    "random": "random numbers",
    "weight": "weights",
    "buffer": "buffers",
    "input": "batch",
    "module": "output",
    "op": "operator",
    "ograd": "gradient of the output",
    "grad": "gradient",
    "reduced": "gradient after the reduction",
    "used": "gradient that the update uses",
    "comm": "collective",
}
# Whose bits say nothing of an order: they may come from anywhere before.
GIVEN = ("random", "weight", "buffer", "input")
Key = tuple[str, ...]
Ignore = Callable[[Event], bool]


@dataclass(frozen=True)
class Divergence:
    """The first place where a run differs from another, or a repeat from its step.

    `between`: what was compared. `equal_inputs`: the inputs had the same bits, so the difference was made
    here; None: the inputs of this place are not recorded. `other`: another event stood here in the second.
    `inputs_of`: of a collective, the ranks whose inputs differed; `outputs_of`: those whose output did, also
    of a gradient before the update; of `ranks` that have a record of it. `inherited`: by a collective, from
    another rank.
    """

    step: int
    rank: int
    index: int
    event: Event
    between: tuple[str, str]
    kind: Literal["runs", "repeats", "ranks"]
    equal_inputs: bool | None = None
    other: str = ""
    once: bool = False  # all repeats agree with each other here: only the step itself differs
    inputs_of: tuple[int, ...] = ()
    outputs_of: tuple[int, ...] = ()
    ranks: int = 0
    inherited: bool = False

    @property
    def direction(self) -> str:
        return {"start": "start", "forward": "forward", "backward": "backward"}.get(self.event.p, "update")

    @property
    def source(self) -> Source | None:
        return source_of(self.event.name) if self.event.kind in ("op", "comm") else None


@dataclass(frozen=True)
class Finding:
    """All that the records say. `deterministic`: repeats with deterministic algorithms agreed."""

    verdict: Verdict
    first: Divergence | None
    divergences: list[Divergence]
    repeats_agree: bool | None = None
    deterministic: bool | None = None
    same_batches: bool = False  # the batches of the runs are the same in another order
    # Generators whose state differed when the first step that differs began; else the first step.
    random_differs: list[str] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)  # runs that agree in all
    steps: int = 0
    events: int = 0
    repeats: int = 0


def compare(records: Sequence[Record]) -> Finding:
    """Every run against the first, every repeat against its step, replicas against each other."""
    runs = list(dict.fromkeys(one.run for one in records))
    indexed = {(one.run, one.head.rank): _indexed(one) for one in records}
    by_rank = {key: {rank: i for (run, rank), i in indexed.items() if run == key} for key in runs}
    found = [*_between_runs(by_rank, runs), *_between_repeats(by_rank), *_between_ranks(records)]
    found.sort(key=_order)
    events = sum(len(one.events) for one in records)
    values = sum(any(event.kind not in GIVEN for event in one.events) for one in records)
    attempts = {(one.run, one.head.rank, e.s, e.k) for one in records for e in one.events if e.k}
    common = {
        "divergences": found,
        "repeats_agree": None if not attempts else not any(one.kind == "repeats" for one in found),
        "groups": _groups(by_rank, runs),
        "steps": min((one.end.steps if one.end else 0 for one in records), default=0),
        "events": events,
        "repeats": len({one for one in attempts if one[3] < DETERMINISTIC}),
    }
    if not values:
        return Finding("nothing seen", None, **common)  # type: ignore[arg-type]
    if not found:
        unseeded = sorted(
            {name for rank in by_rank[runs[0]] for name in _random_differs(by_rank, runs, rank, 1)}
        )
        return Finding("bitwise", None, random_differs=unseeded, **common)  # type: ignore[arg-type]
    first = found[0]
    return Finding(
        _verdict(first, found, records),
        first,
        deterministic=_deterministic(records, found),
        same_batches=_same_batches(records),
        random_differs=_random_differs(by_rank, runs, first.rank, first.step),
        **common,  # type: ignore[arg-type]
    )


def _order(one: Divergence) -> tuple[int, int, int, int, int, int]:
    """By step and place, what came from another rank last; equal places by whether it was made there."""
    return (one.step, one.inherited, one.index, one.equal_inputs is False, one.kind == "ranks", one.rank)


# Events of one record by step and attempt, each with its key and its place among its step's


class _Indexed:
    def __init__(self, record: Record) -> None:
        self.record = record
        self.of: dict[tuple[int, int], list[Event]] = {}
        for event in record.events:
            self.of.setdefault((event.s, event.k), []).append(event)

    def steps(self) -> list[int]:
        return sorted({step for step, attempt in self.of if attempt == 0})


def _indexed(record: Record) -> _Indexed:
    return _Indexed(record)


def _keyed(events: Iterable[Event]) -> Iterator[tuple[Key, Event]]:
    seen: Counter[Key] = Counter()
    for event in events:
        key = (event.p, event.kind, event.m, event.name, event.node, event.shape)
        seen[key] += 1
        yield (*key, str(seen[key])), event


def _is_random_state(event: Event) -> bool:
    return event.kind == "random"


def _is_given(event: Event) -> bool:
    return event.kind in GIVEN


def _is_given_or_of_a_bucket(event: Event) -> bool:
    """DDP makes its buckets anew after the first backward: its copies and collectives then differ rightly."""
    of_a_bucket = event.kind == "op" and event.p == "backward" and not event.m
    return event.kind in (*GIVEN, "comm", "reduced", "used") or of_a_bucket


def _first_difference(
    a: Sequence[Event], b: Sequence[Event], *, ignore: Ignore, strict: bool = True
) -> tuple[int, Event, bool | None, str] | None:
    """(place in a, event, whether its inputs were equal, what stood there in b instead).

    strict: an event that only one side has is a difference.
    """
    mine = [(at, key, e) for at, (key, e) in enumerate(_keyed(a)) if not ignore(e)]
    theirs = dict(pair for pair in _keyed(b) if not ignore(pair[1]))
    for at, key, event in mine:
        other = theirs.get(key)
        if other is None:
            if strict:
                return at, event, None, "nothing of that kind"
        elif event.out != other.out:
            # What draws random numbers often writes into memory that nobody has written before.
            comparable = (event.given or other.given) and not event.random
            equal = event.given == other.given if comparable else None
            return at, event, equal, ""
    if strict and len(theirs) > len(mine):
        known = {key for _, key, _ in mine}
        key, event = next((key, e) for key, e in theirs.items() if key not in known)
        place = next((at for at, (one, _) in enumerate(_keyed(b)) if one == key), len(mine))
        return place, event, None, "nothing of that kind"
    return None


def _between_runs(by_rank: dict[str, dict[int, _Indexed]], runs: Sequence[str]) -> list[Divergence]:
    found = []
    for run in runs[1:]:
        for rank, one in by_rank[run].items():
            base = by_rank[runs[0]].get(rank)
            if base is None:
                continue
            for step in sorted({*base.steps()} & {*one.steps()}):
                hit = _first_difference(base.of[step, 0], one.of[step, 0], ignore=_is_random_state)
                if hit is not None:
                    at, event, equal, other = hit
                    one_of = Divergence(step, rank, at, event, (runs[0], run), "runs", equal, other)
                    found.append(_over_ranks(one_of, by_rank))
                    break
    return found


def _over_ranks(one: Divergence, by_rank: dict[str, dict[int, _Indexed]]) -> Divergence:
    """Whose inputs of a collective differed, and whose outputs: what one rank gave reaches all others."""
    if one.event.kind not in ("comm", "used") or one.other:
        return one
    first, second = (by_rank[run] for run in one.between)
    key = _key_of(first[one.rank].of[one.step, 0], one.event)
    pairs = {}
    for rank in sorted(first.keys() & second.keys()):
        sides = [dict(_keyed(side[rank].of.get((one.step, 0), ()))).get(key) for side in (first, second)]
        if sides[0] is not None and sides[1] is not None:
            pairs[rank] = sides[0], sides[1]
    outputs = tuple(rank for rank, (a, b) in pairs.items() if a.out != b.out)
    found = replace(one, outputs_of=outputs, ranks=len(pairs))
    if one.event.kind == "used":
        return found
    inputs = tuple(rank for rank, (a, b) in pairs.items() if a.given != b.given)
    if inputs:
        return replace(found, inputs_of=inputs, equal_inputs=False, inherited=one.rank not in inputs)
    whole = len(pairs) == first[one.rank].record.head.world
    return found if whole else replace(found, equal_inputs=None)


def _key_of(events: Sequence[Event], wanted: Event) -> Key:
    return next(key for key, event in _keyed(events) if event is wanted)


def _between_repeats(by_rank: dict[str, dict[int, _Indexed]]) -> list[Divergence]:
    """A step against its own repeats: only the step's first forward and backward run again."""
    found = []
    for run, ranks in by_rank.items():
        for rank, one in ranks.items():
            for step in one.steps():
                hits = []
                for (number, attempt), events in one.of.items():
                    if number != step or not 0 < attempt < DETERMINISTIC:
                        continue
                    first = step == 1 and one.record.head.replicated
                    ignore = _is_given_or_of_a_bucket if first else _is_given
                    hit = _first_difference(one.of[step, 0], events, ignore=ignore, strict=False)
                    if hit is not None:
                        hits.append((hit, attempt))
                if hits:
                    (at, event, equal, other), attempt = min(hits, key=lambda pair: pair[0][0])
                    between = (f"{run} step {step}", f"its repeat {attempt}")
                    once = _agree_at(one, step, event)
                    found.append(Divergence(step, rank, at, event, between, "repeats", equal, other, once))
                    break
    return found


def _agree_at(one: _Indexed, step: int, event: Event) -> bool:
    """Whether the repeats, two at least, agree with each other where the step itself differs from one."""
    key = _key_of(one.of[step, 0], event)
    repeats = [dict(_keyed(e)) for (n, k), e in one.of.items() if n == step and 0 < k < DETERMINISTIC]
    outs = [table[key].out for table in repeats if key in table]
    return len(outs) > 1 and len(set(outs)) == 1


def _between_ranks(records: Sequence[Record]) -> list[Divergence]:
    """Replicas hold the same weights and reduced gradients: a rank that does not is named."""
    found = []
    for run in dict.fromkeys(one.run for one in records):
        ranks = [one for one in records if one.run == run and one.head.replicated]
        if len(ranks) < 2:
            continue
        keyed = [dict(_places(one)) for one in ranks]
        order = [key for key, _ in _places(ranks[0])]
        for key in order:
            outs = [table[key].out if key in table else () for table in keyed]
            if len(set(outs)) == 1:
                continue
            usual, count = Counter(outs).most_common(1)[0]
            odd = next(at for at, out in enumerate(outs) if out != usual)
            step, index, event = _placed(ranks[odd], key)
            sure = count > 1
            between = (f"rank {ranks[odd].head.rank}", "the other ranks" if sure else "another rank")
            found.append(Divergence(step, ranks[odd].head.rank, index, event, between, "ranks"))
            break
    return found


def _places(record: Record) -> Iterator[tuple[tuple[int, Key], Event]]:
    per_step: dict[int, list[Event]] = {}
    for event in record.events:
        if event.k == 0 and (event.kind in ("weight", "reduced")):
            per_step.setdefault(event.s, []).append(event)
    for step in sorted(per_step):
        for key, event in _keyed(per_step[step]):
            yield (step, key), event


def _placed(record: Record, wanted: tuple[int, Key]) -> tuple[int, int, Event]:
    step, key = wanted
    events = [event for event in record.events if event.s == step and event.k == 0]
    for at, (one, event) in enumerate(_keyed(events)):
        if one == key:
            return step, at, event
    event = next(e for found, e in _places(record) if found == wanted)
    return step, len(events), event


def _groups(by_rank: dict[str, dict[int, _Indexed]], runs: Sequence[str]) -> list[list[str]]:
    """Runs that agree in every bit of every rank."""

    def bits(run: str) -> tuple[object, ...]:
        return tuple(
            (rank, step, tuple((e.kind, e.m, e.name, e.out) for e in one.of[step, 0] if e.kind != "random"))
            for rank, one in sorted(by_rank[run].items())
            for step in one.steps()
        )

    groups: dict[int, list[str]] = {}
    for run in runs:
        groups.setdefault(hash(bits(run)), []).append(run)
    return list(groups.values())


# What kind of difference


def _verdict(first: Divergence, found: Sequence[Divergence], records: Sequence[Record]) -> Verdict:
    if first.event.kind == "input":
        return "input pipeline"
    if first.kind == "ranks":
        return "machine-to-machine"
    if any(one.kind == "repeats" for one in found):
        return "run-to-run"  # it differs where nothing but time has changed
    places = _machines(records)
    if len(set(places.values())) < 2:
        return "run-to-run"
    within = [run for run in places if list(places.values()).count(places[run]) > 1]
    agree = _agreeing(records)
    same_machine_differs = any(
        places[a] == places[b] and agree[a] != agree[b] for a in within for b in within if a < b
    )
    crosses = all(places[one.between[0]] != places[one.between[1]] for one in found if one.kind == "runs")
    return "machine-to-machine" if crosses and not same_machine_differs else "run-to-run"


def _machines(records: Sequence[Record]) -> dict[str, tuple[tuple[str, str, str], ...]]:
    """Per run: host, device and GPU of every rank."""
    found: dict[str, list[tuple[int, tuple[str, str, str]]]] = {}
    for one in records:
        place = (one.head.host, one.head.device, one.head.uuid)
        found.setdefault(one.run, []).append((one.head.rank, place))
    return {run: tuple(place for _, place in sorted(ranks)) for run, ranks in found.items()}


def _agreeing(records: Sequence[Record]) -> dict[str, int]:
    runs = list(dict.fromkeys(one.run for one in records))
    by_rank = {run: {one.head.rank: _indexed(one) for one in records if one.run == run} for run in runs}
    return {run: at for at, group in enumerate(_groups(by_rank, runs)) for run in group}


def _deterministic(records: Sequence[Record], found: Sequence[Divergence]) -> bool | None:
    """Whether the repeats with deterministic algorithms agreed where the others did not."""
    if not any(one.kind == "repeats" for one in found):
        return None
    answers = []
    for record in records:
        one = _indexed(record)
        pair = [one.of.get((1, DETERMINISTIC + at)) for at in range(2)]
        if pair[0] is not None and pair[1] is not None:
            answers.append(
                _first_difference(pair[0], pair[1], ignore=_is_given_or_of_a_bucket, strict=False) is None
            )
    return all(answers) if answers else None


def _batches(record: Record) -> list[tuple[str, ...]]:
    return [event.out for event in record.events if event.kind == "input" and event.k == 0]


def _same_batches(records: Sequence[Record]) -> bool:
    """Whether runs that differ in order saw the same batches in all."""
    per_run: dict[str, Counter[tuple[str, ...]]] = {}
    for one in records:
        per_run.setdefault(one.run, Counter()).update(_batches(one))
    bags = list(per_run.values())
    return len(bags) > 1 and all(bag == bags[0] for bag in bags) and sum(bags[0].values()) > 1


def _random_differs(
    by_rank: dict[str, dict[int, _Indexed]], runs: Sequence[str], rank: int, step: int
) -> list[str]:
    """The generators whose state differed between runs when this step began."""
    states: dict[str, set[tuple[str, ...]]] = {}
    for run in runs:
        one = by_rank[run].get(rank)
        for event in one.of.get((step, 0), []) if one else []:
            if event.kind == "random":
                states.setdefault(event.name, set()).add(event.out)
    return sorted(name for name, seen in states.items() if len(seen) > 1)
