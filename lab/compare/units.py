"""The unit of work that is compared: a marked step, or else a call of the kernel that takes most of the time.

A fixed window cannot be a unit: two windows of one length hold different numbers of steps.

Every gap within a unit has one cause, by the operation that ends it: launched only after the GPU had run dry
(the host was late, perhaps because it had waited for the GPU), or queued already (a dependency, a copy, the
launch itself).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.compare.side import Key, Work, memory_name, step_at
from lab.compare.whole import IDLE, KERNELS, SPAN
from lab.errors import BadDataError
from lab.recordings.views import COMM, COMP, MEMCOPY
from lab.stats.intervals import spans, subtract, union
from lab.stats.means import Sample

STEP = "step"
MARK = "call profiler.step(), or mark steps with record_function('step_0'), 'step_1', ..."
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
    """One rank's work per unit. Arrays (u,) are of units, (n,) of `Work`'s operations, (c,) of API calls.
    A recording without steps is one unit, divided by the calls of a kernel."""

    work: Work
    unit: str
    count: float
    steps: list[int]  # (u,): of each unit, in the order of the marked steps
    step_of: np.ndarray  # (n,): the unit of each operation, -1 for none
    called: np.ndarray  # mask (c,) of the calls that are counted
    after: np.ndarray  # mask (c,) of those of them behind the last step
    is_last: bool = False  # whether these are the last step's own, once per recording
    outside: int = 0  # operations launched outside every unit
    empty: int = 0  # steps without any operation, which no mean is over
    cut: int = 0  # steps that the edges of the recording cut, which no mean is over either
    between: float = 0.0  # operations launched between two steps, as a rule; no figure is of them
    between_ns: float = 0.0  # how long they take

    @property
    def is_step(self) -> bool:
        return self.unit == STEP

    @property
    def chosen(self) -> np.ndarray:
        """Mask (n,) of the operations in units."""
        mask: np.ndarray = self.step_of >= 0
        return mask

    @cached_property
    def rows(self) -> list[np.ndarray]:
        """The operations of each unit."""
        order = np.argsort(self.step_of, kind="stable")
        begins = np.searchsorted(self.step_of[order], np.arange(len(self.steps) + 1))
        return np.split(order, begins)[1:-1]

    @cached_property
    def times_ns(self) -> dict[str, np.ndarray]:
        """Each of TIMES (u,)."""
        times = [times_of(self.work, rows) for rows in self.rows]
        divisor = 1 if self.is_step else self.count
        return {name: np.array([time[name] for time in times], dtype=float) / divisor for name in TIMES}

    def mean_ns(self, name: str) -> float:
        return float(self.times_ns[name].mean())

    @property
    def totals_ns(self) -> dict[str, np.ndarray]:
        """The totals of each step, as `lab.compare.whole` tests them."""
        names = {KERNELS: "kernel_sum", SPAN: "span", IDLE: "idle"}
        return {quantity: self.times_ns[name] for quantity, name in names.items()}

    @cached_property
    def sums(self) -> Sums:
        return sums_of(self.work, self.chosen, self.count)

    def sums_without(self, mask: np.ndarray) -> Sums:
        """Of the units that the mask (u,) leaves."""
        chosen = self.chosen
        chosen[chosen] = ~mask[self.step_of[chosen]]
        return sums_of(self.work, chosen, int((~mask).sum()))

    @cached_property
    def calls(self) -> dict[str, float]:
        return calls_of(self.work, self.called, self.count)

    @cached_property
    def inside(self) -> dict[str, float]:
        """Of `calls` those not behind the last unit."""
        return calls_of(self.work, self.called & ~self.after, self.count)

    @cached_property
    def behind(self) -> dict[str, float] | None:
        """How many calls are behind the last unit, once per recording; None: not known."""
        return calls_of(self.work, self.after, 1) if self.is_last else None

    @cached_property
    def usual(self) -> np.ndarray:
        """The operations (m,) of the first step with the most common number of them, in order of launch."""
        if not self.is_step or not self.rows:
            return np.empty(0, dtype=np.int64)
        ((size, _),) = Counter(map(len, self.rows)).most_common(1)
        rows = next(rows for rows in self.rows if len(rows) == size)
        by_launch: np.ndarray = rows[np.argsort(self.work.launched_ns[rows], kind="stable")]
        return by_launch

    @cached_property
    def sequence(self) -> list[Key]:
        """The keys of `usual`."""
        keys, key_of = self.work.keys
        return [keys[index] for index in key_of[self.usual].tolist()]

    @property
    def numbers(self) -> list[int]:
        """(u,): as the program numbers its steps."""
        return [self.work.step_numbers[index] for index in self.steps] if self.is_step else self.steps

    @property
    def gap_ns(self) -> np.ndarray:
        """(g,): from the end of a step's GPU work to the beginning of the next one's."""
        _, end_ns, next_ns = self._neighbours_ns
        gaps: np.ndarray = next_ns - end_ns
        return gaps

    @property
    def period_ns(self) -> np.ndarray:
        """(g,): from the beginning of a step's GPU work to that of the next one's."""
        begin_ns, _, next_ns = self._neighbours_ns
        periods: np.ndarray = next_ns - begin_ns
        return periods

    @cached_property
    def _neighbours_ns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where a step begins and ends, and where the next one begins, both with GPU work (g,)."""
        end_ns = self.work.start_ns + self.work.dur_ns
        begins = np.array([self.work.start_ns[rows].min() for rows in self.rows])
        ends = np.array([end_ns[rows].max() for rows in self.rows])
        has_next = np.diff(self.steps) == 1
        return begins[:-1][has_next], ends[:-1][has_next], begins[1:][has_next]


def unit_of(a: Work, b: Work) -> str | None:
    """STEP, or the name of the kernel whose calls are counted, of a copy where no kernel can be; None if
    there is none."""
    if len(a.steps_ns) and len(b.steps_ns):
        return STEP
    counts = [Counter(work.keys[0][key][3] for key in work.keys[1].tolist()) for work in (a, b)]
    sums: Counter[str] = Counter()
    for (*_, kernel), (_, ns) in sums_of(a, np.ones(len(a.dur_ns), dtype=bool), 1).items():
        sums[kernel] += ns  # type: ignore[assignment]
    able = [name for name in sums if min(count[name] for count in counts) >= LEAST_CALLS]
    return max(able, key=lambda name: (memory_name(name) is None, sums[name]), default=None)


def units(work: Work, unit: str) -> Units:
    """Raises BadDataError for a recording that has no such unit, or none with GPU work."""
    problem = "no step is marked in this recording"
    if unit != STEP or len(work.steps_ns):
        measured = by_step(work) if unit == STEP else by_call(work, unit)
        if measured.count:
            return measured
        problem = "no step of this recording launched GPU work" if measured.is_step else f"no {measured.unit}"
    raise BadDataError(problem, location=work.trace.source, fix=MARK)


def by_step(work: Work) -> Units:
    """Each operation belongs to the step that launched it; steps that launched none are counted apart, and so
    are those that the recording's edges cut, unless all are."""
    edges, called_ns = work.steps_ns, work.trace.api.start_ns
    step = step_at(edges, work.launched_ns)
    is_outside = step < 0
    outside_ns = np.sort(work.launched_ns[is_outside & work.launch_known])
    between, between_ns = _between(work, edges, step)
    cut = work.cut & work.is_whole_somewhere
    step[~is_outside & cut[step]] = -1
    steps = np.unique(step[step >= 0])
    called = _calls_in(called_ns, edges, steps, outside_ns)
    return Units(
        work=work,
        unit=STEP,
        count=len(steps),
        steps=steps.tolist(),
        step_of=np.where(step >= 0, np.searchsorted(steps, step), -1),
        called=called,
        after=called & (called_ns >= edges[-1, 1]),
        is_last=steps[-1:].tolist() == [len(edges) - 1] and not (outside_ns >= edges[-1, 1]).any(),
        outside=int(is_outside.sum()),
        empty=len(edges) - len(steps) - int(cut.sum()),
        cut=int(cut.sum()),
        between=between,
        between_ns=between_ns,
    )


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


def _calls_in(times_ns: np.ndarray, edges: np.ndarray, steps: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Which calls (c,) belong to `steps`. What waits for a step may stand behind it: calls after a step are
    its own until GPU work is launched outside every step (`outside`, by time), which no figure is of."""
    step = np.searchsorted(edges[:, 0], times_ns, side="right") - 1
    until_ns = np.append(outside, np.iinfo(np.int64).max)[np.searchsorted(outside, edges[:, 1])]
    is_counted: np.ndarray = np.isin(step, steps) & (times_ns < until_ns[np.maximum(step, 0)])
    return is_counted


def by_call(work: Work, kernel: str) -> Units:
    """The whole recording, divided by the calls of one kernel."""
    num_calls = len(work.trace.api)
    return Units(
        work=work,
        unit=f"call of {kernel}",
        count=int(work.is_key(lambda key: key[3] == kernel).sum()),
        steps=[0],
        step_of=np.zeros(len(work.dur_ns), dtype=np.int64),
        called=np.ones(num_calls, dtype=bool),
        after=np.zeros(num_calls, dtype=bool),
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


def duration_errors(units: Units, keys: Sequence[Key], without: np.ndarray) -> list[Sample | None]:
    """The time of one call of each key over the steps, but those that `without` (u,) marks; None where fewer
    than MIN_STEPS steps have calls."""
    names, key_of = units.work.keys
    index = {key: row for row, key in enumerate(keys)}
    row_of = np.array([index.get(key, -1) for key in names], dtype=np.int64)[key_of]
    counted = (row_of >= 0) & units.chosen
    shape = len(keys), len(units.steps)
    cell = row_of[counted] * shape[1] + units.step_of[counted]
    calls, sums = (
        np.bincount(cell, weights, minlength=shape[0] * shape[1]).reshape(shape)[:, ~without]
        for weights in (None, units.work.dur_ns[counted])
    )
    means = [ns[n > 0] / n[n > 0] for n, ns in zip(calls, sums, strict=True)]
    return [Sample.of(ns.tolist()) if len(ns) >= MIN_STEPS else None for ns in means]
