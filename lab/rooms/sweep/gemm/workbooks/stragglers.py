"""Which rank keeps the others waiting."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from lab.recordings.pairing import Pairs
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.reading.data import of_rank, times_by_rank
from lab.rooms.sweep.gemm.reading.rank import RankTables
from lab.stats import robust
from lab.stats.columns import columns_of_rows


class Nodes:
    """The host of each rank, derived from the number of GPUs that its trace lists."""

    def __init__(self, ranks: Mapping[int, RankTables]) -> None:
        self._size = max((rank.num_devices for rank in ranks.values()), default=0)

    def of(self, rank: int) -> int:
        return rank // self._size if self._size else 0

    def spans(self, pg_ranks: np.ndarray) -> np.ndarray:
        """Number of hosts (n,) that each group of ranks, a text like `[0, 1]`, lies on."""
        spans_of = {
            text: len({self.of(int(rank)) for rank in re.findall(r"\d+", text)}) or 1
            for text in set(pg_ranks.tolist())
        }
        return np.array([spans_of[text] for text in pg_ranks.tolist()], dtype=np.int64)


def straggler_summary(pairs: Pairs, ranks: Mapping[int, RankTables], nodes: Nodes) -> Table:
    """One row per rank: how often it arrived last or first, and how long it waited itself.

    Incomplete collectives do not count: the missing rank may have been the last.
    """
    complete = pairs.collectives.where(pairs.collectives.complete.astype(bool))
    by_rank = times_by_rank(pairs)
    rows = []
    for rank in ranks:
        own_rows = of_rank(pairs, rank)
        counted = own_rows.where(np.isin(own_rows.collective_id, complete.collective_id))
        num_last, n = int((complete.straggler_rank == rank).sum()), len(counted)
        wait_us = np.nan_to_num(counted.wait_us)
        rows.append(
            {
                "rank": rank,
                "total_wait_time_us": float(wait_us.sum()),
                "mean_wait_time_us": float(wait_us.mean()) if n else np.nan,
                "times_arrived_last": num_last,
                "times_arrived_first": int((complete.first_rank == rank).sum()),
                "pct_arrived_last": 100 * num_last / n if n else np.nan,
                "num_collectives": n,
                "total_nccl_dur_us": float(own_rows.dur_ns.sum() / 1000),
                "node_id": nodes.of(rank),
                **_caused(pairs, by_rank, rank),
            }
        )
    return Table(columns_of_rows(rows, list(rows[0]) if rows else []))


def _caused(pairs: Pairs, by_rank: Mapping[int, dict[str, np.ndarray]], rank: int) -> dict[str, float]:
    """How long the others wait for this rank, and its median end relative to the median rank, both in µs."""
    if rank not in by_rank or not len(pairs.collectives):
        return {"caused_wait_time_us": 0.0, "end_deviation_us": 0.0}
    wait_us = np.stack([columns["wait"] for columns in by_rank.values()])
    end_us = np.stack([columns["ts"] + columns["dur"] for columns in by_rank.values()])
    has_end = np.isfinite(end_us).any(axis=0)
    own_end_us = (by_rank[rank]["ts"] + by_rank[rank]["dur"])[has_end] - robust.column_medians(
        end_us[:, has_end]
    )
    is_last = pairs.collectives.complete.astype(bool) & (pairs.collectives.straggler_rank == rank)
    return {
        "caused_wait_time_us": float(np.nansum(wait_us[:, is_last])),
        "end_deviation_us": robust.median(own_end_us[~np.isnan(own_end_us)])
        if np.isfinite(own_end_us).any()
        else 0.0,
    }
