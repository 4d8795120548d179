"""Whether the whole differs: the one test of totals, which `lab diff` and `lab check` both call.

The samples are processes. Each has the times of its steps by quantity (kernel time, step time, idle time).
Of these the mean, the median and the tail count, each by itself: a program that is ten times slower in every
fifth step has the same median. The first step stands apart, because it often warms up. A slowdown is proven
of all totals together (Holm), and excluded of each by itself, because all must be.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from lab.core.words import first_few, plural
from lab.errors import BadDataError
from lab.stats.effects import holm
from lab.stats.gate import LEVEL, Decision, decide
from lab.stats.robust import mad, median, percentile

KERNELS, SPAN, IDLE = "kernel time", "step time on the GPU", "idle time on the GPU"
OWN = "step time"  # of a program that writes its own step times
MEAN, MEDIAN, TAIL, FIRST = "mean", "median", "p95", "first step"
APART = "apart"  # the outcome of the first step
MEDIAN_STEPS, TAIL_STEPS = 3, 19  # without the first: p95 of 19 steps rests on the two longest
ALARMS = 1 - LEVEL  # of equal pairs of sides, the share that may be called different
LEAST_CHANGE = 0.001  # of a total: the clock's ticks and rounding, never a change
UNEVEN_SHARE, UNEVEN_DEVIATIONS, MAD_TO_SD = 0.05, 8.0, 1.4826
NAMED_STEPS = 6
StepTimes = Mapping[str, np.ndarray]  # of one process: (steps,) ns by quantity, in the order of the steps


class Total(msgspec.Struct, kw_only=True):
    """One statistic of one quantity over the processes of both sides; shares are of BASE.

    change, low and high of idle time are shares of BASE's step. level: of the interval, which holds for all
    totals at once. base_ns, head_ns: geometric means over processes, as they are compared. outcome:
    `regression`, `excluded`, `undecided`, `unconfirmed` by a second set, or `apart`: the first step decides
    nothing. faster: a gain is proven.
    """

    name: str
    statistic: str
    outcome: str
    n_base: int
    n_head: int
    base_ns: float
    head_ns: float
    level: float
    change: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    further: int | None = None
    faster: bool = False

    @property
    def decides(self) -> bool:
        return self.statistic != FIRST

    @property
    def differs(self) -> bool:
        return self.outcome == "regression" or self.faster


def judge_totals(
    base: Sequence[StepTimes], head: Sequence[StepTimes], allowed: float = 0.0, *, alarms: float = ALARMS
) -> list[Total]:
    """Every total that all processes have. `alarms`: of equal sides, the share of which any may be called
    different. Raises BadDataError where a process has no time of a quantity."""
    names = _names_of([*base, *head])
    limit = max(allowed, LEAST_CHANGE)
    pairs = [(*values_of(base, head, *name), limit) for name in names]
    for (name, _), (base_ns, head_ns, _) in zip(names, pairs, strict=True):
        if min([*base_ns, *head_ns]) <= 0:
            raise BadDataError(f"a process without any {name}", fix="see lab inspect on each recording")
    # The first step stands apart: it adds no chance of a false alarm.
    decided = decide_all(pairs, [statistic != FIRST for _, statistic in names], alarms=alarms)
    totals = []
    for (name, statistic), (base_ns, head_ns, _), decision in zip(names, pairs, decided, strict=True):
        added_ns = _busy_ns(base) if name == IDLE else 0.0
        total = Total(
            name=name,
            statistic=statistic,
            base_ns=geometric_mean(base_ns) - added_ns,
            head_ns=geometric_mean(head_ns) - added_ns,
            **fields_of(Total, decision),
        )
        total.outcome = total.outcome if total.decides else APART
        totals.append(total)
    return totals


def fields_of(kind: type[msgspec.Struct], decision: Decision) -> dict[str, Any]:
    """What the struct has of its decision."""
    return {name: value for name, value in vars(decision).items() if name in kind.__struct_fields__}


def geometric_mean(times: Sequence[float]) -> float:
    """The mean of the logs, in which times are compared: a change fits what is printed beside it."""
    return float(np.exp(np.log(times).mean()))


def decide_all(
    pairs: Sequence[tuple[Sequence[float], Sequence[float], float]],
    counted: Sequence[bool],
    *,
    alarms: float,
    ahead: bool = True,
) -> list[Decision]:
    """Decide each pair of sides with its limit. Proven is what Holm's order proves of those that are counted,
    half of the false alarms for slower, half for faster; excluded is each by itself, because all must be."""
    level = 1 - alarms / max(sum(counted), 1)  # of intervals that hold for all at once
    decided = [decide(*pair, level=level, excluding=1 - alarms, ahead=ahead) for pair in pairs]
    p_values = [
        (d.p_slower, d.p_faster) if is_counted else (np.nan, np.nan)
        for d, is_counted in zip(decided, counted, strict=True)
    ]
    slower, faster = (holm(p) <= alarms / 2 for p in np.array(p_values).reshape(-1, 2).T)
    for index, decision in enumerate(decided):
        decision.faster = bool(faster[index])
        if slower[index]:
            decision.outcome, decision.further = "regression", 0
        elif decision.outcome == "regression":  # an interval alone leaves it open
            decision.outcome = "undecided"
    return decided


def outcome_of(totals: Sequence[Total]) -> str:
    """`regression` if one total is slower, `excluded` if that is excluded of all, else `undecided`."""
    outcomes = {total.outcome for total in totals if total.decides}
    if "regression" in outcomes:
        return "regression"
    return "excluded" if outcomes == {"excluded"} else "undecided"


def _names_of(processes: Sequence[StepTimes]) -> list[tuple[str, str]]:
    """Each quantity that every process has, with the statistics for which all have enough steps."""
    names = []
    for name in processes[0] if processes else ():
        if all(name in process for process in processes):
            steps = min(len(process[name]) for process in processes)
            enough = {MEAN: True, MEDIAN: steps > MEDIAN_STEPS, TAIL: steps > TAIL_STEPS, FIRST: steps > 1}
            names += [(name, statistic) for statistic, is_enough in enough.items() if is_enough]
    return names


def values_of(
    base: Sequence[StepTimes], head: Sequence[StepTimes], name: str, statistic: str
) -> tuple[list[float], list[float]]:
    """One value per process of both sides, ns. Idle time stands on top of BASE's busy time, so that a change
    is a share of the step."""
    added_ns = _busy_ns(base) if name == IDLE else 0.0
    base_ns, head_ns = (
        [added_ns + statistic_of(process[name], statistic) for process in side] for side in (base, head)
    )
    return base_ns, head_ns


def statistic_of(steps_ns: np.ndarray, statistic: str) -> float:
    """Compute over the steps without the first, where there are several."""
    if statistic == FIRST:
        return float(steps_ns[0])
    later_ns = steps_ns[1:] if len(steps_ns) > 1 else steps_ns
    if statistic == MEAN:
        return float(later_ns.mean())
    return median(later_ns) if statistic == MEDIAN else percentile(later_ns, 95)


def _busy_ns(base: Sequence[StepTimes]) -> float:
    return float(np.mean([statistic_of(process[SPAN] - process[IDLE], MEAN) for process in base]))


def excess(steps_ns: np.ndarray, least_ns: float = 0.0) -> tuple[np.ndarray, float]:
    """Which steps (n,) are unlike the others, by 5 % of the median, eight robust deviations and `least_ns`,
    and what they add to the mean."""
    middle = median(steps_ns)  # unlike steps are what moves a mean
    limit_ns = max(least_ns, UNEVEN_SHARE * middle, UNEVEN_DEVIATIONS * MAD_TO_SD * mad(steps_ns))
    mask = np.abs(steps_ns - middle) > limit_ns
    return mask, float(((steps_ns - middle) * mask).mean())


def carried_by_steps(base: Sequence[StepTimes], head: Sequence[StepTimes], name: str) -> str:
    """Which steps carry the change of the mean, where few do; "" where all do, or none changed."""
    sides = [
        [excess(process[name][1:]) for process in side if len(process[name]) > 1] for side in (base, head)
    ]
    if any(len({len(mask) for mask, _ in side}) != 1 for side in sides):
        return ""
    base_ns, head_ns = values_of(base, head, name, MEAN)
    change_ns = float(np.mean(head_ns) - np.mean(base_ns))
    carried_ns = [float(np.mean([ns for _, ns in side])) for side in sides]
    if not change_ns or not (carried_ns[1] - carried_ns[0]) / change_ns >= 0.5:
        return ""
    index = int(abs(carried_ns[1]) > abs(carried_ns[0]))
    usual = np.mean([mask for mask, _ in sides[index]], axis=0)
    steps = np.flatnonzero(usual > 0.5) + 1
    side_name = ("BASE", "HEAD")[index]
    text = f"{name}: {usual.mean():.0%} of {side_name}'s steps carry the change of the mean"
    return f"{text}: {numbered(steps.tolist())} (from 0)" if len(steps) else f"{text}, others in each process"


def numbered(steps: Sequence[int]) -> str:
    """`step 25`; `steps 13, 17 and 21, every 4th`; of many the first ones."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    apart = {later - earlier for earlier, later in itertools.pairwise(steps)}
    listed = f"steps {first_few(list(map(str, steps)), NAMED_STEPS)}"
    if len(steps) < 3 or len(apart) > 1 or apart == {1}:
        return listed
    (spacing,) = apart
    ends = {} if 10 < spacing % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}
    return f"{listed}, every {spacing}{ends.get(spacing % 10, 'th')}"


def whole_words(totals: Sequence[Total], allowed: float) -> list[str]:
    """What is said of the whole: of which statistics a slowdown is proven, excluded, or left open."""
    limit = f"{allowed:.1%}"
    deciding = [total for total in totals if total.decides]
    if outcome_of(totals) == "regression":
        return [f"Slower by more than {limit}: proven."]
    if outcome_of(totals) == "excluded":
        has_tail = any(total.statistic == TAIL for total in deciding)
        scope = "of the mean step and of the tail (p95)" if has_tail else "of the mean step"
        few = "" if has_tail else f"; a tail needs {TAIL_STEPS + 1} steps per process"
        return [f"A slowdown beyond {limit} is excluded, {scope}{few}."]
    lines = [f"Cannot tell whether HEAD is slower by more than {limit}."]
    by_statistic = {
        statistic: {total.outcome for total in deciding if total.statistic == statistic}
        for statistic in (MEAN, MEDIAN, TAIL)
    }
    sure = [statistic for statistic, outcomes in by_statistic.items() if outcomes == {"excluded"}]
    if MEDIAN in sure:
        lines.append(
            f"Excluded of the {' and the '.join(sure)} alone: a longer step in some is not excluded."
        )
    return lines


def total_words(total: Total) -> str:
    """One line: both values, the change with its interval, and what is proven."""
    times = f"{total.base_ns / 1e6:,.3f} ms -> {total.head_ns / 1e6:,.3f} ms"
    label = f"{total.name}, {total.statistic}: {times}"
    if total.change is None:
        return label
    of_step = " of the step" if total.name == IDLE else ""
    if total.low is None or total.high is None or total.detectable is None:
        needed = plural(total.further or 0, "more process", "more processes")
        few = f"{total.n_base} and {total.n_head} processes are too few; {needed} per side at least"
        return f"{label} ({total.change:+.2%}{of_step}): {few}."
    interval = f"{100 * total.level:.4g} % interval {total.low:+.2%} to {total.high:+.2%}"
    label = f"{label}, {total.change:+.2%}{of_step}, {interval}"
    if not total.decides:
        return f"{label} (stands apart, decides nothing)."
    proven = {
        "regression": ", slower: proven",
        "unconfirmed": ", slower by the first set, not by the second",
    }.get(total.outcome, ", faster: proven" if total.faster or total.high < 0 else "")
    line = f"{label}{proven} (smallest change that could be seen: {total.detectable:.1%})"
    if total.outcome != "undecided":
        return f"{line}."
    further = "no number of processes up to 10,000"
    if total.further is not None:
        further = plural(total.further, "more process", "more processes")
    return f"{line}; {further} per side would decide, if the change stays."
