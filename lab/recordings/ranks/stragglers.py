"""Which rank does more, slower or later than the others, part by part: one rule for all of lab.

A rank is named by the time that its excess over the others takes, never by how often it comes last. Waiting
is no excess: it is what the others' excess causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.core.words import printable
from lab.recordings.names import kernel_class
from lab.recordings.ranks.account import Account, Row
from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.hosts import host_lateness_ns
from lab.recordings.ranks.work import COMM, COMP, COPY
from lab.stats import robust
from lab.stats.robust import column_medians

HOST_LATE, MORE_WORK, SLOW_KERNELS, SLOW_LINK, ENTERED_LATE, MISSING, COPIES = (
    "host_late",
    "more_work",
    "slow_kernels",
    "slow_link",
    "entered_late",
    "missing",
    "copies",
)
# An excess counts above 3 sigma of the others (by their MAD), 0.5 ms, and 1 % of the step.
SIGMAS, LEAST_NS, LEAST_SHARE = 3 * 1.4826, 500_000, 0.01
# A rank leaves late if its end is so much behind the median rank's, and such a share of the transfer.
LATE_LEAVE_NS, LATE_LEAVE_SHARE = 50_000, 0.1


@dataclass(frozen=True)
class Excess:
    """What one rank has over the others in one step; ratio: how many times as long its kernels take.

    less_ns: by operation of the rank (n,), what its kernels or transfers take more than usual.
    """

    step: int
    rank: int
    cause: str
    ns: float
    detail: str = ""
    less_ns: np.ndarray | None = None


def excesses_of(account: Account) -> list[Excess]:
    """Every excess of every step; none for a recording of one rank."""
    excesses: list[Excess] = []
    for step in account.together.steps:
        rows = [row for row in account.rows if row.step == step]
        if len(rows) < 2:
            continue
        excesses += _late_hosts(account, rows)
        excesses += _copies(account, rows)
        excesses += _compute(account, rows)
        excesses += _links(account, rows)
        excesses += _entered_late(account, rows)
    return excesses


def over_the_others(values: Sequence[float], step_ns: float) -> list[float]:
    """How far each value exceeds the median of the others, 0 where that does not count."""
    excesses = []
    for index, value in enumerate(values):
        peers = np.delete(np.asarray(values, dtype=float), index)
        middle = robust.median(peers)
        spread = robust.median(np.abs(peers - middle))
        excess = value - middle
        excesses.append(excess if excess > max(SIGMAS * spread, LEAST_NS, LEAST_SHARE * step_ns) else 0.0)
    return excesses


def _over(rows: Sequence[Row], values: Sequence[float], cause: str) -> list[Excess]:
    step_ns = robust.median([row.step_ns for row in rows])
    excesses_ns = over_the_others(values, step_ns)
    return [Excess(row.step, row.rank, cause, ns) for row, ns in zip(rows, excesses_ns, strict=True) if ns]


def _late_hosts(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """Ranks whose GPUs idle because their hosts launch later than the others' hosts.

    A GPU also idles more where the others' hosts got ahead while they waited for it: then its own host is as
    theirs, and not named.
    """
    late = _over(rows, [row.parts["launch_late_ns"] for row in rows], HOST_LATE)
    if not late:
        return []
    step_ns = robust.median([row.step_ns for row in rows])
    behind = host_lateness_ns(account.together, rows[0].step)
    excesses = []
    for excess in late:
        ns = min(excess.ns, behind.get(excess.rank, excess.ns))
        if ns > max(LEAST_NS, LEAST_SHARE * step_ns):
            excesses.append(replace(excess, ns=ns))
    return excesses


def _copies(account: Account, rows: Sequence[Row]) -> list[Excess]:
    excesses = []
    for excess in _over(rows, [row.parts["copy_ns"] for row in rows], COPIES):
        index = account.together.ranks.index(excess.rank)
        work, window = account.together.works[index], account.together.window(index, excess.step)
        begin, end = window if window else (0, 0)
        copies = (work.kind == COPY) & (work.start >= begin) & (work.start < end)
        exposed_ns = next(row.parts["copy_ns"] for row in rows if row.rank == excess.rank)
        less_ns = np.where(copies, (work.end - work.start) * (excess.ns / exposed_ns), 0.0)
        excesses.append(replace(excess, less_ns=less_ns))
    return excesses


def _entered_late(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """Ranks that begin the step late; a later step because their hosts lingered at the end of the one before.

    A clock that no collective bounds may be what is late instead.
    """
    late = _over(rows, [row.entered_ns for row in rows], ENTERED_LATE)
    if not late:
        return []
    bounded = {excess.rank for excess in account.clocks if not np.isnan(excess.high_ns)}
    previous = _step_before(account, rows[0].step)
    tails = _over(previous, [row.parts["tail_ns"] for row in previous], "") if len(previous) > 1 else []
    lingered = {excess.rank: excess.ns for excess in tails}
    excesses = []
    for excess in late:
        ns = min(excess.ns, lingered.get(excess.rank, 0.0)) if previous else excess.ns
        if ns > LEAST_NS and excess.rank in bounded:
            excesses.append(replace(excess, ns=ns))
    return excesses


def _step_before(account: Account, step: int) -> list[Row]:
    earlier = [number for number in account.together.steps if number < step]
    return [row for row in account.rows if earlier and row.step == earlier[-1]]


def _compute(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """More compute than the others: more kernels, or the same kernels slower."""
    step_ns = robust.median([row.step_ns for row in rows])
    excesses_ns = over_the_others([row.parts["compute_ns"] for row in rows], step_ns)
    if not any(excesses_ns):
        return []
    tables = _by_key(account, rows)
    excesses = []
    for rank_index, (row, ns) in enumerate(zip(rows, excesses_ns, strict=True)):
        if ns:
            extra, slow = _split(account, tables, rank_index, row)
            threshold_ns = max(LEAST_NS, LEAST_SHARE * step_ns)
            named = [one for one in (extra, slow) if one.ns > threshold_ns] or [max(extra, slow, key=_size)]
            if len(named) == 1:
                named = [Excess(row.step, row.rank, named[0].cause, ns, named[0].detail, named[0].less_ns)]
            excesses += named
    return excesses


def _size(excess: Excess) -> float:
    return excess.ns


@dataclass(frozen=True)
class _Keys:
    """Kernels of one step by key: how many and how long on each rank (ranks, keys), without contention.

    place: key and stretch of each kernel, where a stretch is what is launched between two collectives.
    """

    names: list[tuple[str, ...]]
    count: np.ndarray
    ns: np.ndarray
    rows: list[np.ndarray]
    key: list[np.ndarray]
    place: list[np.ndarray]
    dur: list[np.ndarray]


def _by_key(account: Account, rows: Sequence[Row]) -> _Keys:
    together = account.together
    number_of_key: dict[tuple[str, ...], int] = {}
    chosen, keys, stretches, durs = [], [], [], []
    for row in rows:
        index = together.ranks.index(row.rank)
        work, window = together.works[index], together.window(index, row.step)
        begin, end = window if window else (0, 0)
        kernels = np.flatnonzero((work.kind == COMP) & (work.start >= begin) & (work.start < end))
        numbers = np.array(
            [number_of_key.setdefault(name, len(number_of_key)) for name in work.keys], dtype=np.int64
        )
        chosen.append(kernels)
        keys.append(numbers[work.key[kernels]] if len(numbers) else kernels)
        launched = np.where(work.call_begin >= 0, work.call_begin, work.start)
        talks = launched[(work.kind == COMM) & (work.start >= begin) & (work.start < end)]
        stretches.append(np.searchsorted(np.sort(talks), launched[kernels]))
        durs.append((work.end - work.start)[kernels] - account.contention[index].cost_ns[kernels])
    count = np.stack([np.bincount(key, minlength=len(number_of_key)) for key in keys])
    ns = np.stack(
        [
            np.bincount(key, weights=dur, minlength=len(number_of_key))
            for key, dur in zip(keys, durs, strict=True)
        ]
    )
    num_stretches = 1 + max((int(stretch.max()) for stretch in stretches if len(stretch)), default=0)
    places = [key * num_stretches + stretch for key, stretch in zip(keys, stretches, strict=True)]
    return _Keys(list(number_of_key), count, ns, chosen, keys, places, durs)


def _split(account: Account, table: _Keys, rank_index: int, row: Row) -> tuple[Excess, Excess]:
    """One rank's compute beyond the others': (more kernels, slower kernels)."""
    is_peer = np.arange(len(table.count)) != rank_index
    usual_count = np.median(table.count[is_peer], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_ns = table.ns / table.count
    usual_ns = column_medians(mean_ns[is_peer])
    own_ns = np.nan_to_num(mean_ns[rank_index])
    extra = np.maximum(table.count[rank_index] - usual_count, 0)
    slower = np.where(np.isnan(usual_ns), 0.0, own_ns - np.nan_to_num(usual_ns))
    slow = np.minimum(table.count[rank_index], usual_count) * slower
    index = account.together.ranks.index(row.rank)
    num_rows = len(account.together.works[index])
    less_extra, less_slow = np.zeros(num_rows), np.zeros(num_rows)
    key, dur, rows = table.key[rank_index], table.dur[rank_index], table.rows[rank_index]
    # Of the same kernels those count as extra that others lack between the same collectives, then the last.
    beyond = _nth(table.place[rank_index], -rows) < _surplus(table, rank_index)
    is_extra = _nth(key, -rows, ~beyond) < extra[key]
    less_extra[rows[is_extra]] = dur[is_extra]
    less_slow[rows[~is_extra]] = np.maximum(slower[key[~is_extra]], 0)
    return (
        Excess(
            row.step,
            row.rank,
            MORE_WORK,
            float((extra * own_ns).sum()),
            _extra_words(table, extra),
            less_extra,
        ),
        Excess(
            row.step,
            row.rank,
            SLOW_KERNELS,
            float(slow.sum()),
            _slow_words(table, rank_index, usual_ns),
            less_slow,
        ),
    )


def _nth(group: np.ndarray, *order: np.ndarray) -> np.ndarray:
    """The place of each row (n,) within its group, sorted by the last of `order` first."""
    rows = np.lexsort((*order, group))
    nth = np.empty(len(group), dtype=np.int64)
    nth[rows] = np.arange(len(group)) - np.searchsorted(group[rows], group[rows])
    return nth


def _surplus(table: _Keys, rank_index: int) -> np.ndarray:
    """Of each kernel (n,) of one rank: how many more like it there are in its stretch than on other ranks."""
    used, index = np.unique(table.place[rank_index], return_inverse=True)
    counts = []
    for place in table.place:
        shared = place[np.isin(place, used)]
        counts.append(np.bincount(np.searchsorted(used, shared), minlength=len(used)))
    usual = np.median(np.delete(np.stack(counts), rank_index, axis=0), axis=0)
    surplus: np.ndarray = np.maximum(counts[rank_index] - usual, 0)[index.ravel()]
    return surplus


def _extra_words(table: _Keys, extra: np.ndarray) -> str:
    if not extra.any():
        return ""
    key = int(extra.argmax())
    op, _, _, kernel, _ = table.names[key]
    return f"{int(extra.sum())} more kernels, {int(extra[key])} of them {printable(op or kernel[:60])}"


def _slow_words(table: _Keys, rank_index: int, usual_ns: np.ndarray) -> str:
    """How many times as long the kernels of each class take, for classes above 5 %."""
    sums: dict[str, list[float]] = {}
    for key in np.flatnonzero((table.count[rank_index] > 0) & (usual_ns > 0)).tolist():
        class_sums = sums.setdefault(kernel_class(table.names[key][3]), [0.0, 0.0])
        class_sums[0] += float(table.ns[rank_index, key])
        class_sums[1] += float(table.count[rank_index, key] * usual_ns[key])
    slow = sorted(
        (
            (class_sums / usual, kind)
            for kind, (class_sums, usual) in sums.items()
            if class_sums > 1.05 * usual
        ),
        reverse=True,
    )
    return ", ".join(f"{kind} {ratio:.2f} times as long" for ratio, kind in slow[:3])


def _links(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """Ranks that leave collectives late: more transfer than the others, in calls that end late for them."""
    excesses = []
    for excess in _over(rows, [row.parts["transfer_ns"] for row in rows], SLOW_LINK):
        index = account.together.ranks.index(excess.rank)
        work, call = account.together.works[index], account.together.calls[index]
        window = account.together.window(index, excess.step)
        begin, end = window if window else (0, 0)
        start = work.start[call.row]
        late = np.nan_to_num(call.late_ns)
        usual = work.end[call.row] - call.all_in - late
        slow = (start >= begin) & (start < end) & (call.last_index != UNKNOWN)
        slow &= (late > LATE_LEAVE_NS) & (late > LATE_LEAVE_SHARE * usual)
        if late[slow].sum() < 0.5 * excess.ns:
            continue
        less = np.zeros(len(work))
        less[call.row[slow]] = late[slow]
        middle = robust.median(late[slow]) / 1e3
        words = f"it leaves {int(slow.sum())} collectives {middle:.0f} us after the others"
        excesses.append(Excess(excess.step, excess.rank, SLOW_LINK, excess.ns, words, less))
    return excesses


def missing_of(account: Account) -> list[tuple[int, int, tuple[int, ...]]]:
    """(rank, number of collectives it lacks, their steps) for ranks that others met."""
    calls = account.together.pairs.collectives
    if not len(calls):
        return []
    steps_of_rank: dict[int, list[int]] = {}
    for text, step in zip(calls.missing_ranks.tolist(), calls.step.tolist(), strict=True):
        for rank in filter(None, text.split(", ")):
            steps_of_rank.setdefault(int(rank), []).append(int(step))
    return [(rank, len(steps), tuple(sorted(set(steps)))) for rank, steps in sorted(steps_of_rank.items())]
