"""What each kind and size of collective costs a step once nobody is late: transfer and slower GEMMs.

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
    while they only waited, which would not be if nobody were late. latency_us: from the last arrival to the
    first end, median over calls. grid and block are those of most of its kernels, -1 unknown; kernel is the
    name of most of them. blocks says whether waits can be told in calls of this kind.
    """

    cost_ms: float
    least_ms: float
    latency_us: float
    num_calls: int
    blocks: bool
    grid: int
    block: int
    kernel: str


def costs_of(one: Explained) -> dict[Class, Cost]:
    """The cost of every class of collectives in one recording."""
    account = one.account
    pairs = account.together.pairs
    calls = pairs.collectives
    if not len(calls):
        return {}
    keys = list(zip(calls.kind.tolist(), calls.msg_bytes.tolist(), calls.group_size.tolist(), strict=True))
    classes = sorted({Class(*key) for key in keys})
    number = {name: at for at, name in enumerate(classes)}
    of_call = np.array([number[Class(*key)] for key in keys], dtype=np.int64)
    shares = [
        _contention_by_class(account, index, of_call, len(classes)) for index in range(len(account.ranks))
    ]
    costs = np.array([_of_step(account, step, of_call, shares, len(classes)) for step in one.steps])
    if not len(costs):
        costs = np.full((1, len(classes), 2), np.nan)
    middle = np.median(costs, axis=0)
    latency = _latencies(account, len(calls))
    launched = _launches(account, of_call, len(classes))
    found = {}
    for name, at in number.items():
        mine = of_call == at
        known = latency[mine][~np.isnan(latency[mine])]
        found[name] = Cost(
            cost_ms=float(middle[at, 0]),
            least_ms=float(middle[at, 1]),
            latency_us=robust.median(known) / 1e3 if len(known) else float("nan"),
            num_calls=int(mine.sum()),
            blocks=bool(calls.blocks[mine].all()),
            grid=launched[at][0],
            block=launched[at][1],
            kernel=launched[at][2],
        )
    return found


def _contention_by_class(account: Account, index: int, of_call: np.ndarray, num: int) -> np.ndarray:
    """What each class costs a rank's operations, ns (n, classes, 2): in all, and beside a waiting one."""
    work, call = account.together.works[index], account.together.calls[index]
    cost = account.contention[index].cost_ns
    found = np.zeros((len(work), num, 2))
    rows = np.flatnonzero((work.kind == COMP) & (cost > 0))
    if not len(rows):
        return found
    begin, end = work.start[call.row], work.end[call.row]
    which = np.where(call.call != UNKNOWN, of_call[np.maximum(call.call, 0)], UNKNOWN)
    every = np.stack([work.start[rows], work.end[rows]], axis=1)
    beside = np.zeros((len(rows), num, 2))
    for at in distinct(which[which >= 0]).tolist():
        mine = which == at
        beside[:, at, 0] = overlap(every, union(np.stack([begin, end], axis=1)[mine]))
        beside[:, at, 1] = overlap(every, union(np.stack([begin, call.all_in], axis=1)[mine]))
    total = beside[:, :, 0].sum(axis=1)
    scale = np.divide(cost[rows], total, out=np.zeros(len(rows)), where=total > 0)
    found[rows] = beside * scale[:, None, None]
    return found


def _of_step(
    account: Account, step: Step, of_call: np.ndarray, shares: Sequence[np.ndarray], num: int
) -> np.ndarray:
    """ms (classes, 2): by how much the step is shorter without each class; with and without waiting ones."""
    ready = replay.hosts_ready(step)
    places = {rank: account.ranks.index(rank) for rank in step.ranks}
    cost = {rank: shares[at][step.ranks[rank].rows] for rank, at in places.items()}
    found = np.full((num, 2), np.nan)
    for which in (0, 1):
        waiting = {rank: part[:, :, 1].sum(axis=1) * which for rank, part in cost.items()}
        base = replay.length_ms(ready, replay.play(replay.shorter(ready, waiting)))
        for at in range(num):
            less = {}
            for rank, one in step.ranks.items():
                mine = (one.call != UNKNOWN) & (of_call[np.maximum(one.call, 0)] == at)
                beside = cost[rank][:, at, 0] - which * cost[rank][:, at, 1]
                less[rank] = waiting[rank] + np.where(mine, one.dur, beside)
            found[at, which] = base - replay.length_ms(ready, replay.play(replay.shorter(ready, less)))
    return found


def _latencies(account: Account, num_calls: int) -> np.ndarray:
    """From the last arrival to the first end, ns (calls,); NaN where waits are not told."""
    least = np.full(num_calls, np.inf)
    for work, call in zip(account.together.works, account.together.calls, strict=True):
        told = call.last != UNKNOWN
        np.minimum.at(least, call.call[told], (work.end[call.row] - call.all_in)[told])
    return np.where(np.isinf(least), np.nan, least)


def _launches(account: Account, of_call: np.ndarray, num: int) -> list[tuple[int, int, str]]:
    """grid, block and kernel of most calls of each class."""
    rows = account.together.pairs.instances
    paired = np.flatnonzero(rows.collective_id >= 0)
    which = of_call[rows.collective_id[paired]]
    found = []
    for at in range(num):
        mine = paired[which == at]
        found.append(
            (_most(rows.grid_x[mine], -1), _most(rows.block_x[mine], -1), _most(rows.kernel[mine], ""))
        )
    return found


def _most(values: np.ndarray, default: Any) -> Any:
    """The most frequent value, the first of equals."""
    found = Counter(values.tolist()).most_common(1)
    return found[0][0] if found else default
