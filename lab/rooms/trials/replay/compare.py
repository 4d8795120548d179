"""Compare the records of some runs: the first place where bits differ, and the kind of difference. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from lab.rooms.trials.replay.sources import Source, source_of
from lab.workload.recorder.format import Recording, Row, majority, numbered, same_bits

Verdict = Literal["bitwise", "run-to-run", "machine-to-machine", "input pipeline", "nothing seen"]
# Whose bits say nothing of an order: they may come from anywhere before.
GIVEN = ("random", "weight", "buffer", "input")
DIRECTIONS = {"start": "start", "fwd": "forward", "bwd": "backward"}
Key = tuple[Any, ...]


class Record(NamedTuple):
    """One rank of one run, its rows by (step, attempt); attempt 0 is the program's own."""

    run: str
    recording: Recording
    attempts: dict[tuple[int, int], list[Row]]

    @classmethod
    def of(cls, run: str, recording: Recording) -> Record:
        attempts: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in recording.rows:
            attempts[row.step, row.attempt].append(row)
        return cls(run, recording, dict(attempts))

    @property
    def rank(self) -> int:
        return self.recording.rank

    @property
    def replicated(self) -> bool:
        return bool(self.recording.meta.get("replicated"))

    @property
    def machine(self) -> tuple[str, ...]:
        return tuple(self.fact(name) for name in ("host", "device", "uuid"))

    def fact(self, name: str) -> str:
        """One fact of the record's head, "" where it has none."""
        return str(self.recording.meta.get(name, ""))

    def steps(self) -> list[int]:
        return sorted({step for step, attempt in self.attempts if attempt == 0})


Runs = dict[str, dict[int, Record]]


@dataclass(frozen=True)
class Divergence:
    """The first place where a run differs from another, or a repeat from its step.

    between: what was compared. equal_inputs: the inputs had the same bits, so the difference was made
    here; None: the inputs of this place are not recorded. absent: the second did not have it.
    inputs_of: of a collective, the ranks whose inputs differed; outputs_of: those whose output did, also
    of a gradient before the update; of `ranks` that have a record of it. inherited: by a collective, from
    another rank.
    """

    step: int
    rank: int
    index: int
    row: Row
    between: tuple[str, str]
    kind: Literal["runs", "repeats", "ranks"]
    equal_inputs: bool | None = None
    absent: bool = False
    inputs_of: tuple[int, ...] = ()
    outputs_of: tuple[int, ...] = ()
    ranks: int = 0
    inherited: bool = False

    @property
    def direction(self) -> str:
        return DIRECTIONS.get(self.row.phase, "update")

    @property
    def source(self) -> Source | None:
        return source_of(self.row.op) if self.row.kind in ("op", "comm") else None


@dataclass(frozen=True)
class Finding:
    """All that the records say."""

    verdict: Verdict
    first_place: Divergence | None
    divergences: list[Divergence]
    same_batches: bool = False  # the batches of the runs are the same in another order
    # Generators whose state differed when the first step that differs began; else the first step.
    random_differs: list[str] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)  # runs that agree in all
    steps: int = 0
    rows: int = 0
    repeats: int = 0

    @property
    def repeats_agree(self) -> bool:
        return self.repeats > 0 and not any(place.kind == "repeats" for place in self.divergences)


def compare(records: Sequence[Record]) -> Finding:
    """Every run against the first, every repeat against its step, replicas against each other."""
    runs: Runs = defaultdict(dict)
    for record in records:
        runs[record.run][record.rank] = record
    divergences = [*_between_runs(runs), *_between_repeats(records), *_between_ranks(runs)]
    # Each comparison stops at its own first place; the first of all is the cause, the rest follow from it.
    divergences.sort(key=_order)
    place = divergences[0] if divergences else None
    groups = _groups(runs)
    # A record of inputs alone is equal to any other: it must not pass as bitwise.
    is_seen = any(row.kind not in GIVEN for record in records for row in record.recording.rows)
    if not is_seen:
        place = None
    ranks = [place.rank] if place else sorted({record.rank for record in records})
    return Finding(
        _verdict(place, divergences, runs, groups) if is_seen else "nothing seen",
        place,
        divergences,
        _same_batches(records),
        sorted({name for rank in ranks for name in _random_differs(runs, rank, place.step if place else 1)}),
        groups,
        steps=min((int(record.recording.end.get("steps", 0)) for record in records), default=0),
        rows=sum(len(record.recording.rows) for record in records),
        repeats=sum(attempt > 0 for record in records for _, attempt in record.attempts),
    )


def _order(place: Divergence) -> tuple[int, ...]:
    """Sort key: step and place, what came from another rank last; then whether it was made there."""
    in_place = (place.equal_inputs is False, place.kind == "ranks", place.rank)
    return (place.step, place.inherited, place.index, *in_place)


def _keyed(rows: Iterable[Row]) -> dict[Key, Row]:
    """The rows of one attempt, in their order."""
    return dict(numbered(rows, _key))


def _key(row: Row) -> Key:
    return (row.phase, row.kind, row.module, row.op, row.out, row.node, row.dtype, row.shape)


def _is_random_state(row: Row) -> bool:
    return row.kind == "random"


def _is_given(row: Row) -> bool:
    return row.kind in GIVEN


def _is_given_or_of_a_bucket(row: Row) -> bool:
    """DDP makes its buckets anew after the first backward: its copies and collectives then differ rightly."""
    of_a_bucket = row.kind == "op" and row.phase == "bwd" and not row.module
    return row.kind in (*GIVEN, "comm", "reduced", "used") or of_a_bucket


def _first_difference(
    a: Sequence[Row], b: Sequence[Row], ignore: Callable[[Row], bool], place: Divergence, *, strict: bool
) -> Divergence | None:
    """`place` with the first row that differs. strict: a row that only one side has is a difference."""
    base, head = _keyed(a), _keyed(b)
    for index, (key, row) in enumerate(base.items()):
        partner = head.get(key)
        if ignore(row) or (partner is None and not strict):
            continue
        if partner is None:
            return replace(place, index=index, row=row, absent=True)
        if not same_bits(row, partner):
            # What draws random numbers often writes into memory that nothing has written before.
            comparable = (row.in_ck or partner.in_ck) and not row.random
            equal_inputs = row.in_ck == partner.in_ck if comparable else None
            return replace(place, index=index, row=row, equal_inputs=equal_inputs)
    for index, (key, row) in enumerate(head.items()):
        if strict and key not in base and not ignore(row):
            return replace(place, index=index, row=row, absent=True)
    return None


def _between_runs(runs: Runs) -> Iterable[Divergence]:
    (base_run, base_ranks), *head_runs = runs.items()
    for run, ranks in head_runs:
        for rank, record in ranks.items():
            base = base_ranks.get(rank)
            for step in sorted({*base.steps()} & {*record.steps()}) if base else ():
                assert base is not None
                pair = base.attempts[step, 0], record.attempts[step, 0]
                place = Divergence(step, rank, 0, pair[0][0], (base_run, run), "runs")
                # A generator may differ without having been drawn from; only what was computed counts.
                if differing := _first_difference(*pair, _is_random_state, place, strict=True):
                    yield _over_ranks(differing, runs)
                    break


def _over_ranks(place: Divergence, runs: Runs) -> Divergence:
    """Whose inputs of a collective differed, and whose outputs: what one rank gave reaches all others."""
    if place.row.kind not in ("comm", "used") or place.absent:
        return place
    base, head = (runs[run] for run in place.between)
    rows = _keyed(base[place.rank].attempts[place.step, 0])
    key = next(key for key, row in rows.items() if row is place.row)
    pairs = {}
    for rank in sorted(base.keys() & head.keys()):
        a, b = (_keyed(side[rank].attempts.get((place.step, 0), ())).get(key) for side in (base, head))
        if a is not None and b is not None:
            pairs[rank] = a, b
    outputs = tuple(rank for rank, pair in pairs.items() if not same_bits(*pair))
    placed = replace(place, outputs_of=outputs, ranks=len(pairs))
    if place.row.kind == "used":
        return placed
    inputs = tuple(rank for rank, (a, b) in pairs.items() if a.in_ck != b.in_ck)
    if inputs:
        return replace(placed, inputs_of=inputs, equal_inputs=False, inherited=place.rank not in inputs)
    # Equal inputs of some ranks do not clear a collective: a rank without a record may have given others.
    all_there = len(pairs) == base[place.rank].recording.world
    return placed if all_there else replace(placed, equal_inputs=None)


def _between_repeats(records: Sequence[Record]) -> Iterable[Divergence]:
    """A step against its own repeats: only the step's first forward and backward run again."""
    for record in records:
        for step in record.steps():
            ignore = _is_given_or_of_a_bucket if step == 1 and record.replicated else _is_given
            program = record.attempts[step, 0]
            places: list[Divergence] = []
            for (number, attempt), rows in record.attempts.items():
                if number == step and attempt:
                    between = (f"{record.run} step {step}", f"its repeat {attempt}")
                    place = Divergence(step, record.rank, 0, program[0], between, "repeats")
                    places += filter(None, [_first_difference(program, rows, ignore, place, strict=False)])
            if places:
                # The place nearest to the cause is the earliest over all repeats.
                yield min(places, key=lambda place: place.index)
                break


def _between_ranks(runs: Runs) -> Iterable[Divergence]:
    """Replicas hold the same weights and reduced gradients: a rank that does not is named."""
    for ranks in runs.values():
        replicas = [record for record in ranks.values() if record.replicated]
        tables = [_of_replicas(record) for record in replicas]
        for key in tables[0] if len(tables) > 1 else ():
            checksums = [table[key].ck if key in table else "" for table in tables]
            if len(set(checksums)) == 1:
                continue
            # Of two replicas either may be the odd one: the text then names "another rank" only.
            usual, count, _ = majority(checksums)
            odd = next(index for index, checksum in enumerate(checksums) if checksum != usual)
            row = tables[odd].get(key) or tables[0][key]
            rows = replicas[odd].attempts[key[0], 0]
            index = next((number for number, other in enumerate(rows) if other is row), len(rows))
            between = (f"rank {replicas[odd].rank}", "the other ranks" if count > 1 else "another rank")
            yield Divergence(key[0], replicas[odd].rank, index, row, between, "ranks")
            break


def _of_replicas(record: Record) -> dict[Key, Row]:
    return {
        (step, *key): row
        for step in record.steps()
        for key, row in _keyed(record.attempts[step, 0]).items()
        if row.kind in ("weight", "reduced")
    }


def _groups(runs: Runs) -> list[list[str]]:
    """Runs that agree in every bit of every rank."""
    groups: dict[int, list[str]] = defaultdict(list)
    for run, ranks in runs.items():
        bits = tuple(
            (rank, step, *((r.kind, r.module, r.op, r.ck) for r in rows if not _is_random_state(r)))
            for rank, record in sorted(ranks.items())
            for (step, attempt), rows in sorted(record.attempts.items())
            if attempt == 0
        )
        groups[hash(bits)].append(run)
    return list(groups.values())


def _verdict(
    place: Divergence | None, divergences: Sequence[Divergence], runs: Runs, groups: Sequence[Sequence[str]]
) -> Verdict:
    # Order matters: other inputs explain all later rows, and unequal replicas any repeat or run.
    if place is None:
        return "bitwise"
    if place.row.kind == "input":
        return "input pipeline"
    if place.kind == "ranks":
        return "machine-to-machine"
    if any(place.kind == "repeats" for place in divergences):
        return "run-to-run"  # it differs where nothing but time has changed
    machines = {run: [record.machine for _, record in sorted(ranks.items())] for run, ranks in runs.items()}
    group_of = {run: number for number, group in enumerate(groups) for run in group}
    same_machine_differs = any(
        machines[a] == machines[b] and group_of[a] != group_of[b] for a in runs for b in runs if a < b
    )
    crosses = all(machines[d.between[0]] != machines[d.between[1]] for d in divergences if d.kind == "runs")
    return "machine-to-machine" if crosses and not same_machine_differs else "run-to-run"


def _same_batches(records: Sequence[Record]) -> bool:
    """Whether runs that differ in order saw the same batches in all."""
    batches: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        rows = (row for row in record.recording.rows if row.kind == "input" and row.attempt == 0)
        batches[record.run].update(row.ck for row in rows)
    bags = list(batches.values())
    return len(bags) > 1 and all(bag == bags[0] for bag in bags) and sum(bags[0].values()) > 1


def _random_differs(runs: Runs, rank: int, step: int) -> Iterable[str]:
    """The generators whose state differed between runs when this step began."""
    states: dict[str, set[str]] = defaultdict(set)
    for ranks in runs.values():
        for row in ranks[rank].attempts.get((step, 0), ()) if rank in ranks else ():
            if row.kind == "random":
                states[row.op].add(row.ck)
    return (name for name, checksums in states.items() if len(checksums) > 1)
