"""`lab check`: processes of BASE against processes of HEAD, exact figures first, time last.

What is the same in all processes of a side and another in all of the other is a finding without statistics:
launches, waits, copies, the set of kernels. Times are judged by `lab.stats.gate`, kernel time before wall
time, and each at its share of the allowed false alarms (Bonferroni over the metrics).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
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
STEPS = "step time"  # of a program that writes its own step times
# A file of step times begins so; whatever else stands in it is not read.
_TIMES = re.compile(rb'\s*\{\s*"step_ms"\s*:\s*\[')
_START_BYTES = 4096
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Process:
    """One process: the median of its steps by metric, ns, and what counts exactly, per step."""

    times_ns: dict[str, float]
    counts: dict[str, float]


class _StepTimes(msgspec.Struct):
    step_ms: list[float]


class Metric(msgspec.Struct, kw_only=True):
    """One metric's decision; shares are of BASE. level: that of the interval from low to high."""

    name: str
    level: float
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


def processes(folder: Path) -> list[Process]:
    """The processes at a path: one recording each, or its own step times as `{"step_ms": [12.1, ...]}`.

    Raises MissingError for an empty folder, BadDataError for a recording without marked steps.
    """
    files = recordings_at(folder)
    if not files:
        raise MissingError("no recording in this folder", where=folder, fix="one recording per process")
    return [one for file in files for one in _processes_of(file)]


def _processes_of(file: Path) -> list[Process]:
    if (times := _own_times(file)) is not None:
        return [Process({STEPS: times}, {})]
    found = []
    for work in read_works(file):
        if not len(work.steps_ns):
            raise BadDataError("no step is marked in this recording", where=file, fix=_MARK)
        if work.torn:
            raise BadDataError(
                f"no sample, because GPU work is missing: {work.torn[0]}", where=file, fix="record it again"
            )
        found.append(_process(by_step(work)))
    return found


def _process(units: Units) -> Process:
    medians = {words: float(np.median(units.times_ns[name])) for name, words in METRICS.items()}
    return Process(medians, _counts(units))


def _own_times(file: Path) -> float | None:
    """The median of the step times in this file, ns; None if it is another kind of file."""
    if not file.is_file() or file.suffix != ".json":
        return None
    with file.open("rb") as opened:
        if not _TIMES.match(opened.read(_START_BYTES)):
            return None
    if file.stat().st_size > _MOST_BYTES:
        raise BadDataError(f"step times of more than {_MOST_BYTES >> 20} MiB", where=file)
    try:
        times = np.array(msgspec.json.decode(file.read_bytes(), type=_StepTimes).step_ms, dtype=float)
    except msgspec.DecodeError as error:
        raise BadDataError(f"not step times: {error}", where=file, fix=_TIMES_FIX) from error
    if not len(times) or not (np.isfinite(times).all() and (times > 0).all()):
        raise BadDataError("step times must be positive, and at least one", where=file, fix=_TIMES_FIX)
    return float(np.median(times)) * 1e6


_MARK = "call profiler.step(), or mark steps with record_function('step_0'), 'step_1', ..."

_TIMES_FIX = 'write {"step_ms": [12.1, 12.3]}, one time per step'


def judge(
    base: Sequence[Process], head: Sequence[Process], max_slowdown: float, *, looks: int = 1
) -> Verdict:
    """`looks`: how often a gate looks at growing numbers of processes; each has its part of the error.

    Raises BadDataError where some processes are recordings and others step times.
    """
    kinds = {tuple(one.times_ns) for one in (*base, *head)}
    if len(kinds) > 1:
        raise BadDataError(
            "some processes are recordings of a GPU and others step times: they have no metric in common",
            fix="write the same kind of file on both sides",
        )
    names = next(iter(kinds), ())
    level = 1 - (1 - LEVEL) / max(len(names), 1) / looks
    metrics = []
    for name in names:
        a, b = ([one.times_ns[name] for one in side] for side in (base, head))
        if min(*a, *b) <= 0:
            raise BadDataError(f"a process without any {name}", fix="see lab inspect on each recording")
        decision: dict[str, Any] = decide(a, b, max_slowdown, level=level)
        metrics.append(Metric(name=name, level=level, **decision))
    outcomes = {one.outcome for one in metrics}
    outcome = (
        "regression" if "regression" in outcomes else "excluded" if outcomes == {"excluded"} else "undecided"
    )
    return Verdict(outcome=outcome, max_slowdown=max_slowdown, metrics=metrics, exact=exact(base, head))


def exact(base: Sequence[Process], head: Sequence[Process]) -> list[str]:
    """Counts that are equal in all processes of a side, and differ between the sides."""
    found = []
    counts = [[one.counts for one in side] for side in (base, head)]
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
        *(metric_words(one) for one in found.metrics),
        *(f"Exact: {one}" for one in found.exact),
    ]


def metric_words(one: Metric) -> str:
    if one.low is None or one.high is None or one.detectable is None:
        more = plural(one.more or 0, "more process", "more processes")
        return f"{one.name}: {one.n_base} and {one.n_head} processes are too few; {more} a side at least."
    what = (
        f"{one.name}: {one.change:+.2%}, {100 * one.level:.4g} % interval {one.low:+.2%} to {one.high:+.2%}"
    )
    seen = f"smallest change that could be seen: {one.detectable:.1%}"
    if one.outcome != "undecided":
        return f"{what} ({seen})."
    further = (
        "no number of processes up to 10,000"
        if one.more is None
        else plural(one.more, "more process", "more processes")
    )
    return f"{what} ({seen}); {further} a side would decide, if the change stays."
