"""What each kind and size of collective costs a step once no rank is late: transfer and slower GEMMs.

The step is replayed with all hosts ready, so that no rank waits for a late one, and again without the
transfers of one class and without what it costs the kernels beside it; the difference is the class's cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.recordings.ranks import replay
from lab.recordings.ranks.account import Account
from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.explained import Explained
from lab.recordings.ranks.replay import Step
from lab.recordings.ranks.work import COMP
from lab.recordings.tables import Table
from lab.stats import robust
from lab.stats.columns import distinct
from lab.stats.intervals import overlap, union


@dataclass(frozen=True, order=True)
class Class:
    """Collectives of one kind, total size (the larger buffer, as in nccl-tests) and number of ranks."""

    kind: str
    num_bytes: int
    num_ranks: int


@dataclass(frozen=True)
class Cost:
    """One class in one recording; medians over steps, NaN where no step could be replayed.

    cost_ms counts all that its collectives cost the kernels beside them; least_ms leaves out what they cost
    while they only waited, which would not be if no rank were late. latency_us: from the last arrival to the
    first end, median over calls. grid and block are those of most of its kernels, -1 unknown; kernel is the
    name of most of them. blocks says whether waits can be told in calls of this kind.
    """

    cost_ms: float
    least_ms: float
    latency_us: float
    blocks: bool
    grid: int
    block: int
    kernel: str


def costs_of(explained: Explained) -> dict[Class, Cost]:
    """The cost of every class of collectives in one recording."""
    account = explained.account
    pairs = account.together.pairs
    calls = pairs.collectives
    if not len(calls):
        return {}
    names = classes_of(calls)
    classes = sorted({*names})
    number = {name: class_index for class_index, name in enumerate(classes)}
    # The last place is that of rows without a call: their number is -1.
    of_call = np.array([*(number[name] for name in names), UNKNOWN], dtype=np.int64)
    shares = [
        _contention_by_class(account, index, of_call, len(classes)) for index in range(len(account.ranks))
    ]
    costs = [_of_step(account, step, of_call, shares, len(classes)) for step in explained.steps]
    middle = np.median(costs or [np.full((len(classes), 2), np.nan)], axis=0)
    latency = _latencies(account, len(calls))
    class_of_row = of_call[pairs.instances.collective_id]
    costs_by_class = {}
    for name, class_index in number.items():
        of_class = of_call[:-1] == class_index
        latencies_ns = latency[of_class][~np.isnan(latency[of_class])]
        rows = pairs.instances.where(class_of_row == class_index)
        costs_by_class[name] = Cost(
            cost_ms=float(middle[class_index, 0]),
            least_ms=float(middle[class_index, 1]),
            latency_us=robust.median(latencies_ns) / 1e3 if len(latencies_ns) else float("nan"),
            blocks=bool(calls.blocks[of_class].all()),
            grid=_most_frequent(rows.grid_x),
            block=_most_frequent(rows.block_x),
            kernel=_most_frequent(rows.kernel),
        )
    return costs_by_class


def classes_of(collectives: Table) -> list[Class]:
    """The class of each collective (n,)."""
    columns = (collectives.kind, collectives.msg_bytes, collectives.group_size)
    return [Class(*key) for key in zip(*(column.tolist() for column in columns), strict=True)]


def _contention_by_class(account: Account, index: int, of_call: np.ndarray, num: int) -> np.ndarray:
    """What each class costs a rank's operations, ns (n, classes, 2): in all, and beside a waiting one."""
    work, call = account.together.works[index], account.together.calls[index]
    cost = account.contention[index].cost_ns
    by_operation = np.zeros((len(work), num, 2))
    rows = np.flatnonzero((work.kind == COMP) & (cost > 0))
    if not len(rows):
        return by_operation
    begin, end = work.start[call.row], work.end[call.row]
    class_of_row = of_call[call.call]
    operations = np.stack([work.start[rows], work.end[rows]], axis=1)
    beside = np.zeros((len(rows), num, 2))
    for class_index in distinct(class_of_row[class_of_row >= 0]).tolist():
        of_class = class_of_row == class_index
        beside[:, class_index, 0] = overlap(operations, union(np.stack([begin, end], axis=1)[of_class]))
        beside[:, class_index, 1] = overlap(
            operations, union(np.stack([begin, call.all_in], axis=1)[of_class])
        )
    total = beside[:, :, 0].sum(axis=1)
    # Beside two classes at once a kernel's cost is shared by the time beside each.
    scale = np.divide(cost[rows], total, out=np.zeros(len(rows)), where=total > 0)
    by_operation[rows] = beside * scale[:, None, None]
    return by_operation


def _of_step(
    account: Account, step: Step, of_call: np.ndarray, shares: Sequence[np.ndarray], num: int
) -> np.ndarray:
    """ms (classes, 2): by how much the step is shorter without each class; with and without waiting ones."""
    # Hosts that launch late hide what a collective costs: the GPU would have idled anyway.
    ready = replay.hosts_ready(step)
    places = {rank: account.ranks.index(rank) for rank in step.ranks}
    cost = {rank: shares[class_index][step.ranks[rank].rows] for rank, class_index in places.items()}
    cost_ms = np.full((num, 2), np.nan)
    for with_waiting in (0, 1):
        waiting = {rank: part[:, :, 1].sum(axis=1) * with_waiting for rank, part in cost.items()}
        base = replay.length_ms(replay.shorter(ready, waiting))
        for class_index in range(num):
            less = {}
            for rank, played in step.ranks.items():
                of_class = of_call[played.call] == class_index
                beside = cost[rank][:, class_index, 0] - with_waiting * cost[rank][:, class_index, 1]
                less[rank] = waiting[rank] + np.where(of_class, played.dur, beside)
            cost_ms[class_index, with_waiting] = base - replay.length_ms(replay.shorter(ready, less))
    return cost_ms


def _latencies(account: Account, num_calls: int) -> np.ndarray:
    """Time from the last arrival to the first end, ns (calls,); NaN where waits are unknown."""
    shortest_ns = np.full(num_calls, np.inf)
    for work, call in zip(account.together.works, account.together.calls, strict=True):
        is_paired = call.last_index != UNKNOWN
        np.minimum.at(shortest_ns, call.call[is_paired], (work.end[call.row] - call.all_in)[is_paired])
    return np.where(np.isinf(shortest_ns), np.nan, shortest_ns)


def _most_frequent(values: np.ndarray) -> Any:
    """The most frequent value, the first of equals; every class has rows."""
    return Counter(values.tolist()).most_common(1)[0][0]
