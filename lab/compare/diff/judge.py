"""What a difference is worth: exact figures first, durations only beyond a floor.

Steps of one process are not samples. Kernel sums of equal processes differ by 0.3 % and single kernels by up
to 2 % (copies below a microsecond more), so one pair can only suggest; counts repeat exactly. Where the
durations of a pair scatter more than that, its own scatter is the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from lab.compare.diff.split import Row
from lab.compare.units import Units, as_a_rule
from lab.stats.effects import holm
from lab.stats.means import Sample, beyond_p, difference_ci

FLOOR_SHARE, FLOOR_NS = 0.03, 1000.0
MOST_FLOOR, SCATTERS, MAD_TO_SD = 0.10, 5.0, 1.4826
LEAST_UNIT_SHARE, LEAST_CALL_NS = 0.001, 50.0  # of a unit that is no step, and per call of the kernel
LONG_NS, FEW_ROWS = 10_000.0, 8  # per unit: rows that tell the scatter, and how many it takes
EXACT = ("count", "other_kernel", "op_gone", "op_new")
LEAST_COMMON_SHARE = 0.5
SIGMAS = 3.0
LEVEL, ALARMS = 0.99, 0.01
ONE_PAIR, BELOW, PROVEN, SUGGESTED, WITHIN = (
    "one pair only",
    "below floor",
    "proven by repeats",
    "suggested by repeats",
    "within the repeats' noise",
)


def edge_of(a: Units, b: Units) -> float:
    """The units by which two recorded windows may differ at their edges; 0 for whole steps."""
    return 0.0 if a.unit == "step" else 1 / a.count + 1 / b.count


def beyond_edge(n_a: float, n_b: float, edge: float) -> bool:
    """Whether counts per unit differ by more than what a window's edges may cut off, a unit's calls each."""
    return abs(n_b - n_a) > edge * (1 + max(n_a, n_b)) if edge else n_a != n_b


def calls_differ(a: Units, b: Units, name: str) -> bool:
    """Whether a unit has another number of calls, or the end of the recording, which has as many units as the
    program was told: what waits for the last of them once is no change of each."""
    if beyond_edge(a.inside.get(name, 0.0), b.inside.get(name, 0.0), edge_of(a, b)):
        return True
    if a.behind is None or b.behind is None:
        return False
    return a.behind.get(name, 0.0) != b.behind.get(name, 0.0)


def floor_ns_of(a: Units, b: Units) -> float:
    """The change per unit below which no duration is named: 1 µs of a step, less of a shorter unit, of which
    a recording has hundreds."""
    if a.unit == "step":
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
    shares = [row.slower for row in rows if row.kind == "same_kernel_duration" and row.ns_a >= LONG_NS]
    if len(shares) < FEW_ROWS:
        return FLOOR_SHARE
    middle = median(shares)
    scatter = MAD_TO_SD * median(abs(share - middle) for share in shares)
    return min(max(FLOOR_SHARE, SCATTERS * scatter), MOST_FLOOR)


def judge_by_repeats(
    rows: Sequence[Row], of_a: Sequence[Units], of_b: Sequence[Units], floor: float, floor_ns: float
) -> None:
    """Durations of shared kernels over processes (Welch), two a side at least; each row's own 99 % interval.

    Proven is judged of all rows together (Holm): of equal sides one in a hundred has anything proven at most.
    Suggested is judged of those alone that are beyond the floors, in the pair that is compared and in the
    mean of the processes.
    """
    judged: list[tuple[Row, Sample, Sample]] = []
    for row in rows:
        if row.kind != "same_kernel_duration" or row.kernel_a is None:
            continue
        key = (row.op, row.dims, row.types, row.kernel_a)
        ns = [[float(one.sums[key][1]) for one in side if key in one.sums] for side in (of_a, of_b)]
        if min(map(len, ns)) >= 2:
            judged.append((row, Sample.of(ns[0]), Sample.of(ns[1])))
    p_values = np.array([2 * min(beyond_p(b, a), beyond_p(a, b)) for _, a, b in judged])
    change = np.array([b.mean - a.mean for _, a, b in judged])
    least = np.array([max(floor * a.mean, floor_ns) for _, a, _ in judged])
    large = np.array([row.confidence != BELOW for row, _, _ in judged], dtype=bool) & (abs(change) > least)
    of_all, of_large = holm(p_values), holm(np.where(large, p_values, np.nan))
    for at, (row, a, b) in enumerate(judged):
        row.interval = difference_ci(b, a, level=LEVEL)
        if large[at]:
            row.confidence = (
                PROVEN if of_all[at] <= ALARMS else SUGGESTED if of_large[at] <= ALARMS else WITHIN
            )
        else:
            row.confidence = WITHIN if p_values[at] > ALARMS else BELOW


def incomparable(a: Units, b: Units) -> str:
    """Why the two are not the same work; "" if they may be."""
    ops_a = {key[:2] for key in a.sums if key[0]}
    ops_b = {key[:2] for key in b.sums if key[0]}
    if not ops_a or not ops_b:
        names_a, names_b = {key[3] for key in a.sums}, {key[3] for key in b.sums}
        share = min(_share(a, lambda key: key[3] in names_b), _share(b, lambda key: key[3] in names_a))
        if share >= LEAST_COMMON_SHARE:
            return ""
        return (
            f"only {100 * share:.0f} % of the GPU time is in kernels of a name that both have, and no op is "
            "known on one side: another kernel cannot be told from another program"
        )
    share = min(
        _share(a, lambda key: not key[0] or key[:2] in ops_b),
        _share(b, lambda key: not key[0] or key[:2] in ops_a),
    )
    if share >= LEAST_COMMON_SHARE:
        return ""
    names = {op for op, _ in ops_a} & {op for op, _ in ops_b}
    shapes_only = min(
        _share(a, lambda key: not key[0] or key[0] in names),
        _share(b, lambda key: not key[0] or key[0] in names),
    )
    if shapes_only >= LEAST_COMMON_SHARE:
        return (
            f"only {100 * share:.0f} % of the GPU time is in ops of shapes that both have: another batch, "
            "sequence length or model, or shapes were recorded on one side only"
        )
    return f"only {100 * share:.0f} % of the GPU time is in ops that both have: these are different programs"


def without_times(a: Units, b: Units) -> str:
    """Why times cannot be compared; "" if they can."""
    bare = [name for name, of in (("A", a), ("B", b)) if not of.mean_ns("kernel_sum")]
    if not bare:
        return ""
    return f"no GPU operation of {' and '.join(bare)} has a duration: counts are compared, times are not"


def _share(units: Units, chosen: object) -> float:
    assert callable(chosen)
    timed = any(ns for _, ns in units.sums.values())  # else by calls: a recording without any duration
    sizes = {key: ns if timed else n for key, (n, ns) in units.sums.items()}
    every = sum(sizes.values())
    return sum(size for key, size in sizes.items() if chosen(key)) / every if every else 0.0


def time_is_named(a: Units, b: Units, name: str) -> bool:
    """Whether idle or exposed time changed by more than its own steps vary, and by 3 % of the unit."""
    return time_is_large(a, b, name) and not _varies(a, b, name)


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
        as_a_rule(after) - as_a_rule(before)
        for before, after in ((a.period_ns, b.period_ns), (a.gap_ns, b.gap_ns))
    )
    return min(abs(period), abs(gap)) > floor and (period > 0) == (gap > 0)


def time_is_large(a: Units, b: Units, name: str) -> bool:
    """Whether it changed by 3 % of the unit, however much its steps vary."""
    floor = max(FLOOR_SHARE * a.mean_ns("span"), FLOOR_NS)
    return abs(b.mean_ns(name) - a.mean_ns(name)) > floor


def _varies(a: Units, b: Units, name: str) -> bool:
    before, after = a.times_ns[name], b.times_ns[name]
    change = abs(float(after.mean() - before.mean()))
    return change <= SIGMAS * max(float(before.std()), float(after.std()))
