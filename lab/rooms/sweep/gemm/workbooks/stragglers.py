"""Which rank keeps the others waiting, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.recordings.pairing import Pairs
from lab.rooms.sweep.gemm.data import SweepData
from lab.rooms.sweep.gemm.pairs import of_rank, times_by_rank
from lab.rooms.sweep.gemm.rank import RankTables
from lab.rooms.sweep.gemm.workbooks.join import over_settings
from lab.rooms.sweep.gemm.workbooks.nodes import Nodes
from lab.rooms.sweep.names import long_name
from lab.rooms.sweep.tables import column_names

STRAGGLERS = column_names(
    "threads channel rank num_collectives times_arrived_last pct_arrived_last total_wait_time_us "
    "verdict times_arrived_first mean_wait_time_us caused_wait_time_us computation_time_ms "
    "idle_time_ms end_deviation_us total_nccl_dur_us repeat"
)
# A rank is named only if it is last 1.5 times as often as by chance, and in at least 15 % of the collectives.
NAMED_SHARE, LEAST_SHARE = 1.5, 0.15
# Without any fault, the ends of a collective differ by about 20 us around a ring (8 H200).
NOTABLE_END_US, NOTABLE_END_SHARE = 50.0, 0.1


def stragglers(data: SweepData, paired: Mapping[tuple[int, int, int], Pairs]) -> pd.DataFrame:
    """One row per configuration and rank with a verdict: who keeps the others waiting, and the evidence."""
    frames = {}
    for setting, pairs in paired.items():
        summary = straggler_summary(pairs, data.ranks[setting], Nodes(data.ranks[setting]))
        times = [data.ranks[setting][rank].figures.timeline or {} for rank in summary["rank"]]
        for name in ("computation_time_ms", "idle_time_ms"):
            summary[name] = [row.get(name, np.nan) for row in times]
        latency_us = float(np.median(pairs.collectives.latency_us)) if len(pairs.collectives) else np.nan
        records = summary.to_dict("records")
        summary["verdict"] = [straggler_verdict(row, records, latency_us) for row in records]
        frames[setting] = summary
    return over_settings(frames, STRAGGLERS)


def straggler_summary(pairs: Pairs, ranks: Mapping[int, RankTables], nodes: Nodes) -> pd.DataFrame:
    """One row per rank: how often it arrived last or first, and how long it waited itself.

    Incomplete collectives do not count: the missing rank may have been the last.
    """
    complete = pairs.collectives.where(pairs.collectives.complete.astype(bool))
    by_rank = times_by_rank(pairs)
    rows = []
    for rank in ranks:
        mine = of_rank(pairs, rank)
        counted = mine.where(np.isin(mine.collective_id, complete.collective_id))
        last, n = int((complete.straggler_rank == rank).sum()), len(counted)
        wait_us = np.nan_to_num(counted.wait_us)
        rows.append(
            {
                "rank": rank,
                "total_wait_time_us": float(wait_us.sum()),
                "mean_wait_time_us": float(wait_us.mean()) if n else np.nan,
                "times_arrived_last": last,
                "times_arrived_first": int((complete.first_rank == rank).sum()),
                "pct_arrived_last": 100 * last / n if n else np.nan,
                "num_collectives": n,
                "total_nccl_dur_us": float(mine.dur_ns.sum() / 1000),
                "node_id": nodes.of(rank),
                **_caused(pairs, by_rank, rank),
            }
        )
    result: pd.DataFrame = pd.DataFrame(rows)
    return result


def straggler_verdict(
    row: Mapping[Any, Any], everyone: Sequence[Mapping[Any, Any]], latency_us: float
) -> str:
    """Why this rank arrives last; "" if it does not do so notably often.

    Measured against the medians of the others: more GPU idle time means that its work is launched late, more
    computation that it computes longer. A rank that arrives in time and still ends late has a slower link.
    """
    others = [one for one in everyone if one["rank"] != row["rank"]]
    if not others or not row["num_collectives"]:
        return ""
    late_end = row["end_deviation_us"] > max(NOTABLE_END_US, NOTABLE_END_SHARE * latency_us)
    share = row["times_arrived_last"] / row["num_collectives"]
    if share < max(NAMED_SHARE / len(everyone), LEAST_SHARE):
        end = f"its link is slower: it ends {row['end_deviation_us']:.0f} µs after the others"
        return end if late_end else ""
    mine = {name: float(row[name]) for name in ("computation_time_ms", "idle_time_ms")}
    usual = {name: float(np.median([one[name] for one in others])) for name in mine}
    more_comp, more_idle = (mine[name] - usual[name] for name in mine)
    comp, idle = (f"{mine[name]:.1f} ms (others {usual[name]:.1f} ms)" for name in mine)
    if more_idle > max(more_comp, 0):
        return f"starts later: its GPU is idle for {idle} and computes {comp}, so its launches come late"
    if more_comp > 0:
        return f"computes longer: {comp}; idle {idle}"
    return f"arrives last without a cause in the trace: computes {comp}, idle {idle}"


def straggler_findings(late: pd.DataFrame) -> list[str]:
    """One sentence per named straggler."""
    named = late[late["verdict"] != ""]
    return [
        f"{long_name(row['threads'], row['channel'])}: rank {row['rank']} arrives last in "
        f"{row['times_arrived_last']} of {plural(row['num_collectives'], 'collective')}; {row['verdict']}"
        for row in named.to_dict("records")
    ]


def _caused(pairs: Pairs, by_rank: Mapping[int, dict[str, np.ndarray]], rank: int) -> dict[str, float]:
    """How long the others wait for this rank, and its median end relative to the median rank, both in µs."""
    if rank not in by_rank or not len(pairs.collectives):
        return {"caused_wait_time_us": 0.0, "end_deviation_us": 0.0}
    wait_us = np.stack([one["wait"] for one in by_rank.values()])
    end_us = np.stack([one["ts"] + one["dur"] for one in by_rank.values()])
    there = np.isfinite(end_us).any(axis=0)
    mine = (by_rank[rank]["ts"] + by_rank[rank]["dur"])[there] - np.nanmedian(end_us[:, there], axis=0)
    is_last = pairs.collectives.complete.astype(bool) & (pairs.collectives.straggler_rank == rank)
    return {
        "caused_wait_time_us": float(np.nansum(wait_us[:, is_last])),
        "end_deviation_us": float(np.nanmedian(mine)) if np.isfinite(mine).any() else 0.0,
    }
