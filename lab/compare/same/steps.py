"""Runs of one training program against each other: the first tensor of its first steps whose bits differ.

`lab run replay` records them, as checksums by run, rank, step and repeat. Every run is compared with the
first, every repeat with its step, replicas with each other. Each comparison stops at its own first place; the
first of all is the cause, and the rest follow from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from lab.compare.same.places import Key, keyed, majority, place_of, same_bits
from lab.compare.same.places import Place as PlaceOfRow
from lab.compare.same.sources import source_of
from lab.core.words import first_few, plural
from lab.errors import BadDataError
from lab.workload.recorder.format import Recording, Row, files_of, read

Outcome = Literal["bitwise", "run-to-run", "machine-to-machine", "input pipeline", "nothing seen"]
# Whose bits say nothing of an order: they may come from anywhere before.
GIVEN = ("random", "weight", "buffer", "input")
BITS_OF = attrgetter("phase", "kind", "module", "op", "out", "node", "dtype", "shape")
Rows = dict[Key, Row]


class Record(NamedTuple):
    """One rank of one run, its rows in their order by (step, attempt); attempt 0 is the program's own."""

    run: str
    recording: Recording
    attempts: dict[tuple[int, int], Rows]

    @classmethod
    def of(cls, run: str, recording: Recording) -> Record:
        attempts: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in recording.rows:
            attempts[row.step, row.attempt].append(row)
        return cls(run, recording, {name: keyed(rows, BITS_OF) for name, rows in attempts.items()})

    @property
    def rank(self) -> int:
        return self.recording.rank

    @property
    def name(self) -> str:
        return f"{self.run}, rank {self.rank}"

    @property
    def replicated(self) -> bool:
        return bool(self.recording.meta.get("replicated"))

    @property
    def machine(self) -> tuple[str, ...]:
        return tuple(str(self.recording.meta.get(name, "")) for name in ("host", "device", "uuid"))

    def steps(self) -> list[int]:
        return sorted({step for step, attempt in self.attempts if attempt == 0})


Runs = Mapping[str, Mapping[int, Record]]


class Place(PlaceOfRow, kw_only=True):
    """The first place where a run differs from another, or a repeat from its step.

    index: of the row in its step. between: what was compared. equal_inputs: the inputs had the same bits, so
    the difference was made here; None: the inputs of this place are not recorded. absent: the second did not
    have it. inputs_of: of a collective, the ranks whose inputs differed; outputs_of: those whose output did,
    also of a gradient before the update; of `ranks` that have a record of it. inherited: by a collective,
    from another rank. why, switch: of a known source.
    """

    rank: int
    index: int
    between: tuple[str, str]
    comparison: Literal["runs", "repeats", "ranks"] = msgspec.field(name="compared")
    equal_inputs: bool | None = None
    absent: bool = False
    inputs_of: tuple[int, ...] = msgspec.field(default=(), name="inputs_differ_on")
    outputs_of: tuple[int, ...] = msgspec.field(default=(), name="outputs_differ_on")
    ranks: int = 0
    inherited: bool = False
    switch: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All that the records say. `places`: of every comparison that differs, the earliest first."""

    outcome: Outcome
    first_place: Place | None
    places: list[Place]
    runs: int
    ranks: int
    rows: int
    repeats: int
    recorded: list[int]  # numbers of steps that records have, the fewest first
    worlds: int  # different numbers of ranks of a run
    same_batches: bool = False  # the batches of the runs are the same in another order
    # Generators whose state differed when the first step that differs began; else the first step.
    random_differs: list[str] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)  # runs that agree in all

    @property
    def steps(self) -> int:
        return self.recorded[0] if self.recorded else 0

    @property
    def repeats_agree(self) -> bool:
        return self.repeats > 0 and not any(place.comparison == "repeats" for place in self.places)


def gather(folders: Iterable[tuple[str, Path]]) -> tuple[list[Record], list[str]]:
    """The records of runs by their names, and what is missing. Raises BadDataError without any."""
    records: list[Record] = []
    problems: list[str] = []
    folder = Path()
    for name, folder in folders:
        of_run = []
        for path in files_of(folder):
            try:
                of_run.append(Record.of(name, read(path)))
            except BadDataError as error:
                problems.append(f"{name}: {path.name}: {error.problem}")
        if not of_run:
            problems.append(f"{name}: no record of it")
            continue
        absent = sorted({*range(max(r.recording.world for r in of_run))} - {r.rank for r in of_run})
        if absent:
            numbers = first_few([str(rank) for rank in absent], 16)
            problems.append(f"{name}: no record of {plural(len(absent), 'rank')}: {numbers}")
        records += of_run
    if not records:
        raise BadDataError(
            "no record of bits", location=folder, fix="see the steps' logs: did a model train?"
        )
    return records, problems + [f"{r.name}: {text}" for r in records for text in r.recording.lacks]


def folders_of(replay: Path, prefix: str = "") -> list[tuple[str, Path]]:
    """The folder of each run in a replay's folder, by its name; a folder without any is one itself."""
    steps = sorted(step for step in (replay / "steps").glob("*") if step.is_dir())
    return [(prefix + folder.resolve().name, folder) for folder in steps or [replay]]


def judge_steps(records: Sequence[Record]) -> Verdict:
    """Compare all. Pure."""
    runs: dict[str, dict[int, Record]] = defaultdict(dict)
    for record in records:
        runs[record.run][record.rank] = record
    places = [*_between_runs(runs), *_between_repeats(records), *_between_ranks(runs)]
    places.sort(key=_order)
    for place in places:
        made_here = place.equal_inputs is not False and place.kind in ("op", "comm")
        source = source_of(place.op) if made_here else None
        place.explanation, place.switch = (source.reason, source.switch) if source else (None, None)
    # A record of inputs alone is equal to any other: it must not pass as bitwise.
    is_seen = any(row.kind not in GIVEN for record in records for row in record.recording.rows)
    first_place = places[0] if places and is_seen else None
    groups = _groups(runs)
    all_ranks = {record.rank for record in records}
    ranks, step = ({first_place.rank}, first_place.step) if first_place else (all_ranks, 1)
    return Verdict(
        outcome=_outcome(first_place, places, runs, groups) if is_seen else "nothing seen",
        first_place=first_place,
        places=places,
        runs=len(runs),
        ranks=len(all_ranks),
        rows=sum(len(record.recording.rows) for record in records),
        repeats=sum(attempt > 0 for record in records for _, attempt in record.attempts),
        recorded=sorted({int(record.recording.end.get("steps", 0)) for record in records}),
        worlds=len({max(r.recording.world for r in of_run.values()) for of_run in runs.values()}),
        same_batches=_same_batches(records),
        random_differs=_random_differs([r for r in records if r.rank in ranks], step),
        groups=groups,
    )


def _order(place: Place) -> tuple[int, ...]:
    """Sort key: step and place, what came from another rank last; then whether it was made there."""
    in_place = (place.equal_inputs is False, place.comparison == "ranks", place.rank)
    return (place.step, place.inherited, place.index, *in_place)


def _is_random_state(row: Row) -> bool:
    return row.kind == "random"


def _is_given(row: Row) -> bool:
    return row.kind in GIVEN


def _is_given_or_of_a_bucket(row: Row) -> bool:
    """DDP makes its buckets anew after the first backward: its copies and collectives then differ rightly."""
    of_a_bucket = row.kind == "op" and row.phase == "bwd" and not row.module
    return row.kind in (*GIVEN, "comm", "reduced", "used") or of_a_bucket


def _first_difference(
    base: Rows, head: Rows, ignore: Callable[[Row], bool], facts: Mapping[str, Any], *, strict: bool = True
) -> Place | None:
    """The first row that differs. strict: a row that only one side has is a difference."""
    for index, (key, row) in enumerate(base.items()):
        partner = head.get(key)
        if ignore(row) or (partner is None and not strict):
            continue
        if partner is None:
            return place_of(Place, row, index=index, absent=True, **facts)
        if not same_bits(row, partner):
            # What draws random numbers often writes into memory that nothing has written before.
            comparable = (row.in_ck or partner.in_ck) and not row.random
            equal_inputs = row.in_ck == partner.in_ck if comparable else None
            return place_of(Place, row, index=index, equal_inputs=equal_inputs, **facts)
    for index, (key, row) in enumerate(head.items()):
        if strict and key not in base and not ignore(row):
            return place_of(Place, row, index=index, absent=True, **facts)
    return None


def _between_runs(runs: Runs) -> Iterable[Place]:
    (base_run, base_ranks), *head_runs = runs.items()
    for run, ranks in head_runs:
        for rank in sorted(ranks.keys() & base_ranks.keys()):
            base, head = base_ranks[rank].attempts, ranks[rank].attempts
            for step in sorted(step for step, attempt in base.keys() & head.keys() if not attempt):
                facts = {"rank": rank, "between": (base_run, run), "comparison": "runs"}
                # A generator may differ without having been drawn from; only what was computed counts.
                if place := _first_difference(base[step, 0], head[step, 0], _is_random_state, facts):
                    _compare_ranks(place, runs)
                    yield place
                    break


def _compare_ranks(place: Place, runs: Runs) -> None:
    """Whose inputs of a collective differed, and whose outputs: what one rank gave reaches all others."""
    if place.kind not in ("comm", "used") or place.absent:
        return
    base, head = (runs[run] for run in place.between)
    attempt = place.step, 0
    key = list(base[place.rank].attempts[attempt])[place.index]
    pairs = {}
    for rank in sorted(base.keys() & head.keys()):
        a, b = (side[rank].attempts.get(attempt, {}).get(key) for side in (base, head))
        if a is not None and b is not None:
            pairs[rank] = a, b
    place.outputs_of = tuple(rank for rank, pair in pairs.items() if not same_bits(*pair))
    place.ranks = len(pairs)
    if place.kind == "used":
        return
    place.inputs_of = tuple(rank for rank, (a, b) in pairs.items() if a.in_ck != b.in_ck)
    if place.inputs_of:
        place.equal_inputs, place.inherited = False, place.rank not in place.inputs_of
    elif len(pairs) < base[place.rank].recording.world:
        # Equal inputs of some ranks do not clear a collective: a rank without a record may have given others.
        place.equal_inputs = None


def _between_repeats(records: Sequence[Record]) -> Iterable[Place]:
    """A step against its own repeats: only the step's first forward and backward run again."""
    for record in records:
        for step in record.steps():
            ignore = _is_given_or_of_a_bucket if step == 1 and record.replicated else _is_given
            places: list[Place] = []
            for (number, attempt), rows in record.attempts.items():
                if number == step and attempt:
                    between = (f"{record.run} step {step}", f"its repeat {attempt}")
                    facts = {"rank": record.rank, "between": between, "comparison": "repeats"}
                    place = _first_difference(record.attempts[step, 0], rows, ignore, facts, strict=False)
                    places += [place] if place else []
            if places:
                # The place nearest to the cause is the earliest over all repeats.
                yield min(places, key=lambda place: place.index)
                break


def _between_ranks(runs: Runs) -> Iterable[Place]:
    """Replicas hold the same weights and reduced gradients: a rank that does not is named."""
    for ranks in runs.values():
        replicas = [record for record in ranks.values() if record.replicated]
        shared = set.intersection(*({*record.steps()} for record in replicas)) if replicas else set()
        for step in sorted(shared):
            if place := _odd_replica(replicas, step):
                yield place
                break


def _odd_replica(replicas: Sequence[Record], step: int) -> Place | None:
    """The first tensor of a step in which one of them is not as the most are."""
    tables = [record.attempts[step, 0] for record in replicas]
    for key in (key for key, row in tables[0].items() if row.kind in ("weight", "reduced")):
        checksums = [table[key].ck if key in table else "" for table in tables]
        if len(set(checksums)) > 1:
            # Of two replicas either may be the odd one: the text then names "another rank" only.
            usual, count, _ = majority(checksums)
            odd = next(index for index, checksum in enumerate(checksums) if checksum != usual)
            keys, rank = list(tables[odd]), replicas[odd].rank
            return place_of(
                Place,
                tables[odd].get(key) or tables[0][key],
                rank=rank,
                index=keys.index(key) if key in keys else len(keys),
                between=(f"rank {rank}", "the other ranks" if count > 1 else "another rank"),
                comparison="ranks",
            )
    return None


def _groups(runs: Runs) -> list[list[str]]:
    """Runs that agree in every bit of every rank."""
    groups: dict[int, list[str]] = defaultdict(list)
    for run, ranks in runs.items():
        bits = tuple(
            (rank, step, *(hash((key, row.ck)) for key, row in rows.items() if not _is_random_state(row)))
            for rank, record in sorted(ranks.items())
            for (step, attempt), rows in sorted(record.attempts.items())
            if attempt == 0
        )
        groups[hash(bits)].append(run)
    return list(groups.values())


def _outcome(
    place: Place | None, places: Sequence[Place], runs: Runs, groups: Sequence[Sequence[str]]
) -> Outcome:
    # Order matters: other inputs explain all later rows, and unequal replicas any repeat or run.
    if place is None:
        return "bitwise"
    if place.kind == "input":
        return "input pipeline"
    if place.comparison == "ranks":
        return "machine-to-machine"
    if any(place.comparison == "repeats" for place in places):
        return "run-to-run"  # it differs where nothing but time has changed
    machines = {run: [record.machine for _, record in sorted(ranks.items())] for run, ranks in runs.items()}
    group_of = {run: number for number, group in enumerate(groups) for run in group}
    on_one_machine = any(
        machines[a] == machines[b] and group_of[a] != group_of[b] for a in runs for b in runs
    )
    return "run-to-run" if on_one_machine else "machine-to-machine"


def _same_batches(records: Sequence[Record]) -> bool:
    """Whether runs that differ in order saw the same batches in all."""
    batches: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        rows = (row for row in record.recording.rows if row.kind == "input" and row.attempt == 0)
        batches[record.run].update(row.ck for row in rows)
    bags = list(batches.values())
    return len(bags) > 1 and all(bag == bags[0] for bag in bags) and sum(bags[0].values()) > 1


def _random_differs(records: Sequence[Record], step: int) -> list[str]:
    """The generators whose state differed between runs when this step began, on any rank."""
    states: dict[tuple[str, int], set[str]] = defaultdict(set)
    for record in records:
        for row in record.attempts.get((step, 0), {}).values():
            if row.kind == "random":
                states[row.op, record.rank].add(row.ck)
    return sorted({name for (name, _), checksums in states.items() if len(checksums) > 1})
