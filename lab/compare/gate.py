"""`lab check`: processes of BASE against processes of HEAD, exact figures first, time last.

What is the same in all processes of a side and another in all of the other is a finding without statistics:
launches, waits, copies, the set of kernels. Times are judged by `lab.stats.gate`, kernel time before wall
time, and each at its share of the allowed false alarms (Bonferroni over the metrics).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.compare.side import read_works, recordings_at
from lab.compare.units import Units, by_step
from lab.core.words import plural
from lab.errors import BadDataError, MissingError
from lab.stats.gate import LEVEL, decide

METRICS = {"kernel_sum": "kernel time", "span": "step time on the GPU"}


class Metric(msgspec.Struct, kw_only=True):
    """One metric's decision; shares are of BASE."""

    name: str
    outcome: str
    n_base: int
    n_head: int
    change: float | None
    low: float | None
    high: float | None
    detectable: float | None
    more: int | None


class Verdict(msgspec.Struct, kw_only=True):
    """outcome: regression if a metric's is proven, excluded if all are excluded, else undecided."""

    outcome: str
    max_slowdown: float
    metrics: list[Metric]
    exact: list[str]


def processes(folder: Path) -> list[Units]:
    """The steps of each process: one recording per file, or the step times of each in a JSON file.

    Raises MissingError for an empty folder, BadDataError for a recording without marked steps.
    """
    files = recordings_at(folder)
    if not files:
        raise MissingError("no recording in this folder", where=folder, fix="one recording per process")
    found = []
    for file in files:
        for work in read_works(file):
            if not len(work.steps_ns):
                raise BadDataError("no step is marked in this recording", where=file, fix=_MARK)
            if work.torn:
                raise BadDataError(
                    f"no sample, because GPU work is missing: {work.torn[0]}",
                    where=file,
                    fix="record it again",
                )
            found.append(by_step(work))
    return found


_MARK = "call profiler.step(), or mark steps with record_function('step_0'), 'step_1', ..."


def judge(base: Sequence[Units], head: Sequence[Units], max_slowdown: float, *, looks: int = 1) -> Verdict:
    """`looks`: how often a gate looks at growing numbers of processes; each has its part of the error."""
    level = 1 - (1 - LEVEL) / len(METRICS) / looks
    metrics = []
    for name, words in METRICS.items():
        a, b = ([float(np.median(one.times_ns[name])) for one in side] for side in (base, head))
        decision: dict[str, Any] = decide(a, b, max_slowdown, level=level)
        metrics.append(Metric(name=words, **decision))
    outcomes = {one.outcome for one in metrics}
    outcome = (
        "regression" if "regression" in outcomes else "excluded" if outcomes == {"excluded"} else "undecided"
    )
    return Verdict(outcome=outcome, max_slowdown=max_slowdown, metrics=metrics, exact=exact(base, head))


def exact(base: Sequence[Units], head: Sequence[Units]) -> list[str]:
    """Counts that are equal in all processes of a side, and differ between the sides."""
    found = []
    counts = [[_counts(one) for one in side] for side in (base, head)]
    names = sorted({name for side in counts for one in side for name in one})
    for name in names:
        a, b = ({one.get(name, 0.0) for one in side} for side in counts)
        if len(a) == len(b) == 1 and a != b:
            found.append(f"{name}: {a.pop():g} -> {b.pop():g} per step")
    return found


def _counts(units: Units) -> dict[str, float]:
    kernels: dict[str, float] = {}
    for (_, _, _, kernel), (n, _) in units.sums.items():
        kernels[kernel] = kernels.get(kernel, 0.0) + n
    return {**kernels, **units.calls}


def sentences(found: Verdict) -> list[str]:
    heads = {
        "regression": f"Slower by more than {found.max_slowdown:.1%}: proven.",
        "excluded": f"A slowdown beyond {found.max_slowdown:.1%} is excluded.",
        "undecided": f"Cannot tell whether HEAD is slower by more than {found.max_slowdown:.1%}.",
    }
    return [
        heads[found.outcome],
        *(_metric(one) for one in found.metrics),
        *(f"Exact: {one}" for one in found.exact),
    ]


def _metric(one: Metric) -> str:
    if one.low is None or one.high is None or one.detectable is None:
        more = plural(one.more or 0, "more process", "more processes")
        return f"{one.name}: {one.n_base} and {one.n_head} processes are too few; {more} a side at least."
    what = f"{one.name}: {one.change:+.2%}, 99 % interval {one.low:+.2%} to {one.high:+.2%}"
    seen = f"smallest change that could be seen: {one.detectable:.1%}"
    if one.outcome != "undecided":
        return f"{what} ({seen})."
    further = (
        "no number of processes up to 10,000"
        if one.more is None
        else plural(one.more, "more process", "more processes")
    )
    return f"{what} ({seen}); {further} a side would decide, if the change stays."
