"""Two recordings compared: rank by rank, per unit of work, causes of the whole before rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from lab.compare.diff.around import Differs, differences, unknown
from lab.compare.diff.causes import add_clocks, judged, phase_alone
from lab.compare.diff.comparable import (
    Axis,
    at_common_detail,
    axes_of,
    incomparable,
    unlike_edges,
    without_times,
)
from lab.compare.diff.evidence import File, evidence_of, files
from lab.compare.diff.findings import WHOLE, Call, Finding, calls, findings, of_whole, unnamed
from lab.compare.diff.groups import Group, Placed, by_kernel, by_module, by_op, by_phase, limits, placed
from lab.compare.diff.judge import BELOW, EXACT, FLOOR_SHARE, enough_processes, floor_ns_of
from lab.compare.diff.limits import notes, of_collectives
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
    ranks = _common_ranks(*sides)
    pairs = []
    for rank in ranks:
        of_rank = [[side.ranks[rank] for side in paths if rank in side.ranks] for paths in repeats]
        pair = compare_pair(sides[0].ranks[rank], sides[1].ranks[rank], *of_rank)
        pair.comparison.configuration = rank[0]
        if any(of_rank) and min(map(len, of_rank)) < LEAST - 1:
            pair.comparison.notes.append(
                f"{len(of_rank[0]) + 1} and {len(of_rank[1]) + 1} processes prove nothing: "
                f"{LEAST} per side are the least, and the rows are those of one pair"
            )
        pairs.append(pair)
    all_sides = (*sides, *repeats[0], *repeats[1])
    works = [side.ranks[rank] for side in all_sides for rank in ranks if rank in side.ranks]
    comparisons = [pair.comparison for pair in pairs]
    difference = Difference(
        a=str(a),
        b=str(b),
        ranks=comparisons,
        jobs=jobs_of(comparisons),
        missing=[*_only_in(sides, ranks), *_not_in([*repeats[0], *repeats[1]], ranks)],
        problems=[text for side in all_sides for text in side.problems],
        torn=list(dict.fromkeys(text for work in works for text in work.torn)),
        blurred=[
            *dict.fromkeys(text for work in works for text in work.blurred),
            *(text for rank in ranks for text in unlike_edges(*(side.ranks[rank] for side in sides))),
        ],
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


def _only_in(sides: Sequence[Side], ranks: Sequence[tuple[str, int]]) -> list[str]:
    return [
        f"{place_text(rank)} is only in {side.path}"
        for side in sides
        for rank in sorted(side.ranks.keys() - set(ranks))
    ]


def _not_in(repeats: Sequence[Side], ranks: Sequence[tuple[str, int]]) -> list[str]:
    return [
        f"{place_text(rank)} is not in {side.path}"
        for side in repeats
        for rank in ranks
        if rank not in side.ranks
    ]


def jobs_of(comparisons: Sequence[Comparison]) -> list[Job]:
    """The slowest rank of both sides, of each configuration with several ranks."""
    jobs = []
    for configuration in dict.fromkeys(rank.configuration for rank in comparisons):
        ranks = [rank for rank in comparisons if rank.configuration == configuration and rank.unit]
        if len(ranks) < 2:
            continue
        rank_a, rank_b = (_slowest(ranks, side) for side in "ab")
        changed = [rank.rank for rank in ranks if _changed_itself(rank)]
        jobs.append(
            Job(
                configuration=configuration,
                a_ns=max(rank.a["span_ns"] for rank in ranks),
                b_ns=max(rank.b["span_ns"] for rank in ranks),
                rank_a=rank_a,
                rank_b=rank_b,
                alone=changed[0] if len(changed) == 1 else None,
            )
        )
    return jobs


def _slowest(ranks: Sequence[Comparison], side: str) -> int | None:
    """Pick, of the ranks whose step is as long as any, the one with the most own time, outside exposed
    communication, if it stands out: the others wait for it."""
    times: list[dict[str, float]] = [getattr(rank, side) for rank in ranks]
    least_ns = (1 - SLOWEST) * max(rank_ns["span_ns"] for rank_ns in times)
    own_ns = [
        (rank_ns["span_ns"] >= least_ns, rank_ns["span_ns"] - rank_ns["exposed_comm_ns"]) for rank_ns in times
    ]
    (is_long, second_ns), (_, longest_ns) = sorted(own_ns)[-2:]
    if is_long and second_ns >= (1 - SLOWEST) * longest_ns:
        return None
    return ranks[own_ns.index(max(own_ns))].rank


def _detail(pair: Pair, by: Sequence[str], evidence: bool) -> None:
    """What only the shown rank has: groups, the phase that changed alone, and evidence."""
    if pair.of_a is None or pair.of_b is None:
        return
    comparison = pair.comparison
    if "op" in by:
        comparison.groups["op"] = by_op(pair.of_a, pair.of_b)
    if "kernel" in by:
        comparison.groups["kernel"] = by_kernel(pair.of_a, pair.of_b)
    phases = by_phase(*pair.placed) if "phase" in by or len(comparison.findings) > 2 else []
    if cause := phase_alone(phases, comparison.rows, comparison.floor_ns):
        comparison.findings.insert(sum(finding.kind in WHOLE for finding in comparison.findings), cause)
    if "phase" in by:
        comparison.groups["phase"] = phases
    if "module" in by:
        comparison.groups["module"] = by_module(*pair.placed)
    if {"phase", "module"} & set(by):
        comparison.notes += limits(*pair.placed)
        _locate(pair)
    sides = (("A", pair.a, pair.of_a), ("B", pair.b, pair.of_b))
    for finding in comparison.findings if evidence else ():
        for side, work, units_of in sides:
            keys = []
            for row in (comparison.rows[index] for index in finding.rows):
                kernel = row.kernel_a if side == "A" else row.kernel_b
                keys += [(row.op, row.dims, row.types, kernel)] if kernel is not None else []
            finding.evidence += evidence_of(
                side, work, units_of, keys=keys, call=finding.call, idle=finding.kind == "idle"
            )


def _locate(pair: Pair) -> None:
    """Say of each replaced block, and of each finding about rows, where in the program it is."""
    comparison, sides = pair.comparison, pair.placed
    paths = []
    for side in sides:
        path_of, distinct = side.by_path()
        paths.append([distinct[index] for index in path_of[side.units.usual].tolist()])
    located = replaced(sides[0].units.sequence, sides[1].units.sequence, [], *paths)
    for block, with_place in zip(comparison.blocks, located, strict=True):
        block.module_path = with_place.module_path
    place_of = {block.index: block.module_path for block in comparison.blocks}
    for finding in comparison.findings:
        rows = [comparison.rows[index] for index in finding.rows]
        blocks = {row.block for row in rows}
        if finding.kind == "replaced_block" and len(blocks) == 1:
            finding.module_path = place_of.get(next(iter(blocks)) or 0, "")
        elif rows:
            ops = {(row.op, row.dims, row.types) for row in rows}
            kernels = {name for row in rows for name in (row.kernel_a, row.kernel_b)}
            around = []
            for side in sides:
                keys, key_of = side.work.keys
                is_of_rows = np.array([key[:3] in ops and key[3] in kernels for key in keys], dtype=bool)
                around += side.paths_of(np.flatnonzero(is_of_rows[key_of] & side.units.chosen))
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
    further = [[units(work, unit) for work in side] for side in (repeats_a, repeats_b)]
    _raise_for_copies(
        [(a, of_a), (b, of_b)],
        [*zip(repeats_a, further[0], strict=True), *zip(repeats_b, further[1], strict=True)],
    )
    sides = [of_a, *further[0]], [of_b, *further[1]]
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
        groups={},
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


def _raise_for_copies(pair: Sequence[tuple[Work, Units]], repeats: Sequence[tuple[Work, Units]]) -> None:
    """Raises UsageError for a repeat with the times of another recording, which proves nothing twice."""
    earlier_recordings = list(pair)
    for work, units_of in repeats:
        for earlier, earlier_units in earlier_recordings:
            if units_of.sums == earlier_units.sums and np.array_equal(
                units_of.times_ns["span"], earlier_units.times_ns["span"]
            ):
                raise UsageError(
                    f"{work.trace.source} is a copy of {earlier.trace.source}: no further process",
                    fix="record the program again, in another process",
                )
        earlier_recordings.append((work, units_of))
