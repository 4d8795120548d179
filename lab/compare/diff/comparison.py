"""Two recordings compared: rank by rank, per unit of work, causes of the whole before rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    file_of,
    findings,
    of_whole,
)
from lab.compare.diff.groups import Group, Placed, by_key, by_module, by_phase, limits, placed
from lab.compare.diff.judge import BELOW, EXACT, FLOOR_SHARE, enough_processes, floor_ns_of
from lab.compare.diff.split import Block, Row, common, parts_of, replaced
from lab.compare.side import Side, Work, place_text, read_side
from lab.compare.units import TIMES, Units, times_of, unit_of, units
from lab.compare.whole import ALARMS, Total, judge_totals
from lab.errors import MissingError, UsageError
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
    """One rank of both sides, without `units` where none can be compared; `comparison` says what changed."""

    units: tuple[Units, Units] | None
    comparison: Comparison

    @cached_property
    def placed(self) -> tuple[Placed, Placed]:
        """Both with the place of each operation in the program."""
        assert self.units is not None
        a, b = map(placed, self.units)
        return a, b


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
        of_ranks = [
            (name, side.ranks[rank]) for name, side in zip("AB", sides, strict=True) for rank in ranks
        ]
        difference.files = [file_of(*of_rank) for of_rank in of_ranks]
    return Compared(difference, shown)


def _common_ranks(a: Side, b: Side) -> list[tuple[str, int]]:
    if ranks := sorted(a.ranks.keys() & b.ranks.keys()):
        return ranks
    had = [f"{side.path.name} has {', '.join(map(place_text, sorted(side.ranks)[:8]))}" for side in (a, b)]
    raise MissingError(
        f"no rank is on both sides: {' and '.join(had)}", fix="name recordings of the same ranks"
    )


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
    if pair.units is None:
        return
    comparison = pair.comparison
    phases = by_phase(*pair.placed) if "phase" in by or len(comparison.findings) > 2 else []
    if cause := phase_alone(phases, comparison.rows, comparison.floor_ns):
        comparison.findings.insert(sum(finding.kind in WHOLE for finding in comparison.findings), cause)
    for name in by:
        if name in ("op", "kernel"):
            comparison.groups[name] = by_key(name, *pair.units)
        else:
            comparison.groups[name] = phases if name == "phase" else by_module(*pair.placed)
    if {"phase", "module"} & set(by):
        comparison.notes += limits(*pair.placed)
        _locate(pair)
    for finding in comparison.findings if evidence else ():
        rows = [comparison.rows[index] for index in finding.rows]
        for number, units_of in enumerate(pair.units):
            finding.evidence += evidence_of(number, units_of, finding, rows)


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
                is_of_rows = side.units.work.is_key(wanted.__contains__) & side.units.chosen
                around += side.paths_of(np.flatnonzero(is_of_rows))
            finding.module_path = " / ".join(common(around))


def compare_pair(a: Work, b: Work, repeats_a: Sequence[Work] = (), repeats_b: Sequence[Work] = ()) -> Pair:
    """One rank of A and of B, with further processes of both."""
    sides, coarse = at_common_detail([a, *repeats_a], [b, *repeats_b])
    unit = unit_of(sides[0][0], sides[1][0])
    if unit is None:
        return Pair(None, _without_unit(a, b))
    of_a, of_b = ([units(work, unit) for work in side] for side in sides)
    _raise_for_copies([of_a[0], of_b[0], *of_a[1:], *of_b[1:]])
    comparison = _compared(of_a, of_b)
    comparison.notes = [*coarse, *comparison.notes]
    return Pair((of_a[0], of_b[0]), comparison)


def _compared(of_a: list[Units], of_b: list[Units]) -> Comparison:
    """The first process of each side compared; further ones prove what changed."""
    a, b = of_a[0], of_b[0]
    timeless = without_times(a, b)
    axes = axes_of(a, b)
    other_work = incomparable(axes, a, b)
    times_a, times_b = ([process.totals_ns for process in side] for side in (of_a, of_b))
    # Half of the allowed false alarms is for the totals, as in the gate.
    totals = [] if timeless else judge_totals(times_a, times_b, alarms=ALARMS / 2)
    rows, causes, floor = judged((of_a, of_b), totals)
    if timeless:
        causes = []
        for row in rows:
            row.confidence = row.confidence if row.kind in EXACT else BELOW
    blocks = replaced(a.sequence, b.sequence, rows)
    over_repeats = totals if enough_processes(of_a, of_b) else []
    named, unnamed = findings(rows, blocks, a, b, over_repeats)
    means = [{f"{name}_ns": side.mean_ns(name) for name in TIMES} for side in (a, b)]
    change = {name: means[1][name] - means[0][name] for name in means[0] if name != "kernel_sum_ns"}
    parts = parts_of(rows)
    kernel_ns = sum(parts.values())
    return Comparison(
        comparable=not (other_work or timeless),
        reason=other_work or timeless,
        rank=a.work.rank,
        unit=a.unit,
        units_a=a.count,
        units_b=b.count,
        delta_kernel_ns=kernel_ns,
        parts=parts,
        **change,  # type: ignore[arg-type]
        residual_ns=change["span_ns"] - (kernel_ns - change["overlap_ns"] + change["idle_ns"]),
        a=means[0],
        b=means[1],
        axes=axes,
        totals=totals,
        rows=rows,
        blocks=blocks,
        api=calls(a, b),
        # Of other work no change has a cause to be named; the rows and the totals stand all the same.
        findings=[] if other_work else [*causes, *of_whole(over_repeats, [*causes, *named]), *named],
        unnamed=[] if other_work else unnamed,
        notes=[*notes(a, b), *of_collectives(rows)],
        own_ns=change["span_ns"] - change["exposed_comm_ns"],
        floor_share=floor,
        floor_ns=floor_ns_of(a, b),
    )


def _without_unit(a: Work, b: Work) -> Comparison:
    """Not comparable, with the totals of both recordings."""
    sides = [times_of(work, np.arange(len(work.dur_ns))) for work in (a, b)]
    totals = [{f"{name}_ns": float(side[name]) for name in TIMES} for side in sides]
    return Comparison(
        comparable=False,
        reason="neither steps nor a kernel with several calls on both sides: no unit to compare by",
        rank=a.rank,
        unit=None,
        a=totals[0],
        b=totals[1],
    )


def _raise_for_copies(processes: Sequence[Units]) -> None:
    """Raises UsageError for a repeat (all but the first two) with the times of another recording, which
    proves nothing twice."""
    earlier: dict[object, Path] = {}
    for number, process in enumerate(processes):
        times = (process.times_ns["span"].tobytes(), frozenset(process.sums.items()))
        source = process.work.trace.source
        if times in earlier and number > 1:
            raise UsageError(
                f"{source} is a copy of {earlier[times]}: no further process",
                fix="record the program again, in another process",
            )
        earlier.setdefault(times, source)
