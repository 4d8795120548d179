"""Which rank does more, slower or later than the others, part by part: one rule for all of lab.

A rank is named by the time that its excess over the others takes, never by how often it comes last. Waiting
is no excess: it is what the others' excess causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.core.words import printable
from lab.recordings.names import kernel_class
from lab.recordings.ranks.account import Account, Row
from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.work import COMP

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
    found: list[Excess] = []
    for step in account.together.steps:
        rows = [row for row in account.rows if row.step == step]
        if len(rows) < 2:
            continue
        found += _in_parts(rows)
        found += _compute(account, rows)
        found += _links(account, rows)
        if step == account.together.steps[0]:
            found += _over(rows, [row.entered_ns for row in rows], ENTERED_LATE)
    return found


def over_the_others(values: Sequence[float], step_ns: float) -> list[float]:
    """How far each value exceeds the median of the others, 0 where that does not count."""
    found = []
    for at, value in enumerate(values):
        others = np.delete(np.asarray(values, dtype=float), at)
        middle = float(np.median(others))
        spread = float(np.median(np.abs(others - middle)))
        more = value - middle
        found.append(more if more > max(SIGMAS * spread, LEAST_NS, LEAST_SHARE * step_ns) else 0.0)
    return found


def _over(rows: Sequence[Row], values: Sequence[float], cause: str) -> list[Excess]:
    step_ns = float(np.median([row.step_ns for row in rows]))
    more = over_the_others(values, step_ns)
    return [Excess(row.step, row.rank, cause, ns) for row, ns in zip(rows, more, strict=True) if ns]


def _in_parts(rows: Sequence[Row]) -> list[Excess]:
    late = _over(rows, [row.parts["launch_late_ns"] for row in rows], HOST_LATE)
    return late + _over(rows, [row.parts["copy_ns"] for row in rows], COPIES)


def _compute(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """More compute than the others: more kernels, or the same kernels slower."""
    step_ns = float(np.median([row.step_ns for row in rows]))
    more = over_the_others([row.parts["compute_ns"] for row in rows], step_ns)
    if not any(more):
        return []
    tables = _by_key(account, rows)
    found = []
    for at, (row, ns) in enumerate(zip(rows, more, strict=True)):
        if ns:
            extra, slow = _split(account, tables, at, row)
            least = max(LEAST_NS, LEAST_SHARE * step_ns)
            named = [one for one in (extra, slow) if one.ns > least] or [max(extra, slow, key=_size)]
            if len(named) == 1:
                named = [Excess(row.step, row.rank, named[0].cause, ns, named[0].detail, named[0].less_ns)]
            found += named
    return found


def _size(one: Excess) -> float:
    return one.ns


@dataclass(frozen=True)
class _Keys:
    """Kernels of one step by key: how many and how long on each rank (ranks, keys), without contention."""

    names: list[tuple[str, ...]]
    count: np.ndarray
    ns: np.ndarray
    rows: list[np.ndarray]
    key: list[np.ndarray]
    dur: list[np.ndarray]


def _by_key(account: Account, rows: Sequence[Row]) -> _Keys:
    together = account.together
    known: dict[tuple[str, ...], int] = {}
    chosen, keys, durs = [], [], []
    for row in rows:
        index = together.ranks.index(row.rank)
        work, window = together.works[index], together.window(index, row.step)
        begin, end = window if window else (0, 0)
        mine = np.flatnonzero((work.kind == COMP) & (work.start >= begin) & (work.start < end))
        numbers = np.array([known.setdefault(name, len(known)) for name in work.keys], dtype=np.int64)
        chosen.append(mine)
        keys.append(numbers[work.key[mine]] if len(numbers) else mine)
        durs.append((work.end - work.start)[mine] - account.contention[index].cost_ns[mine])
    count = np.stack([np.bincount(key, minlength=len(known)) for key in keys])
    ns = np.stack(
        [np.bincount(key, weights=dur, minlength=len(known)) for key, dur in zip(keys, durs, strict=True)]
    )
    return _Keys(list(known), count, ns, chosen, keys, durs)


def _split(account: Account, table: _Keys, at: int, row: Row) -> tuple[Excess, Excess]:
    """One rank's compute beyond the others': (more kernels, slower kernels)."""
    others = np.arange(len(table.count)) != at
    usual_count = np.median(table.count[others], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        each = table.ns / table.count
    usual_ns = _nan_median(each[others])
    mine = np.nan_to_num(each[at])
    extra = np.maximum(table.count[at] - usual_count, 0)
    slower = np.where(np.isnan(usual_ns), 0.0, mine - np.nan_to_num(usual_ns))
    slow = np.minimum(table.count[at], usual_count) * slower
    index = account.together.ranks.index(row.rank)
    num_rows = len(account.together.works[index])
    less_extra, less_slow = np.zeros(num_rows), np.zeros(num_rows)
    key, dur, rows = table.key[at], table.dur[at], table.rows[at]
    order = np.lexsort((-rows, key))  # of the same kernels the last ones count as extra
    nth = np.empty(len(key), dtype=np.int64)
    nth[order] = np.arange(len(key)) - np.searchsorted(key[order], key[order])
    is_extra = nth < extra[key]
    less_extra[rows[is_extra]] = dur[is_extra]
    less_slow[rows[~is_extra]] = np.maximum(slower[key[~is_extra]], 0)
    return (
        Excess(
            row.step, row.rank, MORE_WORK, float((extra * mine).sum()), _extra_words(table, extra), less_extra
        ),
        Excess(
            row.step, row.rank, SLOW_KERNELS, float(slow.sum()), _slow_words(table, at, usual_ns), less_slow
        ),
    )


def _nan_median(values: np.ndarray) -> np.ndarray:
    """The median of each column without NaN; NaN where a column has nothing else."""
    ordered = np.sort(values, axis=0)
    count = (~np.isnan(values)).sum(axis=0)
    columns = np.arange(values.shape[1])
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, np.maximum(count - 1, 0))
    middle: np.ndarray = (ordered[low, columns] + ordered[high, columns]) / 2
    return middle


def _extra_words(table: _Keys, extra: np.ndarray) -> str:
    if not extra.any():
        return ""
    most = int(extra.argmax())
    op, _, _, kernel, _ = table.names[most]
    return f"{int(extra.sum())} more kernels, {int(extra[most])} of them {printable(op or kernel[:60])}"


def _slow_words(table: _Keys, at: int, usual_ns: np.ndarray) -> str:
    """How many times as long the kernels of each class take, for classes above 5 %."""
    sums: dict[str, list[float]] = {}
    for key in np.flatnonzero((table.count[at] > 0) & (usual_ns > 0)).tolist():
        mine = sums.setdefault(kernel_class(table.names[key][3]), [0.0, 0.0])
        mine[0] += float(table.ns[at, key])
        mine[1] += float(table.count[at, key] * usual_ns[key])
    slow = sorted(
        ((mine / usual, kind) for kind, (mine, usual) in sums.items() if mine > 1.05 * usual), reverse=True
    )
    return ", ".join(f"{kind} {ratio:.2f} times as long" for ratio, kind in slow[:3])


def _links(account: Account, rows: Sequence[Row]) -> list[Excess]:
    """Ranks that leave collectives late: more transfer than the others, in calls that end late for them."""
    found = []
    for one in _over(rows, [row.parts["transfer_ns"] for row in rows], SLOW_LINK):
        index = account.together.ranks.index(one.rank)
        work, call = account.together.works[index], account.together.calls[index]
        window = account.together.window(index, one.step)
        begin, end = window if window else (0, 0)
        start = work.start[call.row]
        late = np.nan_to_num(call.late_ns)
        usual = work.end[call.row] - call.all_in - late
        slow = (start >= begin) & (start < end) & (call.last != UNKNOWN)
        slow &= (late > LATE_LEAVE_NS) & (late > LATE_LEAVE_SHARE * usual)
        if late[slow].sum() < 0.5 * one.ns:
            continue
        less = np.zeros(len(work))
        less[call.row[slow]] = late[slow]
        middle = float(np.median(late[slow])) / 1e3
        words = f"it leaves {int(slow.sum())} collectives {middle:.0f} us after the others"
        found.append(Excess(one.step, one.rank, SLOW_LINK, one.ns, words, less))
    return found


def missing_of(account: Account) -> list[tuple[int, int, tuple[int, ...]]]:
    """(rank, number of collectives it lacks, their steps) for ranks that others met."""
    calls = account.together.pairs.collectives
    if not len(calls):
        return []
    found: dict[int, list[int]] = {}
    for text, step in zip(calls.missing_ranks.tolist(), calls.step.tolist(), strict=True):
        for rank in filter(None, text.split(", ")):
            found.setdefault(int(rank), []).append(int(step))
    return [(rank, len(steps), tuple(sorted(set(steps)))) for rank, steps in sorted(found.items())]
