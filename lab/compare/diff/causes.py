"""Causes of a change of the whole, which come before rows: a few steps alone, one factor on all kernels, one
phase alone.

Where every kernel takes 5 % longer, 36 rows say less than "one factor": a clock, a power cap, another board.
Where one step of eight is slow, every row has changed a little, and none is the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from lab.compare.diff.around import Differs
from lab.compare.diff.findings import Finding
from lab.compare.diff.groups import Group
from lab.compare.diff.judge import (
    BELOW,
    COVERED,
    FLOOR_SHARE,
    LONG_NS,
    NAMED,
    ONE_PAIR,
    PROVEN,
    edge_of,
    enough_processes,
    floor_ns_of,
    judge_by_repeats,
    judge_by_steps,
    judge_rows,
    unlike_steps,
)
from lab.compare.diff.split import SHARED, Row, split
from lab.compare.units import Sums, Units
from lab.compare.whole import KERNELS, LEAST_CHANGE, Total
from lab.core.words import plural

FACTOR_ROWS, FACTOR_SHARE, FACTOR_TIME = 3, 0.75, 0.7  # kernels; of them, and of their time, those alike
FACTOR_SPREAD, LEAST_SPREAD = 1 / 3, 0.015  # how far from it they may be: of the factor, and at least
FACTOR_PART = 0.5  # of a proven change of the whole, that one factor on all kernels has to be
COVERED_TIME = 0.8  # of the kernel time, that the shared kernels have to cover
PHASE_SHARE, PHASE_ROWS = 0.9, 3
CLOCKS = ("clock", "power", "throttle", "temperature")  # what may stand behind one factor on all kernels


def judged(
    sides: tuple[list[Units], list[Units]], totals: Sequence[Total]
) -> tuple[list[Row], list[Finding], float]:
    """The rows of the change with their confidence, the causes of the whole that take rows' places, and the
    floor. sides: the processes of A and of B."""
    a, b = sides[0][0], sides[1][0]
    edge, floor_ns = edge_of(a, b), floor_ns_of(a, b)
    causes = []
    rows = usual_rows = split(a.sums, b.sums)
    steps = unlike_steps(a, b)
    if steps.text:  # rows are judged by the other steps
        causes.append(Finding(text=steps.text, ns=steps.ns, kind="steps"))
        usual_rows = split(a.sums_without(steps.masks[0]), b.sums_without(steps.masks[1]))
        judge_rows(rows, edge, floor_ns)
    floor = judge_rows(usual_rows, edge, floor_ns)
    if a.is_step:
        judge_by_steps(usual_rows, (a, b), steps.masks)
    if enough_processes(*sides):
        judge_by_repeats(rows, *sides)
    usual_of = {(row.kind, row.keys): row for row in usual_rows}
    durations = [(row, usual_of.get((row.kind, row.keys), row)) for row in rows if row.kind == SHARED]
    for row, usual in durations if steps.text else ():
        if usual is row or usual.confidence not in NAMED:
            row.confidence = BELOW if usual is row else usual.confidence
    if factor := _factor(sides, usual_rows, totals):
        finding, share = factor
        if finding.confidence == ONE_PAIR:
            finding.ns = (finding.ns or 0.0) - steps.ns
        causes.append(finding)
        for row, usual in durations:  # what the factor explains has no finding of its own
            left = (1 + usual.slower) / (1 + share) - 1
            is_small = abs(left) <= max(floor, FACTOR_SPREAD * abs(share)) or abs(left) * row.ns_a <= floor_ns
            if row.confidence in NAMED and is_small:
                row.confidence = COVERED
    return rows, causes, floor


def _factor(
    sides: tuple[list[Units], list[Units]], rows: Sequence[Row], totals: Sequence[Total]
) -> tuple[Finding, float] | None:
    """One factor on all kernels, and its share: of one pair beyond the floor, of repeats where the whole is
    proven to differ."""
    a_ns, b_ns = (side[0].mean_ns("kernel_sum") for side in sides)
    if not b_ns:  # no durations
        return None
    ns, floor_share, least_share, confidence, proof = b_ns - a_ns, FLOOR_SHARE, 0.0, ONE_PAIR, ""
    if enough_processes(*sides):
        total = next((total for total in totals if total.name == KERNELS and total.differs), None)
        if not total or total.change is None:
            return None
        rows, floor_share, confidence = split(*map(_mean_sums, sides)), LEAST_CHANGE, PROVEN
        ns, interval = total.head_ns - total.base_ns, f"{total.low:+.2%} to {total.high:+.2%}"
        over = f"{total.n_base} and {total.n_head} processes"
        proof = f"; kernel time {total.change:+.2%} ({interval}) over {over}"
        # With less than half of the change some rows are the change, and not all kernels.
        least_share = FACTOR_PART * abs(total.change)
    factor = common_factor(rows, a_ns, floor_share=floor_share)
    if not factor or abs(factor.share) < least_share:
        return None
    kernels = plural(factor.of_rows, "kernel")
    text = f"one factor on all kernels: {factor.share:+.1%}, in {factor.rows} of {kernels} alike{proof}"
    return Finding(text=text, ns=ns, kind="factor", confidence=confidence), factor.share


class Factor(NamedTuple):
    """One factor on all kernels: its share (0.05 is 5 % longer), and how many of the kernels have it."""

    share: float
    rows: int
    of_rows: int


def common_factor(
    rows: Sequence[Row], kernel_ns: float, *, floor_share: float = FLOOR_SHARE
) -> Factor | None:
    """The factor that nearly all kernels share, if it is beyond `floor_share`. kernel_ns: A's kernel time."""
    shared = [row for row in rows if row.kind == SHARED and row.ns_a >= LONG_NS]
    time_ns = sum(row.ns_a for row in shared)
    if len(shared) < FACTOR_ROWS or time_ns < COVERED_TIME * kernel_ns:
        return None
    middle = median(row.slower for row in shared)
    spread = max(FACTOR_SPREAD * abs(middle), LEAST_SPREAD)
    alike = [row for row in shared if abs(row.slower - middle) <= spread]
    alike_ns = sum(row.ns_a for row in alike)
    is_small = abs(middle) <= floor_share
    if is_small or len(alike) < FACTOR_SHARE * len(shared) or alike_ns < FACTOR_TIME * time_ns:
        return None
    return Factor(sum(row.ns for row in alike) / alike_ns, len(alike), len(shared))


def _mean_sums(side: Sequence[Units]) -> Sums:
    """Of the mean process, what all processes have."""
    common = set.intersection(*(set(units.sums) for units in side))
    pairs = {key: np.array([units.sums[key] for units in side]).mean(axis=0) for key in common}
    return {key: (float(n), float(ns)) for key, (n, ns) in pairs.items()}


def add_clocks(findings: Sequence[Finding], around: Sequence[Differs]) -> None:
    """What is recorded beside one factor on all kernels that may be its cause."""
    recorded = [
        f"{differs.name} {differs.change}"
        for differs in around
        if differs.name == "devices" or any(word in differs.name for word in CLOCKS)
    ]
    beside = "; ".join(recorded[:3]) or "no clocks are recorded on both sides"
    for finding in findings:
        if finding.kind == "factor":
            finding.text += f" (a clock, a power cap or another board does so; {beside})"


def phase_alone(groups: Sequence[Group], rows: Sequence[Row], floor_ns: float) -> Finding | None:
    """The one phase that has the change, where several of its rows are named."""
    named = sum(row.confidence in NAMED for row in rows)
    in_both = [group for group in groups if group.ns_a and group.ns_b]
    total_ns = sum(abs(group.change_ns) for group in groups)
    if named < PHASE_ROWS or len(in_both) < 2 or not total_ns:
        return None
    largest = max(groups, key=lambda group: abs(group.change_ns))
    if largest not in in_both or abs(largest.change_ns) < PHASE_SHARE * total_ns:
        return None
    share = largest.change_ns / largest.ns_a
    if abs(share) <= FLOOR_SHARE or abs(largest.change_ns) <= floor_ns:
        return None
    other_groups = [group for group in groups if group is not largest]
    other_ns = sum(group.ns_a for group in other_groups)
    other_share = sum(group.change_ns for group in other_groups) / other_ns if other_ns else 0.0
    text = f"the phase {largest.key} alone: kernel time {share:+.1%}, the other phases {other_share:+.1%}"
    return Finding(text=text, ns=largest.change_ns, kind="phase")
