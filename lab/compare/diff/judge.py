"""What a difference is worth: exact figures first, durations only beyond a floor and their own error.

Steps of one process are not samples of the program. Kernel sums of equal processes differ by 0.3 % and single
kernels by up to 2 % (copies below a microsecond more), so one pair can only suggest, and what is within the
scatter of its own steps it does not even suggest. Over processes rows are proven as in `lab check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.compare.diff.split import SHARED, Row
from lab.compare.side import is_wait
from lab.compare.signatures import judge_signatures
from lab.compare.units import MIN_STEPS, Units, as_a_rule, duration_errors
from lab.compare.whole import ALARMS, MAD_TO_SD, excess, numbered
from lab.stats.effects import holm
from lab.stats.gate import LEAST, LEVEL
from lab.stats.means import Sample, beyond_p, difference_ci
from lab.stats.robust import mad, median

FLOOR_SHARE, FLOOR_NS = 0.03, 1000.0
MOST_FLOOR, SCATTERS = 0.10, 5.0
STEPS_THAT_TELL = 4  # per side, below which no step is unlike the others
LEAST_UNIT_SHARE, LEAST_CALL_NS = 0.001, 50.0  # of a unit other than a step, and per call of the kernel
LONG_NS, FEW_ROWS = 10_000.0, 8  # per unit: rows that tell the scatter, and how many it takes
FEW_INFLATION = 6.0
MAX_LAG_CORRELATION = 0.9
PAIR_ALARMS = 0.002  # of equal pairs, for what is held against its own steps: processes differ by more
EXACT = ("count", "other_kernel", "op_gone", "op_new")
TIMED = ("idle", "exposed_comm", "exposed_copy")
ONE_PAIR, BELOW, PROVEN, WITHIN, STEPS_VARY, COVERED = (
    "one pair only",
    "below floor",
    "proven by repeats",
    "within the repeats' noise",
    "within the noise of its steps",
    "as the whole",  # a cause of the whole says it
)
NAMED = (PROVEN, ONE_PAIR)


def edge_of(a: Units, b: Units) -> float:
    """The units by which two recorded windows may differ at their edges; 0 for whole steps."""
    return 0.0 if a.is_step else 1 / a.count + 1 / b.count


def beyond_edge(n_a: float, n_b: float, edge: float) -> bool:
    """Whether counts per unit differ by more than what a window's edges may cut off, a unit's calls each."""
    return abs(n_b - n_a) > edge * (1 + max(n_a, n_b)) if edge else n_a != n_b


def calls_differ(a: Units, b: Units, name: str) -> bool:
    """Whether a unit calls it another number of times, or the end of the recording does, which has as many
    units as the program was told: what waits for the last of them once is not a change of each.

    GPUs of two vendors have two APIs, and two tools each record functions that the other does not.
    """
    if a.work.trace.meta.vendor != b.work.trace.meta.vendor:
        return False
    if a.work.plain and not is_wait(name) and not (name in a.calls and name in b.calls):
        return False
    if beyond_edge(a.inside.get(name, 0.0), b.inside.get(name, 0.0), edge_of(a, b)):
        return True
    if a.behind is None or b.behind is None:
        return False
    return a.behind.get(name, 0.0) != b.behind.get(name, 0.0)


def floor_ns_of(a: Units, b: Units) -> float:
    """The change per unit below which no duration is named: 1 µs of a step, less of a shorter unit, of which
    a recording has hundreds."""
    if a.is_step:
        return FLOOR_NS
    return min(FLOOR_NS, LEAST_UNIT_SHARE * max(a.mean_ns("kernel_sum"), b.mean_ns("kernel_sum")))


def judge_rows(rows: Sequence[Row], edge: float = 0.0, floor_ns: float = FLOOR_NS) -> float:
    """Give each row its confidence, where no repeats speak; the share below which no duration is named.

    A single call has to change by more than the GPU's clock ticks (32 ns on an H100).
    """
    floor = scatter_floor(rows)
    for row in rows:
        if row.kind in EXACT:  # another kernel of equal duration is another kernel, too
            exchanged = row.kernel_a is not None and row.kernel_b is not None and row.kind == "other_kernel"
            named = exchanged or beyond_edge(row.n_a, row.n_b, edge)
            row.confidence = ONE_PAIR if named else BELOW
        else:
            by_call = 2 * abs(row.ns) / (row.n_a + row.n_b)
            large = abs(row.ns) > floor_ns and (floor_ns == FLOOR_NS or by_call > LEAST_CALL_NS)
            row.confidence = ONE_PAIR if abs(row.slower) > floor and large else BELOW
    return floor


def scatter_floor(rows: Sequence[Row]) -> float:
    """Five robust deviations of the changes of shared kernels around their median, from 3 to 10 %.

    A change of all kernels alike moves the median, not the scatter. Above 10 % kernels do not scatter, they
    changed. Short kernels scatter more, and have a floor in microseconds.
    """
    shares = [row.slower for row in rows if row.kind == SHARED and row.ns_a >= LONG_NS]
    if len(shares) < FEW_ROWS:
        return FLOOR_SHARE
    scatter = MAD_TO_SD * mad(shares)
    scatter *= 1 + FEW_INFLATION / len(shares)  # of few rows the deviation is often too small
    return min(max(FLOOR_SHARE, SCATTERS * scatter), MOST_FLOOR)


def judge_by_steps(
    rows: Sequence[Row], units: tuple[Units, Units], unlike: tuple[np.ndarray, np.ndarray]
) -> None:
    """Take back durations beyond the floor that the steps themselves do not show (Welch over the steps, Holm
    over the rows that are tested). unlike: the steps of each side that a cause of the whole names."""
    tested = [row for row in rows if row.kind == SHARED and row.confidence == ONE_PAIR]
    keys = [key for row in tested if (key := row.keys[0])]
    errors = [duration_errors(side, keys, mask) for side, mask in zip(units, unlike, strict=True)]
    for row, p in zip(tested, holm(list(map(two_sided_p, *errors))), strict=True):
        if p > ALARMS:  # not a number where there are too few steps to tell
            row.confidence = STEPS_VARY


def two_sided_p(a: Sample | None, b: Sample | None) -> float:
    """NaN, which is in no test, where a side has too few steps."""
    return 2 * min(beyond_p(b, a), beyond_p(a, b)) if a and b else np.nan


def judge_by_repeats(rows: Sequence[Row], of_a: Sequence[Units], of_b: Sequence[Units]) -> None:
    """Durations of shared kernels over three processes per side and more: each row's own 99 % interval;
    proven is judged of all together, so that of equal sides one in a hundred has anything proven at most."""
    sides = [[{key: ns for key, (_, ns) in units.sums.items()} for units in side] for side in (of_a, of_b)]
    step_ns = float(np.mean([units.mean_ns("span") for units in of_a]))
    # The other half of the allowed false alarms belongs to the totals of the whole program.
    judged = judge_signatures(sides[0], sides[1], 0.0, alarms=ALARMS / 2, step_ns=step_ns)
    proven = {signature.key for signature in (*judged.slower, *judged.faster)} if judged else set()
    for row in rows:
        if row.kind != SHARED or not (key := row.keys[0]):
            continue
        ns = [[process[key] for process in side if key in process] for side in sides]
        if min(map(len, ns)) < LEAST:  # not in every process
            continue
        low, high = row.interval = difference_ci(Sample.of(ns[1]), Sample.of(ns[0]), level=LEVEL)
        row.confidence = PROVEN if key in proven else BELOW if low > 0 or high < 0 else WITHIN


@dataclass(frozen=True)
class UnlikeSteps:
    """Masks (u,) of both sides' steps that carry a change, its ns per unit, and the sentence; "" for none."""

    masks: tuple[np.ndarray, np.ndarray]
    ns: float = 0.0
    text: str = ""


def unlike_steps(a: Units, b: Units, name: str = "kernel_sum") -> UnlikeSteps:
    """The steps whose time (kernel time, or another of TIMES) is unlike that of the others, where they make a
    change of the mean that would be named."""
    times_a, times_b = (units.times_ns[name] for units in (a, b))
    floor_ns = max(FLOOR_SHARE * a.mean_ns("span" if name != "kernel_sum" else name), floor_ns_of(a, b))
    (mask_a, ns_a), (mask_b, ns_b) = (excess(times, floor_ns) for times in (times_a, times_b))
    if min(len(times_a), len(times_b)) < STEPS_THAT_TELL or abs(ns_b - ns_a) <= floor_ns:
        return UnlikeSteps((np.zeros_like(mask_a), np.zeros_like(mask_b)))
    parts = []
    for side, units, times, mask in (("A", a, times_a, mask_a), ("B", b, times_b, mask_b)):
        if steps := [number for number, marked in zip(units.numbers, mask, strict=True) if marked]:
            change = _change(median(times), float(times[mask].mean()))
            alone = f"{side}'s {numbered(steps)} alone ({len(steps)} of {len(times)})"
            parts.append(f"{alone}: {time_name(name)} {change} in {'it' if len(steps) == 1 else 'them'}")
    usual = f"the other steps {_change(median(times_a), median(times_b))}"
    return UnlikeSteps((mask_a, mask_b), ns_b - ns_a, f"{', '.join(parts)}; {usual}")


def time_name(name: str) -> str:
    """Of TIMES, as sentences call it."""
    return "kernel time" if name == "kernel_sum" else f"{name.replace('_', ' ')} time"


def _change(a_ns: float, b_ns: float) -> str:
    times = f"{a_ns / 1000:,.1f} -> {b_ns / 1000:,.1f} µs"
    return f"{b_ns / a_ns - 1:+.1%} ({times})" if a_ns > 1000 else times


def time_is_large(a: Units, b: Units, name: str) -> bool:
    """Whether it changed by 3 % of the unit, however much its steps vary."""
    # Relative to the unit: idle time may be near 0, where any ratio of its own is huge.
    floor = max(FLOOR_SHARE * a.mean_ns("span"), FLOOR_NS)
    return abs(b.mean_ns(name) - a.mean_ns(name)) > floor


def times_beyond_error(a: Units, b: Units) -> list[str]:
    """Select from TIMED what changed by 3 % of the unit and by more than the error of their means (Welch over
    the steps, Holm over what is tested)."""
    large = [name for name in TIMED if time_is_large(a, b, name)]
    p_values = [two_sided_p(*(_of_steps(units.times_ns[name]) for units in (a, b))) for name in large]
    return [name for name, p in zip(large, holm(p_values), strict=True) if p <= PAIR_ALARMS]


def _of_steps(values_ns: np.ndarray) -> Sample | None:
    """Steps of one process follow each other: a slow one comes after a slow one, and n of them are worth
    fewer. Their deviation is widened by the correlation of neighbours. None for too few steps."""
    if len(values_ns) < MIN_STEPS:
        return None
    centred = values_ns - values_ns.mean()
    squares = float((centred**2).sum())
    lag = float((centred[1:] * centred[:-1]).sum()) / squares if squares else 0.0
    lag = min(max(lag, 0.0), MAX_LAG_CORRELATION)
    # An AR(1) series of n steps is worth n (1 - r) / (1 + r) independent ones.
    plain = Sample.of(values_ns.tolist())
    return Sample(plain.mean, plain.sd * ((1 + lag) / (1 - lag)) ** 0.5, plain.n)


def between_is_named(a: Units, b: Units) -> bool:
    """Whether other GPU work is launched between steps, more than what is named of a duration."""
    change_ns = abs(b.between_ns - a.between_ns)
    floor = FLOOR_NS if a.between != b.between else max(FLOOR_NS, FLOOR_SHARE * a.mean_ns("span"))
    return change_ns > floor


def gap_is_large(a: Units, b: Units) -> bool:
    """Whether a step's GPU work begins later after the last one's, by 3 % and more, and the time between them
    is why: what the host does there, which is another in every process."""
    if not len(a.gap_ns) or not len(b.gap_ns):
        return False
    floor = max(FLOOR_SHARE * as_a_rule(a.period_ns), FLOOR_NS)
    period, gap = (
        as_a_rule(b_ns) - as_a_rule(a_ns) for a_ns, b_ns in ((a.period_ns, b.period_ns), (a.gap_ns, b.gap_ns))
    )
    return min(abs(period), abs(gap)) > floor and (period > 0) == (gap > 0)


def enough_processes(*sides: Sequence[Units]) -> bool:
    return min(map(len, sides)) >= LEAST
