"""Two recordings compared: rank by rank, per unit of work, causes of the whole before rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from lab.compare.diff.around import Differs, differences, notes, of_collectives, unknown
from lab.compare.diff.causes import add_clocks, judged, phase_alone
from lab.compare.diff.comparable import (
    Axis,
    at_common_detail,
    axes_of,
    incomparable,
    unlike_edges,
    without_times,
)
from lab.compare.diff.findings import (
    WHOLE,
    Call,
    File,
    Finding,
    calls,
    evidence_of,
    files,
    findings,
    of_whole,
    unnamed,
)
from lab.compare.diff.groups import Group, Placed, by_key, by_module, by_phase, limits, placed
from lab.compare.diff.judge import BELOW, EXACT, FLOOR_SHARE, enough_processes, floor_ns_of
from lab.compare.diff.split import Block, Row, common, parts_of, replaced
from lab.compare.side import Side, Work, is_wait, place_text, read_side
from lab.compare.units import TIMES, Units, step_times, times_of, unit_of, units
from lab.compare.whole import ALARMS, Total, judge_totals
from lab.errors import BadDataError, MissingError, UsageError
from lab.stats.gate import LEAST

SLOWEST = 0.01  # ranks whose steps take as long, within this share, wait for the one with the most own time


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
    time is late + wait + queued + unknown (lab.compare.units).
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
    axes: list[Axis] = []  # in what the work may be another
    totals: list[Total] = []  # over processes: the test of the whole, as `lab check` makes it
    rows: list[Row] = []
    blocks: list[Block] = []
    api: list[Call] = []
    findings: list[Finding] = []  # causes of the whole first
    unnamed: list[str] = []  # large changes of times that one pair cannot tell from noise
    notes: list[str] = []
    own_ns: float = 0.0  # of the span outside exposed communication
    floor_share: float = 0.0  # no smaller change of a duration is named
    floor_ns: float = 0.0  # nor one of fewer ns per unit
    groups: dict[str, list[Group]] = {}  # by phase, module, op, kernel; each adds up to delta_kernel_ns


class Job(msgspec.Struct, kw_only=True):
    """The job's own time: that of its slowest rank, ns per unit. rank_a, rank_b: None if none stands out."""

    configuration: str
    a_ns: float
    b_ns: float
    rank_a: int | None
    rank_b: int | None
    alone: int | None = None  # the one rank whose own time changed


class Difference(msgspec.Struct, kw_only=True):
    """All ranks of A against B; `shown` is the rank that changed most by itself."""

    a: str
    b: str
    ranks: list[Comparison]
    missing: list[str]
    problems: list[str]
    jobs: list[Job] = []  # of several ranks, one per configuration
    torn: list[str] = []  # sentences about GPU work that is missing from either side
    blurred: list[str] = []  # the same about launches and operators: rows by op may be wrong
    around: list[Differs] = []
    replayed: list[Replayed] | None = None  # of the shown rank's findings; None: not asked for
    replay_notes: list[str] = []
    files: list[File] = []

    @property
    def shown(self) -> Comparison:
        """The one whose time outside communication changed most, if much; else one with findings. Where one
        rank is slower all steps are longer, because the others wait for it."""
        return max(
            self.ranks, key=lambda rank: (_changed_itself(rank), bool(rank.findings), abs(rank.own_ns))
        )


def _changed_itself(rank: Comparison) -> bool:
    return abs(rank.own_ns) > FLOOR_SHARE * rank.a.get("span_ns", 0.0)


@dataclass(frozen=True)
class Pair:
    """One rank of both sides with its units, None without a unit; `comparison` says what changed."""

    a: Work
    b: Work
    of_a: Units | None
    of_b: Units | None
    comparison: Comparison

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
    sides = read_side(a), read_side(b)
    repeats = [[read_side(path) for path in paths] for paths in (repeats_a, repeats_b)]
    further = [*repeats[0], *repeats[1]]
    ranks = _common_ranks(*sides)
    pairs = [_compare_rank(rank, sides, repeats) for rank in ranks]
    comparisons = [pair.comparison for pair in pairs]
    works = [side.ranks[rank] for side in (*sides, *further) for rank in ranks if rank in side.ranks]
    only = [(rank, side) for side in sides for rank in sorted(side.ranks.keys() - set(ranks))]
    lacking = [(rank, side) for side in further for rank in ranks if rank not in side.ranks]
    unlike = [text for rank in ranks for text in unlike_edges(*(side.ranks[rank] for side in sides))]
    difference = Difference(
        a=str(a),
        b=str(b),
        ranks=comparisons,
        jobs=jobs_of(comparisons),
        missing=[
            *(f"{place_text(rank)} is only in {side.path}" for rank, side in only),
            *(f"{place_text(rank)} is not in {side.path}" for rank, side in lacking),
        ],
        problems=[text for side in (*sides, *further) for text in side.problems],
        torn=list(dict.fromkeys(text for work in works for text in work.torn)),
        blurred=[*dict.fromkeys(text for work in works for text in work.blurred), *unlike],
        around=differences(*sides),
    )
    shown = next(pair for pair in pairs if pair.comparison is difference.shown)
    shown.comparison.notes += unknown(*sides)
    for comparison in comparisons:
        add_clocks(comparison.findings, difference.around)
    _detail(shown, by, evidence)
    if evidence:
        for name, side in zip("AB", sides, strict=True):
            difference.files += files(name, [side.ranks[rank] for rank in ranks])
    return Compared(difference, shown)


def _common_ranks(a: Side, b: Side) -> list[tuple[str, int]]:
    ranks = sorted(a.ranks.keys() & b.ranks.keys())
    if not ranks:
        had = " and ".join(
            f"{side.path.name} has {', '.join(map(place_text, sorted(side.ranks)[:8]))}" for side in (a, b)
        )
        raise MissingError(f"no rank is on both sides: {had}", fix="name recordings of the same ranks")
    return ranks


def _compare_rank(rank: tuple[str, int], sides: tuple[Side, Side], repeats: Sequence[Sequence[Side]]) -> Pair:
    of_rank = [[side.ranks[rank] for side in paths if rank in side.ranks] for paths in repeats]
    pair = compare_pair(sides[0].ranks[rank], sides[1].ranks[rank], *of_rank)
    pair.comparison.configuration = rank[0]
    if any(of_rank) and min(map(len, of_rank)) < LEAST - 1:
        pair.comparison.notes.append(
            f"{len(of_rank[0]) + 1} and {len(of_rank[1]) + 1} processes prove nothing: "
            f"{LEAST} per side are the least, and the rows are those of one pair"
        )
    return pair


def jobs_of(comparisons: Sequence[Comparison]) -> list[Job]:
    """The slowest rank of both sides, of each configuration with several ranks."""
    jobs = []
    for configuration in dict.fromkeys(rank.configuration for rank in comparisons):
        ranks = [rank for rank in comparisons if rank.configuration == configuration and rank.unit]
        if len(ranks) < 2:
            continue
        changed = [rank.rank for rank in ranks if _changed_itself(rank)]
        jobs.append(
            Job(
                configuration=configuration,
                a_ns=max(rank.a["span_ns"] for rank in ranks),
                b_ns=max(rank.b["span_ns"] for rank in ranks),
                rank_a=_slowest({rank.rank: rank.a for rank in ranks}),
                rank_b=_slowest({rank.rank: rank.b for rank in ranks}),
                alone=changed[0] if len(changed) == 1 else None,
            )
        )
    return jobs


def _slowest(times: Mapping[int, Mapping[str, float]]) -> int | None:
    """Pick, of the ranks whose step is as long as any, the one with the most own time, outside exposed
    communication, if it stands out: the others wait for it."""
    least_ns = (1 - SLOWEST) * max(of_rank["span_ns"] for of_rank in times.values())
    own_ns = {
        rank: of_rank["span_ns"] - of_rank["exposed_comm_ns"]
        for rank, of_rank in times.items()
        if of_rank["span_ns"] >= least_ns
    }
    slowest, *next_ranks = sorted(own_ns, key=own_ns.__getitem__, reverse=True)
    is_alone = not next_ranks or own_ns[next_ranks[0]] < (1 - SLOWEST) * own_ns[slowest]
    return slowest if is_alone else None


def _detail(pair: Pair, by: Sequence[str], evidence: bool) -> None:
    """What only the shown rank has: groups, the phase that changed alone, and evidence."""
    if pair.of_a is None or pair.of_b is None:
        return
    comparison = pair.comparison
    phases = by_phase(*pair.placed) if "phase" in by or len(comparison.findings) > 2 else []
    if cause := phase_alone(phases, comparison.rows, comparison.floor_ns):
        comparison.findings.insert(sum(finding.kind in WHOLE for finding in comparison.findings), cause)
    for name in by:
        if name in ("op", "kernel"):
            comparison.groups[name] = by_key(name, pair.of_a, pair.of_b)
        else:
            comparison.groups[name] = phases if name == "phase" else by_module(*pair.placed)
    if {"phase", "module"} & set(by):
        comparison.notes += limits(*pair.placed)
        _locate(pair)
    for finding in comparison.findings if evidence else ():
        for number, work, units_of in ((0, pair.a, pair.of_a), (1, pair.b, pair.of_b)):
            keys = [comparison.rows[index].keys[number] for index in finding.rows]
            finding.evidence += evidence_of(
                "AB"[number], work, units_of, keys=keys, call=finding.call, idle=finding.kind == "idle"
            )


def _locate(pair: Pair) -> None:
    """Say of each replaced block, and of each finding about rows, where in the program it is."""
    comparison, sides = pair.comparison, pair.placed
    a, b = (side.units for side in sides)
    paths_a, paths_b = (side.paths_of(side.units.usual) for side in sides)
    located = replaced(a.sequence, b.sequence, [], paths_a, paths_b)
    for block, with_place in zip(comparison.blocks, located, strict=True):
        block.module_path = with_place.module_path
    place_of = {block.index: block.module_path for block in comparison.blocks}
    for finding in comparison.findings:
        rows = [comparison.rows[index] for index in finding.rows]
        blocks = {row.block for row in rows}
        if finding.kind == "replaced_block" and len(blocks) == 1:
            finding.module_path = place_of.get(blocks.pop() or 0, "")
        elif rows:
            around = []
            for number, side in enumerate(sides):
                wanted = {row.keys[number] for row in rows}
                is_of_rows = side.work.is_key(wanted.__contains__) & side.units.chosen
                around += side.paths_of(np.flatnonzero(is_of_rows))
            finding.module_path = " / ".join(common(around))


def compare_pair(a: Work, b: Work, repeats_a: Sequence[Work] = (), repeats_b: Sequence[Work] = ()) -> Pair:
    """One rank of A and of B, with further processes of both."""
    a, b, coarse = at_common_detail(a, b)
    if a.drop or a.plain:
        repeats_a, repeats_b = (
            [replace(work, drop=a.drop, plain=a.plain) for work in side] for side in (repeats_a, repeats_b)
        )
    unit = unit_of(a, b)
    if unit is None:
        return Pair(a, b, None, None, _without_unit(a, b))
    of_a, of_b = units(a, unit), units(b, unit)
    if not of_a.count or not of_b.count:
        raise BadDataError("a step without any GPU operation", location=a.trace.source, fix="see lab inspect")
    sides = (
        [of_a, *(units(work, unit) for work in repeats_a)],
        [of_b, *(units(work, unit) for work in repeats_b)],
    )
    _raise_for_copies([a, b, *repeats_a, *repeats_b], [of_a, of_b, *sides[0][1:], *sides[1][1:]])
    timeless = without_times(of_a, of_b)
    times = [[step_times(units_of) for units_of in side] for side in sides]
    # Half of the allowed false alarms is for the totals, as in the gate.
    totals = [] if timeless else judge_totals(times[0], times[1], alarms=ALARMS / 2)
    rows, causes, floor = judged((a, b), sides, totals)
    if timeless:
        causes = []
        for row in rows:
            row.confidence = row.confidence if row.kind in EXACT else BELOW
    axes = axes_of(a, b, of_a, of_b)
    other_work = incomparable(axes, of_a, of_b)
    blocks = replaced(of_a.sequence, of_b.sequence, rows)
    over_repeats = totals if enough_processes(*sides) else []
    named = [
        finding
        for finding in findings(rows, blocks, of_a, of_b, over_repeats)
        if finding.kind != "api" or _is_of_program(finding.call, a, b, of_a, of_b)
    ]
    change = {name: of_b.mean_ns(name) - of_a.mean_ns(name) for name in TIMES}
    parts = parts_of(rows)
    comparison = Comparison(
        comparable=not (other_work or timeless),
        reason=other_work or timeless,
        rank=a.rank,
        unit=of_a.unit,
        units_a=of_a.count,
        units_b=of_b.count,
        delta_kernel_ns=sum(parts.values()),
        parts=parts,
        **{f"{name}_ns": change[name] for name in TIMES if name != "kernel_sum"},  # type: ignore[arg-type]
        residual_ns=change["span"] - (sum(parts.values()) - change["overlap"] + change["idle"]),
        a={f"{name}_ns": of_a.mean_ns(name) for name in TIMES},
        b={f"{name}_ns": of_b.mean_ns(name) for name in TIMES},
        axes=axes,
        totals=totals,
        rows=rows,
        blocks=blocks,
        api=calls(of_a, of_b),
        # Of other work no change has a cause to be named; the rows and the totals stand all the same.
        findings=[] if other_work else [*causes, *of_whole(over_repeats, [*causes, *named]), *named],
        unnamed=[] if timeless or other_work else unnamed(of_a, of_b),
        notes=[*coarse, *notes(a, b, of_a, of_b), *of_collectives(rows)],
        own_ns=change["span"] - change["exposed_comm"],
        floor_share=floor,
        floor_ns=floor_ns_of(of_a, of_b),
    )
    return Pair(a, b, of_a, of_b, comparison)


def _without_unit(a: Work, b: Work) -> Comparison:
    """Not comparable, with the totals of both recordings."""
    sides = [times_of(work, np.arange(len(work.dur_ns))) for work in (a, b)]
    return Comparison(
        comparable=False,
        reason="neither steps nor a kernel with several calls on both sides: no unit to compare by",
        rank=a.rank,
        unit=None,
        a={f"{name}_ns": float(sides[0][name]) for name in TIMES},
        b={f"{name}_ns": float(sides[1][name]) for name in TIMES},
    )


def _is_of_program(call: str, a: Work, b: Work, of_a: Units, of_b: Units) -> bool:
    """Whether another number of calls is the program's doing. GPUs of two vendors have two APIs; and of two
    tools each records functions that the other does not, but both record waits."""
    if a.trace.meta.vendor != b.trace.meta.vendor:
        return False
    return not a.plain or is_wait(call) or (call in of_a.calls and call in of_b.calls)


def _raise_for_copies(works: Sequence[Work], units_of: Sequence[Units]) -> None:
    """Raises UsageError for a repeat (all but the first two) with the times of another recording, which
    proves nothing twice."""
    earlier: dict[object, Work] = {}
    for number, (work, of_work) in enumerate(zip(works, units_of, strict=True)):
        times = (of_work.times_ns["span"].tobytes(), frozenset(of_work.sums.items()))
        if times in earlier and number > 1:
            raise UsageError(
                f"{work.trace.source} is a copy of {earlier[times].trace.source}: no further process",
                fix="record the program again, in another process",
            )
        earlier.setdefault(times, work)
