"""The unit of work that is compared: a marked step, or else a call of the kernel that takes most of the time.

A fixed window cannot be a unit: two windows of one length hold different numbers of steps.

Every gap within a unit has one cause, and the causes add up to its idle time. The operation that ends a gap
says: it was launched only after the GPU had run dry (the host was late, perhaps because it had waited for the
GPU), or it was queued already (a dependency, a copy, the launch itself).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.compare.side import Key, Work, memory_name, step_at
from lab.compare.whole import IDLE, KERNELS, SPAN
from lab.recordings.views import COMM, COMP, MEMCOPY
from lab.stats.intervals import spans, subtract, union
from lab.stats.means import Sample

LEAST_CALLS = 4
MIN_STEPS = 3  # that say how much a figure varies from step to step
_VERSION = re.compile(r"_v\d+$")
CAUSES = ("idle_late", "idle_wait", "idle_queued", "idle_unknown")
CAUSE_WORDS = {
    "idle_late": "because the host launched late",
    "idle_wait": "after the host had waited for the GPU",
    "idle_queued": "between queued operations",
    "idle_unknown": "before operations whose launch was not recorded",
}
Sums = dict[Key, tuple[float, float]]  # calls and ns per unit

TIMES = (*CAUSES, "span", "busy", "idle", "overlap", "compute", "exposed_comm", "exposed_copy", "kernel_sum")


@dataclass(frozen=True)
class Units:
    """One rank's work per unit. `times_ns[name]` (u,) are of each unit; a window is one, divided already."""

    unit: str
    count: float
    sums: Sums
    times_ns: dict[str, np.ndarray]
    calls: dict[str, float]
    sequence: list[Key]  # of the unit with the usual number of operations, in order of launch
    outside: int  # operations launched outside every unit
    called: np.ndarray  # mask (c,) of the API calls that are counted, in the order of `Trace.runtime`
    usual: np.ndarray  # the rows of `sequence`
    step_of: np.ndarray  # (n,): the unit of each operation, as an index of `times_ns`; -1 for none
    numbers: list[int]  # (u,): of each unit, as the program numbers its steps
    empty: int = 0  # steps without any operation, which no mean is over
    cut: int = 0  # steps that the edges of the recording cut, which no mean is over either
    inside: dict[str, float] = field(default_factory=dict)  # of `calls` those not behind the last unit
    behind: dict[str, float] | None = None  # how many are, once per recording; None: not known
    between: float = 0.0  # operations launched between two steps, as a rule; no figure is of them
    between_ns: float = 0.0  # how long they take
    # From the end of a step's GPU work to the beginning of the next one's, and between both beginnings (g,).
    gap_ns: np.ndarray = field(default_factory=lambda: np.empty(0))
    period_ns: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def chosen(self) -> np.ndarray:
        """Mask (n,) of the operations in units, in the order of `Work`."""
        mask: np.ndarray = self.step_of >= 0
        return mask

    def mean_ns(self, name: str) -> float:
        return float(self.times_ns[name].mean())


def unit_of(a: Work, b: Work) -> str | None:
    """`step`, or the name of the kernel whose calls are counted, of a copy where no kernel can be; None if
    there is none."""
    if len(a.steps_ns) and len(b.steps_ns):
        return "step"
    counts = [Counter(work.keys[0][key][3] for key in work.keys[1].tolist()) for work in (a, b)]
    sums: Counter[str] = Counter()
    for (*_, kernel), (_, ns) in sums_of(a, np.ones(len(a.dur_ns), dtype=bool), 1).items():
        sums[kernel] += ns  # type: ignore[assignment]
    able = [name for name in sums if min(count[name] for count in counts) >= LEAST_CALLS]
    return max(able, key=lambda name: (memory_name(name) is None, sums[name]), default=None)


def units(work: Work, unit: str) -> Units:
    return by_step(work) if unit == "step" else by_call(work, unit)


def by_step(work: Work) -> Units:
    """Each operation belongs to the step that launched it; steps that launched none are counted apart, and so
    are those that the recording's edges cut, unless all are."""
    edges, called_ns = work.steps_ns, work.trace.api.start_ns
    step = step_at(edges, work.launched_ns)
    outside = np.sort(work.launched_ns[(step < 0) & work.launch_known])
    total = int((step < 0).sum())
    between, between_ns = _between(work, edges, step)
    cut = work.cut & work.is_whole_somewhere
    step[(step >= 0) & cut[step]] = -1
    rows = rows_of(step)
    steps = sorted(rows)
    index_of = np.full(len(edges) + 1, -1)  # the last one is of operations in no step
    index_of[steps] = np.arange(len(steps))
    times = [times_of(work, rows[step]) for step in steps]
    called = _calls_in(called_ns, edges, steps, outside)
    behind = called & (called_ns >= edges[-1, 1])
    is_last = steps[-1:] == [len(edges) - 1] and not (outside >= edges[-1, 1]).any()
    usual = usual_rows(work, [rows[step] for step in steps])
    keys, key_of = work.keys
    return Units(
        unit="step",
        count=len(steps),
        sums=sums_of(work, step >= 0, max(len(steps), 1)),
        times_ns={name: np.array([time[name] for time in times], dtype=float) for name in TIMES},
        calls=calls_of(work, called, max(len(steps), 1)),
        sequence=[keys[index] for index in key_of[usual].tolist()],
        outside=total,
        called=called,
        usual=usual,
        step_of=index_of[step],
        numbers=[work.step_numbers[index] for index in steps],
        inside=calls_of(work, called & ~behind, max(len(steps), 1)),
        behind=calls_of(work, behind, 1) if is_last else None,
        empty=len(edges) - len(steps) - int(cut.sum()),
        cut=int(cut.sum()),
        between=between,
        between_ns=between_ns,
        **_from_step_to_step(work, rows),
    )


def _from_step_to_step(work: Work, rows: dict[int, np.ndarray]) -> dict[str, np.ndarray]:
    """The gaps and periods of neighbouring steps, both with GPU work: a step's own times end with its own."""
    end_ns = work.start_ns + work.dur_ns
    spans = {one: (int(work.start_ns[row].min()), int(end_ns[row].max())) for one, row in rows.items()}
    pairs = [(spans[span], spans[span + 1]) for span in sorted(spans) if span + 1 in spans]
    return {
        "gap_ns": np.array([after[0] - before[1] for before, after in pairs], dtype=float),
        "period_ns": np.array([after[0] - before[0] for before, after in pairs], dtype=float),
    }


def _between(work: Work, edges: np.ndarray, step: np.ndarray) -> tuple[float, float]:
    """How many operations were launched between two neighbouring steps of (m, 2), and their ns, as a rule.
    What the window's edges explain is none of them."""
    if len(edges) < 2:
        return 0.0, 0.0
    rows = np.flatnonzero((step < 0) & work.launch_known)
    gap = np.searchsorted(edges[:, 0], work.launched_ns[rows], side="right") - 1
    inner = (gap >= 0) & (gap < len(edges) - 1)
    rows, gap = rows[inner], gap[inner]
    count = np.bincount(gap, minlength=len(edges) - 1)
    time_ns = np.bincount(gap, weights=work.dur_ns[rows], minlength=len(edges) - 1)
    return as_a_rule(count), as_a_rule(time_ns)


def as_a_rule(between: np.ndarray) -> float:
    """The mean of what stands between steps (g,) without the largest: one step that is not marked, or one
    pause, does not make a rule; a data loader that stalls every fourth step does, and no median shows it."""
    return float(np.sort(between)[: max(len(between) - 1, 1)].mean())


def _calls_in(times_ns: np.ndarray, edges: np.ndarray, steps: list[int], outside: np.ndarray) -> np.ndarray:
    """Which calls (n,) belong to `steps`. What waits for a step may stand behind it: calls after a step are
    its own until GPU work is launched outside every step (`outside`, by time), which no figure is of."""
    step = np.searchsorted(edges[:, 0], times_ns, side="right") - 1
    until_ns = np.append(outside, np.iinfo(np.int64).max)[np.searchsorted(outside, edges[:, 1])]
    is_counted: np.ndarray = np.isin(step, steps) & (times_ns < until_ns[np.maximum(step, 0)])
    return is_counted


def rows_of(step: np.ndarray) -> dict[int, np.ndarray]:
    """The operations of each step that has any, from the step of each operation (n,), -1 for none."""
    order = np.argsort(step, kind="stable")
    used, begins = np.unique(step[order], return_index=True)
    parts = zip(used.tolist(), np.split(order, begins[1:]), strict=True) if len(order) else ()
    return {one: rows for one, rows in parts if one >= 0}


def by_call(work: Work, kernel: str) -> Units:
    """The whole recording, divided by the calls of one kernel."""
    everything, called = np.ones(len(work.dur_ns), dtype=bool), np.ones(len(work.trace.api), dtype=bool)
    count = int(work.is_key(lambda key: key[3] == kernel).sum())
    calls = calls_of(work, called, count)
    totals_ns = times_of(work, np.flatnonzero(everything))
    return Units(
        unit=f"call of {kernel}",
        count=count,
        sums=sums_of(work, everything, count),
        times_ns={name: np.array([ns / count]) for name, ns in totals_ns.items()},
        calls=calls,
        inside=calls,
        sequence=[],
        outside=0,
        called=called,
        usual=np.empty(0, dtype=np.int64),
        step_of=np.zeros(len(work.dur_ns), dtype=np.int64),
        numbers=[0],
    )


def times_of(work: Work, rows: np.ndarray) -> dict[str, int]:
    """Unions of one unit's operations in ns: busy = compute + exposed communication + exposed copies."""
    op_spans = spans(work.start_ns[rows], work.dur_ns[rows])
    busy = union(op_spans)
    comp, comm, copy = (union(op_spans[work.classes[rows] == one]) for one in (COMP, COMM, MEMCOPY))
    span_ns = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
    summed, busy_ns = int(work.dur_ns[rows].sum()), _length(busy)
    return {
        "span": span_ns,
        "busy": busy_ns,
        "idle": span_ns - busy_ns,
        **_idle_of(work, rows, busy),
        "overlap": summed - busy_ns,
        "compute": _length(comp),
        "exposed_comm": _length(subtract(comm, comp)),
        "exposed_copy": _length(subtract(subtract(copy, comp), comm)),
        "kernel_sum": summed,
    }


def _idle_of(work: Work, rows: np.ndarray, busy: np.ndarray) -> dict[str, int]:
    """ns of each of CAUSES in the gaps of `busy` (k, 2), the union of the operations `rows`, by start."""
    if len(busy) < 2:
        return dict.fromkeys(CAUSES, 0)
    begin, end = busy[:-1, 1], busy[1:, 0]
    next_op = rows[np.searchsorted(work.start_ns[rows], end)]
    is_known = work.launch_known[next_op]
    launched = np.where(is_known, work.launched_ns[next_op], begin)
    late = np.clip(launched - begin, 0, end - begin)
    waited = _waited(work.waits_ns, begin, np.maximum(launched, begin))
    return {
        "idle_late": int(late[is_known & ~waited].sum()),
        "idle_wait": int(late[is_known & waited].sum()),
        "idle_queued": int((end - begin - late)[is_known].sum()),
        "idle_unknown": int((end - begin)[~is_known].sum()),
    }


def _waited(waits: np.ndarray, begin: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Whether the host waited as each gap began and came back before the next launch (n,)."""
    if not len(waits):
        return np.zeros(len(begin), dtype=bool)
    call = np.minimum(np.searchsorted(waits[:, 1], begin), len(waits) - 1)
    came_back: np.ndarray = (waits[call, 1] >= begin) & (waits[call, 0] <= begin) & (waits[call, 1] <= until)
    return came_back


def _length(merged: np.ndarray) -> int:
    """Length of a union (m, 2)."""
    return int((merged[:, 1] - merged[:, 0]).sum())


def sums_of(work: Work, chosen: np.ndarray, count: float) -> Sums:
    keys, key_of = work.keys
    calls = np.bincount(key_of[chosen], minlength=len(keys))
    sums = np.bincount(key_of[chosen], weights=work.dur_ns[chosen], minlength=len(keys))
    sums_by_key: Sums = {}
    for index in np.flatnonzero(calls).tolist():  # names that differ only in a suffix are one key
        n, ns = sums_by_key.get(keys[index], (0.0, 0.0))
        sums_by_key[keys[index]] = (n + float(calls[index]), ns + float(sums[index]))
    return {key: (n / count, ns / count) for key, (n, ns) in sums_by_key.items()}


def calls_of(work: Work, chosen: np.ndarray, count: float) -> dict[str, float]:
    ids, calls = np.unique(work.trace.api.name_id[chosen], return_counts=True)
    calls_by_name: Counter[str] = Counter()
    for name, n in zip(work.trace.text(ids).tolist(), calls.tolist(), strict=True):
        # nsys writes cudaLaunchKernel_v7000
        calls_by_name[_VERSION.sub("", name) if work.plain else name] += n
    return {name: n / count for name, n in calls_by_name.items() if name}


def usual_rows(work: Work, steps: list[np.ndarray]) -> np.ndarray:
    """The operations (m,) of the first step with the most common number of them, in order of launch."""
    if not steps:
        return np.empty(0, dtype=np.int64)
    usual = Counter(map(len, steps)).most_common(1)[0][0]
    rows = next(rows for rows in steps if len(rows) == usual)
    by_launch: np.ndarray = rows[np.argsort(work.launched_ns[rows], kind="stable")]
    return by_launch


def step_times(units: Units) -> dict[str, np.ndarray]:
    """The totals of each step, as `lab.compare.whole` tests them."""
    names = {KERNELS: "kernel_sum", SPAN: "span", IDLE: "idle"}
    return {quantity: units.times_ns[name] for quantity, name in names.items()}


def duration_errors(
    work: Work, units: Units, keys: Sequence[Key], without: np.ndarray
) -> list[Sample | None]:
    """The time of one call of each key over the steps, but those that `without` (u,) marks; None where fewer
    than MIN_STEPS steps have calls."""
    names, key_of = work.keys
    index = {key: row for row, key in enumerate(keys)}
    row_of = np.array([index.get(key, -1) for key in names], dtype=np.int64)[key_of]
    counted = (row_of >= 0) & units.chosen
    cell = row_of[counted] * len(units.numbers) + units.step_of[counted]
    size = len(keys) * len(units.numbers)
    calls = np.bincount(cell, minlength=size).reshape(len(keys), len(units.numbers))
    sums = np.bincount(cell, weights=work.dur_ns[counted], minlength=size).reshape(
        len(keys), len(units.numbers)
    )
    samples: list[Sample | None] = []
    for n, ns in zip(calls[:, ~without], sums[:, ~without], strict=True):
        means = (ns[n > 0] / n[n > 0]).tolist()
        samples.append(Sample.of(means) if len(means) >= MIN_STEPS else None)
    return samples
