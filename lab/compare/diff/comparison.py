"""Two recordings compared: rank by rank, per unit of work, with what can be said for sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from lab.compare.diff import evidence as rows_of
from lab.compare.diff.around import Differs, differences, unknown
from lab.compare.diff.blocks import MOST, Block, common, replaced
from lab.compare.diff.detail import at_common_detail, unlike_edges
from lab.compare.diff.evidence import Evidence, File, files
from lab.compare.diff.judge import (
    BELOW,
    EXACT,
    FLOOR_SHARE,
    ONE_PAIR,
    PROVEN,
    SUGGESTED,
    between_is_named,
    calls_differ,
    edge_of,
    floor_ns_of,
    gap_is_large,
    incomparable,
    judge_by_repeats,
    judge_rows,
    time_is_large,
    time_is_named,
    without_times,
)
from lab.compare.diff.modules.groups import (
    Group,
    Placed,
    by_kernel,
    by_module,
    by_op,
    by_phase,
    limits,
    path_at,
    placed,
    places_at,
)
from lab.compare.diff.split import Row, parts_of, split
from lab.compare.idle import CAUSE_WORDS, CAUSES
from lab.compare.side import Side, Work, common_ranks, is_wait, place_text, read_side, step_at, steps_overlap
from lab.compare.units import TIMES, Units, as_a_rule, unit_of, units
from lab.core.words import first_few, plural
from lab.errors import BadDataError, MissingError, UsageError
from lab.perfmodel.communication import communication
from lab.recordings.integrity.words import sentences
from lab.recordings.names import short_dims, short_name

TIMED = ("idle", "exposed_comm", "exposed_copy")
ODD = 5  # sentences about what was odd in a recording
NAMED = 3  # kernels on each side of an exchange
LONGEST = 72  # letters of a kernel's name in a sentence


class Call(msgspec.Struct, kw_only=True):
    """An API function's calls per unit on both sides."""

    name: str
    n_a: float
    n_b: float


class Finding(msgspec.Struct, kw_only=True):
    """A change that is named: its sentence, ns per unit (None for counts of calls), how sure it is, and the
    rows of the recordings that it rests on."""

    text: str
    ns: float | None
    kind: str
    confidence: str
    where: str = ""  # phase and modules around it
    rows: list[int] = []  # of Comparison.rows
    call: str = ""  # the API function of a change of calls
    evidence: list[Evidence] = []


class Replayed(msgspec.Struct, kw_only=True):
    """One finding's verdict. The changes are B - A per unit, None where a mode ran other kernels."""

    finding: int
    verdict: str
    reason: str
    recorded_ns: float
    hot_ns: float | None = None
    cold_ns: float | None = None
    in_order_ns: float | None = None


class Comparison(msgspec.Struct, kw_only=True):
    """One rank's change from A to B, everything per unit. Times without `_a` or `_b` are changes, B - A.

    span = (kernel sum - overlap) + idle on each side, so residual_ns, what the classes leave over, is 0. Idle
    time is late + wait + queued + unknown (lab.compare.idle).
    """

    comparable: bool
    reason: str
    rank: int
    unit: str | None
    configuration: str = ""  # of a sweep
    units_a: float = 0
    units_b: float = 0
    delta_kernel_ns: float = 0.0
    parts: dict[str, float] = {}
    span_ns: float = 0.0
    busy_ns: float = 0.0
    idle_ns: float = 0.0
    idle_late_ns: float = 0.0
    idle_wait_ns: float = 0.0
    idle_queued_ns: float = 0.0
    idle_unknown_ns: float = 0.0
    overlap_ns: float = 0.0
    compute_ns: float = 0.0
    exposed_comm_ns: float = 0.0
    exposed_copy_ns: float = 0.0
    residual_ns: float = 0.0
    a: dict[str, float] = {}
    b: dict[str, float] = {}
    rows: list[Row] = []
    blocks: list[Block] = []
    api: list[Call] = []
    findings: list[Finding] = []
    unnamed: list[str] = []  # large changes of times that one pair cannot tell from noise
    notes: list[str] = []
    own_ns: float = 0.0  # of the span outside exposed communication
    floor_share: float = 0.0  # no smaller change of a duration is named
    floor_ns: float = 0.0  # nor one of fewer ns per unit
    groups: dict[str, list[Group]] = {}  # by phase, module, op, kernel; each adds up to delta_kernel_ns


class Missing(msgspec.Struct, kw_only=True):
    """What one recording lacks: axis gpu, host or ops; place head, tail, hole or all; share of the axis."""

    side: str
    rank: int
    axis: str
    place: str
    share: float | None
    text: str


class Difference(msgspec.Struct, kw_only=True):
    """All ranks of A against B; `shown` is the rank that changed most by itself."""

    a: str
    b: str
    ranks: list[Comparison]
    missing: list[str]
    problems: list[str]
    torn: list[str] = []  # sentences about GPU work that is missing from either side
    blurred: list[str] = []  # the same about launches and operators: rows by op may be wrong
    lacks: list[Missing] = []
    around: list[Differs] = []
    replayed: list[Replayed] | None = None  # of the shown rank's findings; None: not asked for
    replay_notes: list[str] = []
    files: list[File] = []

    @property
    def shown(self) -> Comparison:
        """The one whose time outside communication changed most, if much; else one with findings. Where one
        rank is slower all steps are longer, because the others wait for it."""

        def change(one: Comparison) -> tuple[bool, bool, float]:
            much = abs(one.own_ns) > FLOOR_SHARE * one.a.get("span_ns", 0.0)
            return (much, bool(one.findings), abs(one.own_ns))

        return max(self.ranks, key=change)


@dataclass(frozen=True)
class Pair:
    """One rank of both sides with its units, None where there is no unit; `found` says what changed."""

    a: Work
    b: Work
    of_a: Units | None
    of_b: Units | None
    found: Comparison

    @cached_property
    def placed(self) -> tuple[Placed, Placed]:
        """Both with the place of each operation in the program."""
        assert self.of_a is not None and self.of_b is not None
        return placed(self.a, self.of_a), placed(self.b, self.of_b)


@dataclass(frozen=True)
class Compared:
    """The comparison, and the work of the rank that it shows."""

    difference: Difference
    shown: Pair


def compare(
    a: Path, b: Path, *, repeats_a: Sequence[Path] = (), repeats_b: Sequence[Path] = ()
) -> Difference:
    """Raises MissingError if no rank is on both sides, and what the readers raise."""
    return compare_sides(a, b, repeats_a=repeats_a, repeats_b=repeats_b).difference


def compare_sides(
    a: Path,
    b: Path,
    *,
    repeats_a: Sequence[Path] = (),
    repeats_b: Sequence[Path] = (),
    by: Sequence[str] = (),
    evidence: bool = False,
) -> Compared:
    """`compare` with what is not written: the work itself.

    by: of KINDS what the change of the shown rank is grouped by. evidence: its findings name rows of the
    recordings.
    """
    sides = [read_side(path) for path in (a, b)]
    again = [[read_side(path) for path in paths] for paths in (repeats_a, repeats_b)]
    ranks = common_ranks(sides)
    if not ranks:
        had = " and ".join(
            f"{side.path.name} has {', '.join(map(place_text, sorted(side.ranks)[:8]))}" for side in sides
        )
        raise MissingError(f"no rank is on both sides: {had}", fix="name recordings of the same ranks")
    pairs = [_compare_rank(sides, again, rank) for rank in ranks]
    difference = _difference((a, b), sides, again, ranks, [pair.found for pair in pairs])
    shown = next(pair for pair in pairs if pair.found is difference.shown)
    shown.found.notes += unknown(*sides)
    _detail(shown, by, evidence)
    if evidence:
        for name, side in zip("AB", sides, strict=True):
            difference.files += files(name, [side.ranks[rank] for rank in ranks])
    return Compared(difference, shown)


def _compare_rank(sides: Sequence[Side], again: Sequence[Sequence[Side]], rank: tuple[str, int]) -> Pair:
    repeats = [[one.ranks[rank] for one in side if rank in one.ranks] for side in again]
    pair = compare_pair(sides[0].ranks[rank], sides[1].ranks[rank], *repeats)
    pair.found.configuration = rank[0]
    return pair


def _difference(
    paths: tuple[Path, Path],
    sides: Sequence[Side],
    again: Sequence[Sequence[Side]],
    ranks: Sequence[tuple[str, int]],
    found: list[Comparison],
) -> Difference:
    """All ranks, and what the recordings lack or say differently."""
    every = (*sides, *again[0], *again[1])
    used = [side.ranks[rank] for side in every for rank in ranks if rank in side.ranks]
    return Difference(
        a=str(paths[0]),
        b=str(paths[1]),
        ranks=found,
        missing=[
            f"{place_text(rank)} is only in {side.path}"
            for side in sides
            for rank in sorted(set(side.ranks) - set(ranks))
        ]
        + [
            f"{place_text(rank)} is not in {side.path}"
            for side in (*again[0], *again[1])
            for rank in ranks
            if rank not in side.ranks
        ],
        problems=[text for side in every for text in side.problems],
        torn=list(dict.fromkeys(text for work in used for text in work.torn)),
        blurred=[
            *dict.fromkeys(text for work in used for text in work.blurred),
            *(text for rank in ranks for text in unlike_edges(*(side.ranks[rank] for side in sides))),
        ],
        lacks=[
            Missing(
                side=name, rank=rank[1], axis=lack.axis, place=lack.place, share=lack.share, text=lack.text
            )
            for name, side in zip("AB", sides, strict=True)
            for rank in ranks
            for lack in side.ranks[rank].lacks
        ],
        around=differences(*sides),
    )


def _detail(pair: Pair, by: Sequence[str], evidence: bool) -> None:
    """What only the shown rank has: groups and evidence."""
    if pair.of_a is None or pair.of_b is None:
        return
    if "op" in by:
        pair.found.groups["op"] = by_op(pair.of_a, pair.of_b)
    if "kernel" in by:
        pair.found.groups["kernel"] = by_kernel(pair.of_a, pair.of_b)
    if {"phase", "module"} & set(by):
        one, other = pair.placed
        if "phase" in by:
            pair.found.groups["phase"] = by_phase(one, other)
        if "module" in by:
            pair.found.groups["module"] = by_module(one, other)
        pair.found.notes += limits(one, other)
        _locate(pair, one, other)
    if evidence:
        for finding in pair.found.findings:
            finding.evidence = _evidence(finding, pair)


def _locate(pair: Pair, a: Placed, b: Placed) -> None:
    """Say of each replaced block, and of each finding about one, where in the program it is."""
    paths = [[path_at(side, row) for row in side.units.usual.tolist()] for side in (a, b)]
    found = pair.found
    for block, other in zip(
        found.blocks, replaced(a.units.sequence, b.units.sequence, [], *paths), strict=True
    ):
        block.where = other.where
    where = {block.index: block.where for block in found.blocks}
    for finding in found.findings:
        of = {found.rows[at].block for at in finding.rows}
        if finding.kind == "replaced_block" and len(of) == 1:
            finding.where = where.get(next(iter(of)) or 0, "")
        elif finding.rows:
            rows = [found.rows[at] for at in finding.rows]
            finding.where = " / ".join(common([*_around_rows(a, rows), *_around_rows(b, rows)]))


def _around_rows(side: Placed, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Where the operations of these rows are on one side, each place once."""
    wanted = {(row.op, row.dims, row.types) for row in rows}
    kernels = {name for row in rows for name in (row.kernel_a, row.kernel_b)}
    keys, which = side.work.keys
    able = np.array([key[:3] in wanted and key[3] in kernels for key in keys], dtype=bool)
    return places_at(side, np.flatnonzero(able[which] & side.units.chosen))


def compare_pair(a: Work, b: Work, repeats_a: Sequence[Work] = (), repeats_b: Sequence[Work] = ()) -> Pair:
    a, b, coarse = at_common_detail(a, b)
    repeats_a, repeats_b = (
        [replace(one, drop=a.drop, plain=a.plain) for one in side] for side in (repeats_a, repeats_b)
    )
    unit = unit_of(a, b)
    if unit is None:
        reason = "neither steps nor a kernel with several calls on both sides: there is no unit to compare by"
        return Pair(a, b, None, None, Comparison(comparable=False, reason=reason, rank=a.rank, unit=None))
    of_a, of_b = units(a, unit), units(b, unit)
    if not of_a.count or not of_b.count:
        raise BadDataError("a step without any GPU operation", location=a.trace.source, fix="see lab inspect")
    rows = split(of_a.sums, of_b.sums)
    floor = judge_rows(rows, edge_of(of_a, of_b), floor_ns_of(of_a, of_b))
    if repeats_a or repeats_b:
        again = [[units(one, unit) for one in side] for side in (repeats_a, repeats_b)]
        _raise_for_copies(
            [(a, of_a), (b, of_b)],
            [*zip(repeats_a, again[0], strict=True), *zip(repeats_b, again[1], strict=True)],
        )
        judge_by_repeats(rows, [of_a, *again[0]], [of_b, *again[1]], floor, floor_ns_of(of_a, of_b))
    if without_times(of_a, of_b):
        for row in rows:
            row.confidence = row.confidence if row.kind in EXACT else BELOW
    blocks = replaced(of_a.sequence, of_b.sequence, rows)
    reason = incomparable(of_a, of_b) or without_times(of_a, of_b)
    change = {name: of_b.mean_ns(name) - of_a.mean_ns(name) for name in TIMES}
    parts = parts_of(rows)
    found = Comparison(
        comparable=not reason,
        reason=reason,
        rank=a.rank,
        unit=of_a.unit,
        units_a=of_a.count,
        units_b=of_b.count,
        delta_kernel_ns=sum(parts.values()),
        parts=parts,
        **{f"{name}_ns": change[name] for name in TIMES if name != "kernel_sum"},
        residual_ns=change["span"] - (sum(parts.values()) - change["overlap"] + change["idle"]),
        a={f"{name}_ns": of_a.mean_ns(name) for name in TIMES},
        b={f"{name}_ns": of_b.mean_ns(name) for name in TIMES},
        rows=rows,
        blocks=blocks,
        api=calls(of_a, of_b),
        findings=[
            one
            for one in findings(rows, blocks, of_a, of_b)
            if one.kind != "api" or _is_of_program(one.call, a, b, of_a, of_b)
        ],
        notes=[*coarse, *notes(a, b, of_a, of_b), *of_collectives(rows)],
        groups={},
        configuration="",
        unnamed=unnamed(of_a, of_b),
        own_ns=change["span"] - change["exposed_comm"],
        floor_share=floor,
        floor_ns=floor_ns_of(of_a, of_b),
    )
    return Pair(a, b, of_a, of_b, found)


def _is_of_program(call: str, a: Work, b: Work, of_a: Units, of_b: Units) -> bool:
    """Whether another number of calls is the program's doing. GPUs of two vendors have two APIs; and of two
    tools each records functions that the other does not, but both record waits."""
    if a.trace.meta.vendor != b.trace.meta.vendor:
        return False
    return not a.plain or is_wait(call) or (call in of_a.calls and call in of_b.calls)


def _raise_for_copies(pair: Sequence[tuple[Work, Units]], repeats: Sequence[tuple[Work, Units]]) -> None:
    """Raises UsageError for a repeat with the times of another recording, which proves nothing twice."""
    seen = list(pair)
    for work, of in repeats:
        for other, its in seen:
            if of.sums == its.sums and np.array_equal(of.times_ns["span"], its.times_ns["span"]):
                raise UsageError(
                    f"{work.trace.source} is a copy of {other.trace.source}: no further process",
                    fix="record the program again, in another process",
                )
        seen.append((work, of))


def calls(a: Units, b: Units) -> list[Call]:
    """Every API function, those with another number of calls first."""
    found = [
        Call(name=one, n_a=a.calls.get(one, 0.0), n_b=b.calls.get(one, 0.0)) for one in {*a.calls, *b.calls}
    ]
    return sorted(found, key=lambda call: (-abs(call.n_b - call.n_a), call.name))


def findings(rows: Sequence[Row], blocks: Sequence[Block], a: Units, b: Units) -> list[Finding]:
    """What is named: other counts and kernels, durations beyond the floor, calls, idle and exposed time."""
    found = []
    counted = {row.op for row in rows if row.kind == "count"}
    bare = [row for row in rows if row.kind in EXACT and not row.op]
    counted |= {short_name(name) for row in bare for name in (row.kernel_a, row.kernel_b) if name}
    moved: dict[tuple[str, ...], int] = {}
    for block in blocks:
        mine = [at for at, row in enumerate(rows) if row.block == block.index]
        if mine:
            found.append(_of_block(block, mine))
        elif not counted & {*block.ops_a, *block.ops_b}:  # else the rows of counts say it
            ops = tuple(dict.fromkeys([*block.ops_a, *block.ops_b]))
            moved[ops] = max(moved.get(ops, 0), block.times)
    found += [_of_moved(ops, times) for ops, times in moved.items()]
    exchanges = exchanged(rows)
    found += [_of_exchange([rows[at] for at in mine], mine) for mine in exchanges]
    told = {at for mine in exchanges for at in mine}
    for at, row in enumerate(rows):
        loose = row.block is None and row.confidence not in ("", BELOW) and at not in told
        if loose and (row.kind in EXACT or row.confidence in (PROVEN, SUGGESTED, ONE_PAIR)):
            found.append(_of_row(row, at))
    for call in calls(a, b) if a.calls and b.calls else []:
        if calls_differ(a, b, call.name):
            text = f"{call.name}: {call.n_a:g} -> {call.n_b:g} calls per unit"
            found.append(Finding(text=text, ns=None, kind="api", confidence="exact count", call=call.name))
    for name in () if without_times(a, b) else TIMED:
        if time_is_named(a, b, name):
            before, after = a.mean_ns(name), b.mean_ns(name)
            words = f"{name.replace('_', ' ')} time: {_time(before)} -> {_time(after)} per unit"
            if name == "idle":
                words += f", most of it {_idle_cause(a, b)}"
            found.append(Finding(text=words, ns=after - before, kind=name, confidence="one pair only"))
    if between_is_named(a, b):
        work = f"{a.between:.3g} -> {b.between:.3g} GPU operations"
        times = f"{_time(a.between_ns)} -> {_time(b.between_ns)}"
        text = f"launched between steps, in no other figure: {work} between two ({times})"
        change_ns = b.between_ns - a.between_ns
        found.append(Finding(text=text, ns=change_ns, kind="work_between_steps", confidence="one pair only"))
    return sorted(found, key=lambda one: -abs(one.ns or 0.0))


def exchanged(rows: Sequence[Row]) -> list[list[int]]:
    """The rows of each op of which several kernels took the place of others: they are one change."""
    of_op: dict[tuple[str, str, str], list[int]] = {}
    for at, row in enumerate(rows):
        if row.kind == "other_kernel" and row.op and row.block is None and row.confidence not in ("", BELOW):
            of_op.setdefault((row.op, row.dims, row.types), []).append(at)
    both = {one: {rows[at].kernel_a is None for at in mine} for one, mine in of_op.items()}
    return [mine for one, mine in of_op.items() if len(mine) > 1 and len(both[one]) == 2]


def _of_exchange(mine: Sequence[Row], at: Sequence[int]) -> Finding:
    sides = [row.kernel_a for row in mine], [row.kernel_b for row in mine]
    every = [[_short(name) for name in dict.fromkeys(side) if name] for side in sides]
    names = [", ".join(side[:NAMED]) + (", ..." if len(side) > NAMED else "") for side in every]
    ns = sum(row.ns for row in mine)
    text = f"{mine[0].op} {short_dims(mine[0].dims)}".strip() + f": {names[0]} -> {names[1]} ({_us(ns)})"
    return Finding(text=text, ns=ns, kind="other_kernel", confidence=mine[0].confidence, rows=list(at))


def unnamed(a: Units, b: Units) -> list[str]:
    """Times that changed much, and of which one pair cannot tell that from noise."""
    found = [
        f"{name.replace('_', ' ')} time: {_time(a.mean_ns(name))} -> {_time(b.mean_ns(name))} per unit, "
        "and its steps vary as much"
        for name in TIMED
        if time_is_large(a, b, name) and not time_is_named(a, b, name)
    ]
    if gap_is_large(a, b):
        gap_a, gap_b, period_a, period_b = (
            _time(as_a_rule(one)) for one in (a.gap_ns, b.gap_ns, a.period_ns, b.period_ns)
        )
        found.append(
            f"from a step's GPU work to the next one's: {period_a} -> {period_b}, because of the time "
            f"between them, {gap_a} -> {gap_b} (host, data loader), which is in no figure above; it differs "
            "from process to process"
        )
    return found


def _idle_cause(a: Units, b: Units) -> str:
    """The cause whose share of the idle time changed most."""
    change = {cause: b.mean_ns(cause) - a.mean_ns(cause) for cause in CAUSES}
    return CAUSE_WORDS[max(CAUSES, key=lambda cause: abs(change[cause]))]


def _evidence(finding: Finding, pair: Pair) -> list[Evidence]:
    """The rows of both recordings behind a finding."""
    assert pair.of_a is not None and pair.of_b is not None
    found: list[Evidence] = []
    for side, work, of in (("A", pair.a, pair.of_a), ("B", pair.b, pair.of_b)):
        if finding.call:
            found += rows_of.of_call(side, work, of, finding.call)
        elif finding.rows:
            chosen = [pair.found.rows[at] for at in finding.rows]
            names = [(row, row.kernel_a if side == "A" else row.kernel_b) for row in chosen]
            keys = [(row.op, row.dims, row.types, name) for row, name in names if name is not None]
            found += rows_of.of_keys(side, work, of, keys)
        else:
            found += rows_of.of_gap(side, work, of) if finding.kind == "idle" else []
    return found


def _of_row(row: Row, at: int) -> Finding:
    op = f"{row.op or 'no known op'} {short_dims(row.dims)}".strip()
    before, after = (
        "nothing" if name is None else _short(name) or "a kernel without a name"
        for name in (row.kernel_a, row.kernel_b)
    )
    if before == after and row.kernel_a != row.kernel_b:
        after = f"another variant of {after}"
    if row.kind == "same_kernel_duration":
        text = f"{op}: {before} takes {100 * row.slower:+.1f} % ({_us(row.ns)} per unit)"
    elif row.kind == "count":
        text = f"{op}: {before} runs {row.n_a:g} -> {row.n_b:g} times ({_us(row.ns)})"
    else:
        text = f"{op}: {before} -> {after} ({_us(row.ns)})"
    return Finding(text=text, ns=row.ns, kind=row.kind, confidence=row.confidence, rows=[at])


def _of_block(block: Block, rows: list[int]) -> Finding:
    before, after = (_listed(ops) or "nothing" for ops in (block.ops_a, block.ops_b))
    times = plural(block.times, "time")
    text = f"{before} -> {after}, {times} per unit ({_us(block.ns)})"
    return Finding(text=text, ns=block.ns, kind="replaced_block", confidence="one pair only", rows=rows)


def _of_moved(ops: Sequence[str], times: int) -> Finding:
    text = f"{_listed(ops)} launched in another order, {plural(times, 'time')} per unit"
    return Finding(text=text, ns=None, kind="moved", confidence="one pair only")


def _listed(ops: Sequence[str]) -> str:
    return ", ".join(ops[:6]) + (", ..." if len(ops) > 6 else "")


def _short(name: str) -> str:
    """A name that fits a sentence; the row has all of it."""
    short = short_name(name)
    return short if len(short) <= LONGEST else f"{short[: LONGEST - 12]}…{short[-11:]}"


def _time(ns: float) -> str:
    return f"{ns / 1000:,.1f} µs"


def _us(ns: float) -> str:
    return f"{ns / 1000:+,.1f} µs" if ns else "0 µs"


def notes(a: Work, b: Work, of_a: Units, of_b: Units) -> list[str]:
    """What limits the comparison."""
    found = []
    for side, work, of in (("A", a, of_a), ("B", b, of_b)):
        if work.unlinked and "op" not in work.drop:
            total = plural(len(work.dur_ns), "GPU operation")
            found.append(
                f"{side}: {work.unlinked} of {total} have no known op and are aligned by kernel name"
            )
        odd = [first_few(work.trace.problems, ODD, between="; ")] if work.trace.problems else []
        found += [f"{side}: {text}" for text in (*sentences(work.lacks), *odd, *uneven(work, of))]
        if (gpus := len(np.unique(work.trace.ops.device))) > 1:
            found.append(
                f"{side}: one process on {gpus} GPUs: idle is when none of them works, overlap is across them"
            )
        found += [f"{side}: {text}" for text in early(work)]
        if of.empty:
            whole = plural(len(work.steps_ns), "step")
            found.append(
                f"{side}: {of.empty} of {whole} launched no GPU operation and are in no mean: "
                f"means are over the other {int(of.count)}"
            )
        if of.cut:
            whole = plural(len(work.steps_ns), "step")
            found.append(f"{side}: {of.cut} of {whole} lost GPU operations and are in no mean")
        if of.outside:
            found.append(
                f"{side}: {plural(of.outside, 'GPU operation')} launched outside every step, left out"
            )
    for side, of in (("A", of_a), ("B", of_b)):
        if not of.calls:
            found.append(f"{side} records no API calls: they are not compared")
    if a.trace.meta.vendor != b.trace.meta.vendor:
        found.append("GPUs of two vendors: API calls are listed (-o, --json), none is named")
    elif a.plain and of_a.calls and of_b.calls and of_a.calls.keys() != of_b.calls.keys():
        found.append(
            "recorded by two tools: of API functions that only one side has, waits alone are named; all are "
            "listed (-o, --json)"
        )
    if (longest := max(len(of_a.sequence), len(of_b.sequence))) > MOST:
        found.append(
            f"a step has {longest:,} GPU operations, more than {MOST:,}: ops that replaced others are not "
            "joined, and there are no timelines"
        )
    if of_a.unit == "step":
        found += of_one_size(of_a, of_b)
    else:
        marked = [side for side, work in (("A", a), ("B", b)) if len(work.steps_ns)]
        which = f"only {marked[0]} marks steps" if marked else "no steps are marked"
        if overlap := [side for side, work in (("A", a), ("B", b)) if steps_overlap(work)]:
            verb = "marks" if len(overlap) == 1 else "mark"
            which = f"{' and '.join(overlap)} {verb} steps that overlap, as several processes or threads do: "
            which += "none is a unit; the longest kernel's calls are"
        found.append(f"{which}: counts that the edges of a recorded window explain are not named")
    return found


def early(work: Work) -> list[str]:
    """GPU operations that begin before the call that launched them: causes of idle rest on both clocks."""
    ahead_ns = (work.launched_ns - work.start_ns)[work.launch_known & (work.launched_ns > work.start_ns)]
    if not len(ahead_ns):
        return []
    return [
        f"{len(ahead_ns):,} of {plural(len(work.dur_ns), 'GPU operation')} begin before the call that "
        f"launched them, by up to {_time(int(ahead_ns.max()))}: the clocks of GPU and host differ by that at "
        "least, and the causes of idle time are wrong by as much per gap"
    ]


def uneven(work: Work, of: Units) -> list[str]:
    """Steps that are not like the others."""
    edges = work.steps_ns
    if of.unit != "step" or not len(edges):
        return []
    step = step_at(edges, work.launched_ns[of.chosen])
    sizes = np.bincount(step, minlength=len(edges))
    sizes = sizes[sizes > 0]
    found = []
    if len(sizes) and sizes.min() != sizes.max():
        used, times = np.unique(sizes, return_counts=True)
        usual = int(used[times.argmax()])
        found.append(
            f"steps are uneven: {sizes.min():,} to {sizes.max():,} GPU operations, {usual:,} in "
            f"{int(times.max())} of {len(sizes)}; figures per step are means over unequal work"
        )
    return found


def of_collectives(rows: Sequence[Row]) -> list[str]:
    """A kernel of a collective is as long as its ranks wait for each other."""
    named = [row for row in rows if row.confidence != BELOW and row.kind == "same_kernel_duration"]
    waits = [row for row in named if row.kernel_a and communication(row.kernel_a) is not None]
    if not waits:
        return []
    return ["a collective's kernel also waits for the last rank: `lab ranks` tells waiting from transfer"]


def of_one_size(a: Units, b: Units) -> list[str]:
    """What one step on a side means: nothing is known of how much steps vary there."""
    few = [name for name, of in (("A", a), ("B", b)) if of.count < 2]
    return [f"{' and '.join(few)}: one step only, so how much steps vary is not known"] if few else []
