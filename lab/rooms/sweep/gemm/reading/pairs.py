"""The collectives of each configuration, matched over its ranks."""

from __future__ import annotations

import numpy as np

from lab.recordings.pairing import Pairs, pair_collectives
from lab.recordings.ranks.explained import Explained
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.ranks.read import by_setting


def pairs_of(data: SweepData) -> dict[Key, Pairs]:
    """Match the collectives of each configuration over its readable ranks."""
    if "pairs" not in data.memo:
        data.memo["pairs"] = {
            setting: pair_collectives(
                {rank: one.collectives for rank, one in ranks.items() if one.collectives is not None}
            )
            for setting, ranks in data.ranks.items()
            if ranks
        }
    pairs: dict[Key, Pairs] = data.memo["pairs"]
    return pairs


def explained_of(data: SweepData) -> dict[Key, Explained]:
    """The account of every configuration with a readable rank; what crosses streams is learnt over all."""
    if "explained" not in data.memo:
        works = {
            setting: {rank: one.work for rank, one in ranks.items() if one.work is not None}
            for setting, ranks in data.ranks.items()
        }
        data.memo["explained"] = by_setting(works)
    explained: dict[Key, Explained] = data.memo["explained"]
    return explained


def of_rank(pairs: Pairs, rank: int) -> Table:
    """The rank's instances in order of time, which is the order of its own table of collectives."""
    rows = pairs.instances.where(pairs.instances.rank == rank)
    return rows.take(np.argsort(rows.ts_ns, kind="stable"))


def times_by_rank(pairs: Pairs) -> dict[int, dict[str, np.ndarray]]:
    """Tabulate by rank ts, dur and wait in µs of every matched collective (n,), NaN where it is missing."""
    columns = {}
    for rank in sorted(set(pairs.instances.rank.tolist())):
        rows = pairs.instances.where((pairs.instances.rank == rank) & (pairs.instances.collective_id >= 0))
        position = index_of(pairs, rows.collective_id)
        values = {
            "ts": (rows.ts_ns - origin_ns(pairs)) / 1000,
            "dur": rows.dur_ns / 1000,
            "wait": rows.wait_us,
        }
        columns[rank] = {name: np.full(len(pairs.collectives), np.nan) for name in values}
        for name, value in values.items():
            columns[rank][name][position] = value
    return columns


def index_of(pairs: Pairs, collective_id: np.ndarray) -> np.ndarray:
    """Row of `collectives` (n,) of each id (n,), -1 for none."""
    ids = pairs.collectives.collective_id
    if not len(ids):
        return np.full(len(collective_id), -1, dtype=np.int64)
    order = np.argsort(ids)
    position = order[np.minimum(np.searchsorted(ids[order], collective_id), len(ids) - 1)]
    return np.where(ids[position] == collective_id, position, -1)


def origin_ns(pairs: Pairs) -> int:
    return int(pairs.instances.ts_ns.min()) if len(pairs.instances) else 0
