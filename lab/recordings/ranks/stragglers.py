"""Which rank does more, slower or later than the others, part by part: one rule for all of lab.

A rank is named by the time that its excess over the others takes, never by how often it comes last. Waiting
is not an excess: it is what the others' excess causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.core.words import printable
from lab.recordings.names import kernel_class
from lab.recordings.pairing.rows import running_count
from lab.recordings.ranks.account import Account, Row
from lab.recordings.ranks.common import GPU_STEPS, UNKNOWN, host_lateness_ns
from lab.recordings.ranks.work import COMM, COMP, COPY, common_keys
from lab.stats import robust
from lab.stats.robust import column_medians

HOST_LATE, MORE_WORK, SLOW_KERNELS = "host_late", "more_work", "slow_kernels"
SLOW_LINK, ENTERED_LATE, MISSING, COPIES = "slow_link", "entered_late", "missing", "copies"
# An excess counts above 3 sigma of the others (by their MAD), 0.5 ms, and 1 % of the step.
SIGMAS, LEAST_NS, LEAST_SHARE = 3 * 1.4826, 500_000, 0.01
# A rank leaves late if its end is so much behind the median rank's, and such a share of the transfer.
LATE_LEAVE_NS, LATE_LEAVE_SHARE = 50_000, 0.1


@dataclass(frozen=True)
class Excess:
    """What one rank has over the others in one step.

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
        # A first step that holds older work is longer for whoever was behind before the recording began.
        if len(rows) > 1 and step != account.together.cut_step:
            for excesses_by_cause in (_late_hosts, _copies, _compute, _links, _entered_late):
                excesses += excesses_by_cause(account, rows)
    return excesses


def over_the_others(values: Sequence[float], step_ns: float) -> list[float]:
    """How far each value exceeds the median of the others, 0 where that does not count."""
    excesses = []
    for index, value in enumerate(values):
        # Without the value itself: among few ranks it would pull the median and the spread to it.
        peers = np.delete(np.asarray(values, dtype=float), index)
        middle = robust.median(peers)
        spread = robust.median(np.abs(peers - middle))
        excess = value - middle
        excesses.append(excess if excess > max(SIGMAS * spread, LEAST_NS, LEAST_SHARE * step_ns) else 0.0)
    return excesses


def _over(rows: Sequence[Row], values: Sequence[float], cause: str) -> list[Excess]:
    more_ns = over_the_others(values, _step_ns(rows))
    return [Excess(row.step, row.rank, cause, ns) for row, ns in zip(rows, more_ns, strict=True) if ns]


def _step_ns(rows: Sequence[Row]) -> float:
    return robust.median([row.step_ns for row in rows])


def _threshold_ns(rows: Sequence[Row]) -> float:
    return max(LEAST_NS, LEAST_SHARE * _step_ns(rows))


def _in_step(account: Account, row: Row | Excess, start: np.ndarray) -> np.ndarray:
    """Mask (n,) of what starts in the window of this rank and step."""
    begin, end = account.together.window(account.ranks.index(row.rank), row.step) or (0, 0)
    mask: np.ndarray = (start >= begin) & (start < end)
    return mask


def _late_hosts(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """Ranks whose GPUs idle because their hosts launch later than the others' hosts.

    A GPU also idles more where the others' hosts got ahead while they waited for it: then its own host is as
    theirs, and not named. In steps that reach into each other a GPU whose stage is early or late in the step
    idles for its place alone, so only its host is compared.
    """
    idle_ns = [row.parts["launch_late_ns"] for row in rows]
    if account.together.window_kind == GPU_STEPS:
        late = [Excess(row.step, row.rank, HOST_LATE, ns) for row, ns in zip(rows, idle_ns, strict=True)]
    else:
        late = _over(rows, idle_ns, HOST_LATE)
    behind = host_lateness_ns(account.together, rows[0].step) if any(idle_ns) else {}
    excesses = [replace(excess, ns=min(excess.ns, behind.get(excess.rank, excess.ns))) for excess in late]
    return [excess for excess in excesses if excess.ns > _threshold_ns(rows)]


def _copies(account: Account, rows: Sequence[Row]) -> list[Excess]:
    exposed_ns = {row.rank: row.parts["copy_ns"] for row in rows}
    excesses = []
    for excess in _over(rows, [row.parts["copy_ns"] for row in rows], COPIES):
        work = account.work(excess.rank)
        copies = (work.kind == COPY) & _in_step(account, excess, work.start)
        less_ns = np.where(copies, (work.end - work.start) * (excess.ns / exposed_ns[excess.rank]), 0.0)
        excesses.append(replace(excess, less_ns=less_ns))
    return excesses


def _entered_late(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """Ranks that begin the step late; a later step because their hosts lingered at the end of the one before.

    A clock that no collective bounds may be what is late instead.
    """
    if account.together.window_kind == GPU_STEPS:
        return []  # where one step reaches into the next, ranks begin it when their own GPUs are ready
    late = _over(rows, [row.entered_ns for row in rows], ENTERED_LATE)
    bounded = {clock.rank for clock in account.clocks if not np.isnan(clock.high_ns)}
    earlier = [number for number in account.together.steps if number < rows[0].step]
    previous = [row for row in account.rows if earlier and row.step == earlier[-1]]
    tails = _over(previous, [row.parts["tail_ns"] for row in previous], "") if len(previous) > 1 else []
    lingered = {excess.rank: excess.ns for excess in tails}
    if previous:
        late = [replace(excess, ns=min(excess.ns, lingered.get(excess.rank, 0.0))) for excess in late]
    return [excess for excess in late if excess.ns > LEAST_NS and excess.rank in bounded]


def _compute(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """More compute than the others: more kernels, or the same kernels slower."""
    late = _over(rows, [row.parts["compute_ns"] for row in rows], MORE_WORK)
    if not late:
        return []
    table = _by_key(account, rows)
    excesses = []
    for excess in late:
        index = [row.rank for row in rows].index(excess.rank)
        causes = _split(account, table, index, rows[index])
        large = [cause for cause in causes if cause.ns > _threshold_ns(rows)]
        # One cause that stands out gets the whole excess: the rest is noise of the split.
        if len(large) < 2:
            largest = max(causes, key=lambda cause: cause.ns)
            large = [replace(large[0] if large else largest, ns=excess.ns)]
        excesses += large
    return excesses


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
    indices = [account.ranks.index(row.rank) for row in rows]
    works = [account.together.works[index] for index in indices]
    names, numbers = common_keys(works)
    chosen, keys, stretches, durs = [], [], [], []
    for row, index, work, number in zip(rows, indices, works, numbers, strict=True):
        inside = _in_step(account, row, work.start)
        kernels = np.flatnonzero((work.kind == COMP) & inside)
        chosen.append(kernels)
        keys.append(number[work.key[kernels]])
        talks = work.launched[(work.kind == COMM) & inside]
        stretches.append(np.searchsorted(np.sort(talks), work.launched[kernels]))
        durs.append((work.end - work.start)[kernels] - account.contention[index].cost_ns[kernels])
    num_keys = len(names)
    count = np.stack([np.bincount(key, minlength=num_keys) for key in keys])
    ns = np.stack([np.bincount(*pair, minlength=num_keys) for pair in zip(keys, durs, strict=True)])
    num_stretches = 1 + max((int(stretch.max()) for stretch in stretches if len(stretch)), default=0)
    places = [key * num_stretches + stretch for key, stretch in zip(keys, stretches, strict=True)]
    return _Keys(names, count, ns, chosen, keys, places, durs)


def _split(account: Account, table: _Keys, rank_index: int, row: Row) -> tuple[Excess, Excess]:
    """One rank's compute beyond the others': (more kernels, slower kernels)."""
    is_peer = np.arange(len(table.count)) != rank_index
    count = table.count[rank_index]
    usual_count = np.median(table.count[is_peer], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_ns = table.ns / table.count
    usual_ns = column_medians(mean_ns[is_peer])
    own_ns = np.nan_to_num(mean_ns[rank_index])
    extra = np.maximum(count - usual_count, 0)
    slower = np.where(np.isnan(usual_ns), 0.0, own_ns - np.nan_to_num(usual_ns))
    num_rows = len(account.work(row.rank))
    less_extra, less_slow = np.zeros((2, num_rows))
    key, dur, rows = table.key[rank_index], table.dur[rank_index], table.rows[rank_index]
    # Of the same kernels those count as extra that others lack between the same collectives, then the last.
    beyond = running_count(table.place[rank_index], -rows) < _surplus(table, rank_index)
    is_extra = running_count(key, -rows, ~beyond) < extra[key]
    less_extra[rows[is_extra]] = dur[is_extra]
    less_slow[rows[~is_extra]] = np.maximum(slower[key[~is_extra]], 0)
    num_more = int(count.sum() - np.median(table.count[is_peer].sum(axis=1)))
    extra_ns, slow_ns = float((extra * own_ns).sum()), float((np.minimum(count, usual_count) * slower).sum())
    more_text, slow_text = _extra_words(table, extra, num_more), _slow_words(table, rank_index, usual_ns)
    return (
        Excess(row.step, row.rank, MORE_WORK, extra_ns, more_text, less_extra),
        Excess(row.step, row.rank, SLOW_KERNELS, slow_ns, slow_text, less_slow),
    )


def _surplus(table: _Keys, rank_index: int) -> np.ndarray:
    """Count for each kernel (n,) of one rank how many more like it its stretch has than on other ranks."""
    used, index = np.unique(table.place[rank_index], return_inverse=True)
    counts = []
    for place in table.place:
        shared = place[np.isin(place, used)]
        counts.append(np.bincount(np.searchsorted(used, shared), minlength=len(used)))
    usual = np.median(np.delete(np.stack(counts), rank_index, axis=0), axis=0)
    surplus: np.ndarray = np.maximum(counts[rank_index] - usual, 0)[index.ravel()]
    return surplus


def _extra_words(table: _Keys, extra: np.ndarray, num_more: int) -> str:
    """`8 more kernels, 4 of them aten::mm`; as many that replace other ones have larger shapes."""
    if not extra.any():
        return ""
    op, _, _, kernel, _ = table.names[int(extra.argmax())]
    name = printable(op or kernel[:60])
    if num_more <= 0:
        return f"as many kernels of larger shapes, {int(extra.max())} of them {name}"
    return f"{int(extra.sum())} more kernels, {int(extra.max())} of them {name}"


def _slow_words(table: _Keys, rank_index: int, usual_ns: np.ndarray) -> str:
    """How many times as long the kernels of each class take, for classes above 5 %."""
    sums: dict[str, list[float]] = {}
    for key in np.flatnonzero((table.count[rank_index] > 0) & (usual_ns > 0)).tolist():
        op, _, _, kernel, _ = table.names[key]
        class_sums = sums.setdefault(kernel_class(kernel, op), [0.0, 0.0])
        class_sums[0] += float(table.ns[rank_index, key])
        class_sums[1] += float(table.count[rank_index, key] * usual_ns[key])
    slow = sorted(
        ((rank_ns / usual, kind) for kind, (rank_ns, usual) in sums.items() if rank_ns > 1.05 * usual),
        reverse=True,
    )
    return ", ".join(f"{kind} {ratio:.2f} times as long" for ratio, kind in slow[:3])


def _links(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """Ranks that leave collectives late: more transfer than the others, in calls that end late for them."""
    excesses = []
    for excess in _over(rows, [row.parts["transfer_ns"] for row in rows], SLOW_LINK):
        index = account.ranks.index(excess.rank)
        work, call = account.together.works[index], account.together.calls[index]
        late = np.nan_to_num(call.late_ns)
        usual = work.end[call.row] - call.all_in - late
        slow = _in_step(account, excess, work.start[call.row]) & (call.last_index != UNKNOWN)
        slow &= (late > LATE_LEAVE_NS) & (late > LATE_LEAVE_SHARE * usual)
        # Where late leaves are not most of it, the rank moves more data, and its link is not slow.
        if late[slow].sum() < 0.5 * excess.ns:
            continue
        less_ns = np.zeros(len(work))
        less_ns[call.row[slow]] = late[slow]
        middle = robust.median(late[slow]) / 1e3
        text = f"it leaves {int(slow.sum())} collectives {middle:.0f} us after the others"
        excesses.append(replace(excess, detail=text, less_ns=less_ns))
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
