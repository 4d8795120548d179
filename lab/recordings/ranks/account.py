"""The account of all steps: one label for each instant of each rank, waits by cause, and clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.recordings.pairing import Clock
from lab.recordings.ranks.common import UNKNOWN, Call, Together, together
from lab.recordings.ranks.contention import Contention, contention_of
from lab.recordings.ranks.work import COMM, COMP, COPY, RankWork
from lab.stats import robust
from lab.stats.columns import distinct
from lab.stats.intervals import holding, overlap

COMPUTE, TRANSFER, WAIT, UNPAIRED, COPYING, LAUNCH_LATE, LAUNCH_GAP, TAIL, UNEXPLAINED = range(9)
LABELS = (
    *("compute", "transfer", "wait", "unpaired", "copy"),
    *("launch_late", "launch_gap", "tail", "unexplained"),
)


@dataclass(frozen=True)
class Segments:
    """Consecutive spans of one rank inside its windows, on its own clock.

    window is the row of the rank's windows; label one of the constants above; awaited the index of the rank
    that is waited for (UNKNOWN otherwise); next_row the operation that ends an idle span (UNKNOWN otherwise).
    """

    begin: np.ndarray
    end: np.ndarray
    window: np.ndarray
    label: np.ndarray
    awaited: np.ndarray
    next_row: np.ndarray

    @property
    def length(self) -> np.ndarray:
        length: np.ndarray = self.end - self.begin
        return length


def segments_of(work: RankWork, call: Call, windows: np.ndarray) -> Segments:
    """The labels of one rank; the lengths of a window's segments sum to the window exactly."""
    wait_begin, wait_end, last_index = _oldest_waits(work, call)
    launched = work.call_end[work.call_end >= 0]
    times = (windows[:, 1:].ravel(), work.start, work.end, call.all_in, wait_begin, wait_end, launched)
    # Nothing begins or ends between two edges, so one label holds from each to the next.
    edges = distinct(np.concatenate(times))
    begin, end = edges[:-1], edges[1:]
    window = holding(windows[:, 1], windows[:, 2], begin)
    inside = window >= 0
    begin, end, window = begin[inside], end[inside], window[inside]

    def runs(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        started = np.searchsorted(np.sort(start), begin, side="right")
        over = np.searchsorted(np.sort(stop), begin, side="right")
        active: np.ndarray = started > over
        return active

    computes, talks, copies = (
        runs(work.start[work.kind == k], work.end[work.kind == k]) for k in (COMP, COMM, COPY)
    )
    is_paired = ~call.loose
    moves = runs(call.all_in[is_paired], work.end[call.row[is_paired]])
    loose = runs(work.start[call.row[call.loose]], work.end[call.row[call.loose]])
    wait = holding(wait_begin, wait_end, begin)
    # After the last operation, the index is that of the value at the end.
    order = np.append(np.argsort(work.start, kind="stable"), UNKNOWN)
    next_row = order[np.searchsorted(work.start[order[:-1]], begin, side="right")]
    next_start = np.append(work.start, np.iinfo(np.int64).max)[next_row]
    returned = np.append(work.call_end, UNKNOWN)[next_row]
    # A collective without a row here moves data, as far as known.
    without_row = talks & ~moves & (wait < 0) & ~loose
    idle = ~(computes | talks | copies)
    # Each line overrules those above it: an instant has one label, so the parts sum to the step.
    label = np.full(len(begin), UNEXPLAINED)
    label[idle & (returned >= 0)] = LAUNCH_GAP
    label[idle & (returned > begin)] = LAUNCH_LATE
    label[idle & (next_start >= windows[window, 2])] = TAIL
    label[copies] = COPYING
    label[talks & loose] = UNPAIRED
    label[talks & (wait >= 0)] = WAIT
    label[moves & talks | without_row] = TRANSFER
    label[computes] = COMPUTE
    awaited = np.where(label == WAIT, np.append(last_index, UNKNOWN)[wait], UNKNOWN)
    return Segments(begin, end, window, label, awaited, np.where(idle & (label != TAIL), next_row, UNKNOWN))


def _oldest_waits(work: RankWork, call: Call) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Disjoint spans of waiting and who is waited for: of several calls the oldest counts."""
    begin, end = work.start[call.row], call.all_in
    order = np.lexsort((end, begin))
    begin, end, last_index = begin[order], end[order], call.last_index[order]
    begin[1:] = np.maximum(begin[1:], np.maximum.accumulate(end)[:-1])
    is_wait = begin < end
    return begin[is_wait], end[is_wait], last_index[is_wait]


# One part per label; what collectives beside it cost is taken out of compute.
PARTS = ("compute_ns", "contention_ns", *(f"{label}_ns" for label in LABELS[1:]))
# What the awaited rank did while the others waited -> the cause.
CLOCK, BEFORE = "clock", "entered_late"
# A rank that waits itself only hands on what another causes: `chain`. Launches that come late, a gap after
# them and an idle end of the step are all the host's.
BECAUSE = {
    "compute": "work",
    "transfer": "link",
    "wait": "chain",
    "copy": "copy",
    "launch_late": "launch",
    "launch_gap": "launch",
    "tail": "launch",
    "unpaired": "unexplained",
    "unexplained": "unexplained",
}


@dataclass(frozen=True)
class Row:
    """One rank and step in ns; the PARTS sum to step_ns. wait_for: the rank waited for longest, or None.

    not_separable_ns is inside compute: kernels beside collectives that never ran alone. entered_ns: how much
    later than the median rank the step began, on the common clock.
    """

    step: int
    rank: int
    step_ns: int
    parts: dict[str, int]
    wait_for: int | None
    not_separable_ns: int
    entered_ns: int


@dataclass(frozen=True)
class Wait:
    """How long a rank waits for another in one step, and what that one did meanwhile."""

    step: int
    rank: int
    awaited: int
    because: str
    ns: int


@dataclass(frozen=True)
class Account:
    """The account of one recording; together and segments are what it was made from."""

    together: Together
    segments: tuple[Segments, ...]
    contention: tuple[Contention, ...]
    rows: tuple[Row, ...]
    waits: tuple[Wait, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.together.ranks

    @property
    def clocks(self) -> tuple[Clock, ...]:
        return self.together.pairs.clocks

    @property
    def num_calls(self) -> int:
        return len(self.together.pairs.collectives)

    @property
    def num_complete(self) -> int:
        return int(self.together.pairs.collectives.complete.sum()) if self.num_calls else 0

    def work(self, rank: int) -> RankWork:
        return self.together.works[self.ranks.index(rank)]

    def row(self, step: int, rank: int) -> Row | None:
        return next((row for row in self.rows if (row.step, row.rank) == (step, rank)), None)


def account_of(works: Mapping[int, RankWork]) -> Account:
    """The account of the ranks' work; ranks without operations take no part."""
    ranks = together({rank: work for rank, work in works.items() if len(work)})
    segments = tuple(
        segments_of(work, call, windows)
        for work, call, windows in zip(ranks.works, ranks.calls, ranks.windows, strict=True)
    )
    contention = tuple(contention_of(ranks.works))
    return Account(
        together=ranks,
        segments=segments,
        contention=contention,
        rows=tuple(_rows(ranks, segments, contention)),
        waits=tuple(waits_of(ranks, segments)),
    )


def _rows(ranks: Together, segments: Sequence[Segments], contention: Sequence[Contention]) -> list[Row]:
    # Windows differ between ranks, so how late one entered is measured on the common clock.
    entered = _entered(ranks)
    account_rows = []
    for index, of_rank in enumerate(segments):
        windows = ranks.windows[index]
        sums = {
            f"{name}_ns": _sums(of_rank.length, of_rank.window, len(windows), of_rank.label == label)
            for label, name in enumerate(LABELS)
        }
        work, extra = ranks.works[index], contention[index]
        window = holding(windows[:, 1], windows[:, 2], work.start)
        costs = [
            _sums(values, window, len(windows), window >= 0)
            for values in (extra.cost_ns, extra.not_separable_ns)
        ]
        for window_index, (step, begin, end) in enumerate(windows.tolist()):
            # Costs count where a kernel starts, compute by instants: at a window's edge one may pass the
            # other.
            contended = min(int(costs[0][window_index]), int(sums["compute_ns"][window_index]))
            parts = {name: int(values[window_index]) for name, values in sums.items()}
            parts["compute_ns"] -= contended
            parts["contention_ns"] = contended
            account_rows.append(
                Row(
                    step=step,
                    rank=work.rank,
                    step_ns=end - begin,
                    parts={name: parts[name] for name in PARTS},
                    wait_for=_waited_for(ranks, of_rank, window_index),
                    not_separable_ns=int(costs[1][window_index]),
                    entered_ns=entered.get((step, index), 0),
                )
            )
    return sorted(account_rows, key=lambda row: (row.step, row.rank))


def _sums(values: np.ndarray, group: np.ndarray, num_groups: int, chosen: np.ndarray) -> np.ndarray:
    """Integer sums of the chosen values by group; float weights would round above 2**53."""
    sums = np.zeros(num_groups, dtype=np.int64)
    np.add.at(sums, group[chosen], values[chosen])
    return sums


def _waited_for(ranks: Together, of_rank: Segments, window: int) -> int | None:
    # Several ranks may be waited for in one step; the table has room for the one that costs most.
    rows = np.flatnonzero((of_rank.window == window) & (of_rank.awaited != UNKNOWN))
    if not len(rows):
        return None
    sums = np.bincount(of_rank.awaited[rows], weights=of_rank.length[rows])
    return ranks.ranks[int(sums.argmax())]


def _entered(ranks: Together) -> dict[tuple[int, int], int]:
    """(step, index of rank) -> ns after the median rank's begin."""
    entered_ns = {}
    for step in ranks.steps:
        begins = {}
        for index in range(len(ranks.works)):
            window = ranks.window(index, step)
            if window is not None:
                begins[index] = int(ranks.common(index, np.array([window[0]]))[0])
        middle = int(robust.median(list(begins.values()))) if begins else 0
        entered_ns.update({(step, index): begin - middle for index, begin in begins.items()})
    return entered_ns


def waits_of(together: Together, segments: Sequence[Segments]) -> list[Wait]:
    """Every wait by (step, rank, awaited rank, cause), sorted in this order; exact in ns."""
    waits: list[Wait] = []
    for index, of_rank in enumerate(segments):
        rows = np.flatnonzero(of_rank.awaited != UNKNOWN)
        numbers = together.windows[index][:, 0]
        for awaited in distinct(of_rank.awaited[rows]).tolist():
            rows_of_awaited = rows[of_rank.awaited[rows] == awaited]
            spans = [
                together.own(awaited, together.common(index, edge[rows_of_awaited]))
                for edge in (of_rank.begin, of_rank.end)
            ]
            # What the awaited rank did is read on its own clock, for its segments are on that.
            parts = _label_times(segments[awaited], *spans)
            for window in distinct(of_rank.window[rows_of_awaited]).tolist():
                inside = of_rank.window[rows_of_awaited] == window
                total_ns = int(of_rank.length[rows_of_awaited[inside]].sum())
                causes = _causes(parts[inside], total_ns, plausible=together.clock(awaited).plausible)
                step, ranks = int(numbers[window]), together.ranks
                waits += [Wait(step, ranks[index], ranks[awaited], why, ns) for why, ns in causes.items()]
    return sorted(waits, key=lambda of_rank: (of_rank.step, of_rank.rank, of_rank.awaited, -of_rank.ns))


def _label_times(segments: Segments, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """What one rank does in each span of time (n,): ns of each label (n, labels)."""
    times = np.zeros((len(begin), len(LABELS)), dtype=np.int64)
    spans = np.stack([begin, end], axis=1)
    for label in distinct(segments.label).tolist():
        chosen = segments.label == label
        cover = np.stack([segments.begin[chosen], segments.end[chosen]], axis=1)
        times[:, label] = overlap(spans, cover)
    return times


def _causes(parts: np.ndarray, whole_ns: int, *, plausible: bool) -> dict[str, int]:
    if not plausible:
        return {CLOCK: whole_ns}
    sums: dict[str, int] = {}
    for label, ns in enumerate(parts.sum(axis=0).tolist()):
        if ns:
            cause = BECAUSE[LABELS[label]]
            sums[cause] = sums.get(cause, 0) + ns
    outside_ns = whole_ns - sum(sums.values())
    if outside_ns:  # outside the awaited rank's windows: it had not entered its step
        sums[BEFORE] = sums.get(BEFORE, 0) + outside_ns
    return sums
