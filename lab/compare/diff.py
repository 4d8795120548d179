"""Two recordings compared: rank by rank, per unit of work, with what can be said for sure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from lab.compare.blocks import Block, replaced
from lab.compare.judge import BELOW, EXACT, PROVEN, incomparable, judge_by_repeats, judge_rows, time_is_named
from lab.compare.side import Work, common_ranks, read_side
from lab.compare.split import Row, parts_of, split
from lab.compare.units import TIMES, Units, unit_of, units
from lab.core.words import plural
from lab.errors import BadDataError, MissingError
from lab.recordings.integrity.words import sentences
from lab.recordings.names import short_name

MOST_FINDINGS = 20


class Call(msgspec.Struct, kw_only=True):
    """An API function's calls per unit on both sides."""

    name: str
    n_a: float
    n_b: float


class Finding(msgspec.Struct, kw_only=True):
    """A change that is named: its sentence, ns per unit (None for counts of calls), and how sure it is."""

    text: str
    ns: float | None
    kind: str
    confidence: str


class Comparison(msgspec.Struct, kw_only=True):
    """One rank's change from A to B, everything per unit. Times without `_a` or `_b` are changes, B - A.

    span = (kernel sum - overlap) + idle on each side, so residual_ns, what the classes leave over, is 0.
    """

    comparable: bool
    reason: str
    rank: int
    unit: str | None
    units_a: float = 0
    units_b: float = 0
    delta_kernel_ns: float = 0.0
    parts: dict[str, float] = {}
    span_ns: float = 0.0
    busy_ns: float = 0.0
    idle_ns: float = 0.0
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
    notes: list[str] = []


class Difference(msgspec.Struct, kw_only=True):
    """All ranks of A against B; `shown` is the rank that changed most."""

    a: str
    b: str
    ranks: list[Comparison]
    missing: list[str]
    problems: list[str]
    torn: list[str] = []  # sentences about GPU work that is missing from either side

    @property
    def shown(self) -> Comparison:
        return max(self.ranks, key=lambda one: abs(one.span_ns))


def compare(
    a: Path, b: Path, *, repeats_a: Sequence[Path] = (), repeats_b: Sequence[Path] = ()
) -> Difference:
    """Raises MissingError if no rank is on both sides, and what the readers raise."""
    sides = [read_side(path) for path in (a, b)]
    again = [[read_side(path) for path in paths] for paths in (repeats_a, repeats_b)]
    ranks = common_ranks(sides)
    if not ranks:
        had = " and ".join(f"{side.path.name} has {sorted(side.ranks)}" for side in sides)
        raise MissingError(f"no rank is on both sides: {had}", fix="name recordings of the same ranks")
    missing = [
        f"rank {rank} is only in {side.path}"
        for side in sides
        for rank in sorted(set(side.ranks) - set(ranks))
    ]
    found = [
        compare_work(
            sides[0].ranks[rank],
            sides[1].ranks[rank],
            [one.ranks[rank] for one in again[0] if rank in one.ranks],
            [one.ranks[rank] for one in again[1] if rank in one.ranks],
        )
        for rank in ranks
    ]
    problems = [*sides[0].problems, *sides[1].problems]
    used = [
        side.ranks[rank] for side in (*sides, *again[0], *again[1]) for rank in ranks if rank in side.ranks
    ]
    torn = list(dict.fromkeys(text for work in used for text in work.torn))
    return Difference(a=str(a), b=str(b), ranks=found, missing=missing, problems=problems, torn=torn)


def compare_work(
    a: Work, b: Work, repeats_a: Sequence[Work] = (), repeats_b: Sequence[Work] = ()
) -> Comparison:
    unit = unit_of(a, b)
    if unit is None:
        reason = "neither steps nor a kernel with several calls on both sides: there is no unit to compare by"
        return Comparison(comparable=False, reason=reason, rank=a.rank, unit=None)
    of_a, of_b = units(a, unit), units(b, unit)
    if not of_a.count or not of_b.count:
        raise BadDataError("a step without any GPU operation", where=a.trace.source, fix="see lab inspect")
    rows = split(of_a.sums, of_b.sums)
    judge_rows(rows)
    if repeats_a or repeats_b:
        judge_by_repeats(
            rows,
            [of_a, *(units(one, unit) for one in repeats_a)],
            [of_b, *(units(one, unit) for one in repeats_b)],
        )
    blocks = replaced(of_a.sequence, of_b.sequence, rows)
    reason = incomparable(of_a, of_b)
    change = {name: of_b.mean_ns(name) - of_a.mean_ns(name) for name in TIMES}
    parts = parts_of(rows)
    return Comparison(
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
        findings=findings(rows, blocks, of_a, of_b),
        notes=notes(a, b, of_a, of_b),
    )


def calls(a: Units, b: Units) -> list[Call]:
    """Every API function, those with another number of calls first."""
    found = [
        Call(name=one, n_a=a.calls.get(one, 0.0), n_b=b.calls.get(one, 0.0)) for one in {*a.calls, *b.calls}
    ]
    return sorted(found, key=lambda call: (-abs(call.n_b - call.n_a), call.name))


def findings(rows: Sequence[Row], blocks: Sequence[Block], a: Units, b: Units) -> list[Finding]:
    """What is named: other counts and kernels, durations beyond the floor, calls, idle and exposed time."""
    found = [_of_block(block) for block in blocks if block.ops_a or block.ops_b]
    loose = [row for row in rows if row.block is None and row.confidence not in ("", BELOW)]
    found += [
        _of_row(row) for row in loose if row.kind in EXACT or row.confidence == PROVEN or _one_pair(row)
    ]
    for call in calls(a, b):
        if call.n_a != call.n_b:
            text = f"{call.name}: {call.n_a:g} -> {call.n_b:g} calls per unit"
            found.append(Finding(text=text, ns=None, kind="api", confidence="exact count"))
    for name in ("idle", "exposed_comm", "exposed_copy"):
        if time_is_named(a, b, name):
            before, after = a.mean_ns(name), b.mean_ns(name)
            words = f"{name.replace('_', ' ')} time: {_us(before)} -> {_us(after)} per unit"
            found.append(Finding(text=words, ns=after - before, kind=name, confidence="one pair only"))
    return sorted(found, key=lambda one: -abs(one.ns or 0.0))[:MOST_FINDINGS]


def _one_pair(row: Row) -> bool:
    return row.confidence == "one pair only"


def _of_row(row: Row) -> Finding:
    op = f"{row.op or 'no known op'} {row.dims}".strip()
    before, after = (short_name(name) if name else "nothing" for name in (row.kernel_a, row.kernel_b))
    if row.kind == "same_kernel_duration":
        share = 100 * row.ns / max(row.ns_a, 1.0)
        text = f"{op}: {before} takes {share:+.1f} % ({_us(row.ns)} per unit)"
    elif row.kind == "count":
        text = f"{op}: {before} runs {row.n_a:g} -> {row.n_b:g} times ({_us(row.ns)})"
    else:
        text = f"{op}: {before} -> {after} ({_us(row.ns)})"
    return Finding(text=text, ns=row.ns, kind=row.kind, confidence=row.confidence)


def _of_block(block: Block) -> Finding:
    before, after = (
        ", ".join(ops[:6]) + (", ..." if len(ops) > 6 else "") or "nothing"
        for ops in (block.ops_a, block.ops_b)
    )
    times = plural(block.times, "time")
    text = f"{before} -> {after}, {times} per unit ({_us(block.ns)})"
    return Finding(text=text, ns=block.ns, kind="replaced_block", confidence="one pair only")


def _us(ns: float) -> str:
    return f"{ns / 1000:+,.1f} µs" if ns else "0 µs"


def notes(a: Work, b: Work, of_a: Units, of_b: Units) -> list[str]:
    """What limits the comparison."""
    found = []
    for side, work, of in (("A", a, of_a), ("B", b, of_b)):
        if work.unlinked:
            total = plural(len(work.dur_ns), "GPU operation")
            found.append(
                f"{side}: {work.unlinked} of {total} have no known op and are aligned by kernel name"
            )
        found += [f"{side}: {text}" for text in sentences(work.lacks)]
        if of.empty:
            whole = plural(len(work.steps_ns), "step")
            found.append(
                f"{side}: {of.empty} of {whole} launched no GPU operation and are in no mean: "
                f"means are over the other {int(of.count)}"
            )
        if of.outside:
            found.append(
                f"{side}: {plural(of.outside, 'GPU operation')} launched outside every step, left out"
            )
    if of_a.unit != "step":
        found.append("no steps are marked: counts at the edges of a recorded window may differ by one call")
    return found
