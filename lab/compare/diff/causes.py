"""Causes of a change of the whole, which come before rows: a few steps alone, one factor on all kernels, one
phase alone.

Where every kernel takes 5 % longer, 36 rows say less than "one factor": a clock, a power cap, another board.
Where one step of eight is slow, every row has changed a little, and none is the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from lab.compare.diff.groups import Group
from lab.compare.diff.judge import COVERED, FLOOR_SHARE, LONG_NS, NAMED, floor_ns_of
from lab.compare.diff.split import Row, split
from lab.compare.units import Sums, Units
from lab.compare.whole import numbered, uneven
from lab.core.words import plural

STEPS_THAT_TELL = 4  # per side, below which no step is unlike the others
FACTOR_ROWS, FACTOR_SHARE, FACTOR_TIME = 3, 0.75, 0.7  # kernels; of them, and of their time, those alike
FACTOR_SPREAD, LEAST_SPREAD = 1 / 3, 0.015  # how far from it they may be: of the factor, and at least
COVERED_TIME = 0.8  # of the kernel time, that the shared kernels have to cover
PHASE_SHARE, PHASE_ROWS = 0.9, 3


@dataclass(frozen=True)
class UnlikeSteps:
    """The steps of both sides that carry a change, as masks (u,), ns per unit of it, and the sentence."""

    masks: tuple[np.ndarray, np.ndarray]
    ns: float
    text: str


def unlike_steps(a: Units, b: Units, name: str = "kernel_sum") -> UnlikeSteps | None:
    """The steps whose time (kernel time, or another of TIMES) is unlike that of the others, where they make a
    change of the mean that would be named."""
    sides = [units.times_ns[name] for units in (a, b)]
    if min(map(len, sides)) < STEPS_THAT_TELL:
        return None
    floor_ns = max(FLOOR_SHARE * a.mean_ns("span" if name != "kernel_sum" else name), floor_ns_of(a, b))
    masks = [uneven(times) & (abs(times - np.median(times)) > floor_ns) for times in sides]
    # The median, because unlike steps are what moves a mean.
    middles = [float(np.median(times)) for times in sides]
    carried = [
        float(((times - middle) * mask).mean())
        for times, middle, mask in zip(sides, middles, masks, strict=True)
    ]
    change_ns = carried[1] - carried[0]
    if abs(change_ns) <= floor_ns:
        return None
    words = "kernel time" if name == "kernel_sum" else f"{name.replace('_', ' ')} time"
    parts = []
    for side, units, times, middle, mask in zip("AB", (a, b), sides, middles, masks, strict=True):
        steps = [number for number, marked in zip(units.numbers, mask, strict=True) if marked]
        if steps:
            change = _change(middle, float(times[mask].mean()))
            alone = f"{side}'s {numbered(steps)} alone ({len(steps)} of {len(times)})"
            parts.append(f"{alone}: {words} {change} in {'it' if len(steps) == 1 else 'them'}")
    rest_of_steps = f"the other steps {_change(*middles)}"
    return UnlikeSteps((masks[0], masks[1]), change_ns, f"{', '.join(parts)}; {rest_of_steps}")


def _change(a_ns: float, b_ns: float) -> str:
    times = f"{a_ns / 1000:,.1f} -> {b_ns / 1000:,.1f} µs"
    return f"{b_ns / a_ns - 1:+.1%} ({times})" if a_ns > 1000 else times


@dataclass(frozen=True)
class Factor:
    """One factor on all kernels: its share (0.05 is 5 % longer), and how many of the kernels have it."""

    share: float
    rows: int
    of_rows: int

    @property
    def text(self) -> str:
        kernels = plural(self.of_rows, "kernel")
        return f"one factor on all kernels: {self.share:+.1%}, in {self.rows} of {kernels} alike"


def common_factor(
    rows: Sequence[Row], kernel_ns: float, *, floor_share: float = FLOOR_SHARE
) -> Factor | None:
    """The factor that nearly all kernels share, if it is beyond `floor_share`. kernel_ns: A's kernel time."""
    shared = [row for row in rows if row.kind == "same_kernel_duration" and row.ns_a >= LONG_NS]
    time_ns = sum(row.ns_a for row in shared)
    if len(shared) < FACTOR_ROWS or time_ns < COVERED_TIME * kernel_ns:
        return None
    middle = median(row.slower for row in shared)
    spread = max(FACTOR_SPREAD * abs(middle), LEAST_SPREAD)
    alike = [row for row in shared if abs(row.slower - middle) <= spread]
    if abs(middle) <= floor_share or len(alike) < FACTOR_SHARE * len(shared):
        return None
    alike_ns = sum(row.ns_a for row in alike)
    if alike_ns < FACTOR_TIME * time_ns:
        return None
    share = sum(row.ns for row in alike) / alike_ns
    return Factor(share, len(alike), len(shared))


def cover(pairs: Iterable[tuple[Row, Row]], share: float, floor: float, floor_ns: float) -> None:
    """Take back the durations that a factor of this share explains: what is left of them is below the
    floors. pairs: each row, and the same of the steps that no cause names."""
    for row, usual in pairs:
        if row.kind != "same_kernel_duration" or row.confidence not in NAMED:
            continue
        left = (1 + usual.slower) / (1 + share) - 1
        if abs(left) <= max(floor, FACTOR_SPREAD * abs(share)) or abs(left) * row.ns_a <= floor_ns:
            row.confidence = COVERED


def mean_rows(of_a: Sequence[Units], of_b: Sequence[Units]) -> list[Row]:
    """The change of the mean process, of what all processes of each side have."""
    return split(_mean_sums(of_a), _mean_sums(of_b))


def _mean_sums(side: Sequence[Units]) -> Sums:
    common = set.intersection(*(set(units.sums) for units in side))
    pairs = {key: np.array([units.sums[key] for units in side]).mean(axis=0) for key in common}
    return {key: (float(n), float(ns)) for key, (n, ns) in pairs.items()}


def phase_alone(groups: Sequence[Group], rows: Sequence[Row], floor_ns: float) -> tuple[str, float] | None:
    """The one phase that has the change, where several of its rows are named; and its ns."""
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
    return text, largest.change_ns
