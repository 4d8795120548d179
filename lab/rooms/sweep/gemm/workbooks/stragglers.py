"""Which rank keeps the others waiting; why, is what the account of the ranks says."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lab.recordings.pairing import Pairs
from lab.recordings.ranks.explained import Explained
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.reading.pairs import of_rank, times_by_rank
from lab.rooms.sweep.gemm.reading.rank import RankTables
from lab.rooms.sweep.gemm.sheets.figures import sheet
from lab.rooms.sweep.gemm.workbooks.join import over_settings
from lab.rooms.sweep.gemm.workbooks.nodes import Nodes
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.names import long_name
from lab.rooms.sweep.tables import column_names
from lab.stats import robust
from lab.stats.columns import columns_of_rows

STRAGGLERS = column_names(
    "threads channel rank num_collectives times_arrived_last pct_arrived_last total_wait_time_us "
    "verdict times_arrived_first mean_wait_time_us caused_wait_time_us computation_time_ms "
    "idle_time_ms end_deviation_us total_nccl_dur_us repeat "
    "algorithm protocol"
)


def stragglers(
    data: SweepData,
    paired: Mapping[Key, Pairs],
    explained: Mapping[Key, Explained],
) -> Table:
    """One row per configuration and rank: who waited and who caused it, and what the account finds on it."""
    tables = {}
    for setting, pairs in paired.items():
        summary = straggler_summary(pairs, data.ranks[setting], Nodes(data.ranks[setting]))
        ranks = summary.rank.tolist()
        times = [data.ranks[setting][rank].figures.timeline or {} for rank in ranks]
        causes = explained[setting].findings if setting in explained else ()
        tables[setting] = sheet(
            {
                **summary.as_dict(),
                **{
                    name: [row.get(name, np.nan) for row in times]
                    for name in ("computation_time_ms", "idle_time_ms")
                },
                "verdict": [
                    "; ".join(cause.text for cause in causes if cause.rank == rank) for rank in ranks
                ],
            }
        )
    return over_settings(tables, STRAGGLERS)


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


def straggler_findings(explained: Mapping[Key, Explained]) -> list[str]:
    """One sentence per finding, setting by setting, those that bind first."""
    return [
        f"{long_name(*key.knobs)}: {finding.text}"
        for key, explanation in explained.items()
        for finding in explanation.findings
    ]


def _caused(pairs: Pairs, by_rank: Mapping[int, dict[str, np.ndarray]], rank: int) -> dict[str, float]:
    """How long the others wait for this rank, and its median end relative to the median rank, both in µs."""
    if rank not in by_rank or not len(pairs.collectives):
        return {"caused_wait_time_us": 0.0, "end_deviation_us": 0.0}
    wait_us = np.stack([one["wait"] for one in by_rank.values()])
    end_us = np.stack([one["ts"] + one["dur"] for one in by_rank.values()])
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
