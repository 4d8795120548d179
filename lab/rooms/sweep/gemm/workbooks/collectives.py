"""The collective workbook of one configuration: what moved, and who waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lab.recordings.pairing import Pairs
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.reading.data import index_of, of_rank, origin_ns, times_by_rank
from lab.rooms.sweep.gemm.reading.rank import RankTables
from lab.rooms.sweep.gemm.sheets.launches import dtype_bytes, most_first, sheet
from lab.rooms.sweep.gemm.sheets.workbook import splits
from lab.rooms.sweep.gemm.workbooks.stragglers import Nodes, straggler_summary
from lab.stats.columns import grouped_rows
from lab.stats.robust import grouped

GROUP_NAMES = {
    "Process Group Name": "pg_name",
    "Process Group Ranks": "pg_ranks",
    "Collective name": "collective",
    "Group size": "group_size",
    "dtype": "dtype",
}
SUMMED = ["comm_latency", "skew in start time", "skew in end time", "algo bw (GB/s)", "bus bw (GB/s)"]


def collective_sheets(pairs: Pairs, ranks: Mapping[int, RankTables]) -> dict[str, Table]:
    """The sheets of one configuration's collective workbook."""
    nodes = Nodes(ranks)
    long = nccl_long(pairs, ranks, nodes)
    sync = nccl_implicit_sync(pairs, nodes)
    return {
        "nccl_summary_long": _summary_long(ranks, nodes),
        "nccl_long": long,
        "nccl_implicit_sync": sync,
        "nccl_summary_implicit_sync": _summary_sync(sync),
        "straggler_summary": straggler_summary(pairs, ranks, nodes),
    }


def nccl_long(pairs: Pairs, ranks: Mapping[int, RankTables], nodes: Nodes) -> Table:
    """One row per rank and collective, in order of time; collective_id is -1 where no other rank matches.

    ts in µs of the aligned clock, since the first collective of the configuration; sizes in MiB.
    """
    tables = []
    for rank, rank_tables in ranks.items():
        if rank_tables.collectives is None:
            continue
        table, matched = rank_tables.collectives, of_rank(pairs, rank)
        size = dtype_bytes(table.dtype) / 2**20
        position = index_of(pairs, matched.collective_id)
        tables.append(
            sheet(
                {
                    "collective_id": matched.collective_id,
                    "index_in_group": np.where(position >= 0, pairs.collectives.index_in_group[position], -1)
                    if len(pairs.collectives)
                    else position,
                    "rank": rank,
                    **{title: getattr(table, name) for title, name in GROUP_NAMES.items()},
                    "In msg nelems": table.in_nelems,
                    "In msg size (MB)": table.in_nelems * size,
                    "Out msg nelems": table.out_nelems,
                    "Out msg size (MB)": table.out_nelems * size,
                    "In split size": splits(table, "in"),
                    "Out split size": splits(table, "out"),
                    "stream": table.stream,
                    "ts": matched.ts_ns,
                    "dur": matched.dur_ns / 1000,
                    "node_id": nodes.of(rank),
                    "node_span": nodes.spans(table.pg_ranks),
                    "wait_us": matched.wait_us,
                    "step": table.step,
                    "correlation": table.correlation,
                    "grid_x": table.grid_x,
                    "block_x": table.block_x,
                }
            )
        )
    all_ranks = below(tables, list(tables[0]))
    all_ranks = Table({**all_ranks.as_dict(), "ts": (all_ranks.ts - origin_ns(pairs)) / 1000})
    return all_ranks.take(np.lexsort((all_ranks.rank, all_ranks.ts)))


def nccl_implicit_sync(pairs: Pairs, nodes: Nodes) -> Table:
    """One row per matched collective: latency (shortest rank), skews, waits, bandwidths, and every rank."""
    table, size = pairs.collectives, dtype_bytes(pairs.collectives.dtype) / 2**20
    by_rank = times_by_rank(pairs)
    waits = [columns["wait"] for columns in by_rank.values()]
    wait_us = np.stack(waits) if waits else np.empty((0, len(table)))
    # A rank that recorded the call alone has no known wait: the mean is over the others.
    num_measured = np.isfinite(wait_us).sum(axis=0) if len(wait_us) else np.zeros(len(table))
    return sheet(
        {
            "collective_id": table.collective_id,
            **{title: getattr(table, name) for title, name in GROUP_NAMES.items()},
            "In msg nelems": table.in_nelems,
            "Out msg nelems": table.out_nelems,
            "In msg size (MB)": table.in_nelems * size,
            "Out msg size (MB)": table.out_nelems * size,
            "Full msg size (MB)": np.where(table.msg_bytes >= 0, table.msg_bytes, np.nan) / 2**20,
            "comm_latency": table.latency_us,
            "skew in start time": table.start_skew_us,
            "earliest arrival rank": table.first_rank,
            "avg_wait_time": np.nansum(wait_us, axis=0) / np.maximum(num_measured, 1),
            "skew in end time": table.end_skew_us,
            "algo bw (GB/s)": table.algbw_gb_s,
            "bus bw (GB/s)": table.busbw_gb_s,
            **{f"rank_{rank}_{name}": by_rank[rank][name] for rank in by_rank for name in ("ts", "dur")},
            **{f"rank_{rank}_wait_time": by_rank[rank]["wait"] for rank in by_rank},
            "node_span": nodes.spans(table.pg_ranks),
            "last arrival rank": table.straggler_rank,
            "complete": table.complete.astype(bool),
            "missing_ranks": table.missing_ranks,
            "confidence": table.confidence,
        }
    )


def _summary_long(ranks: Mapping[int, RankTables], nodes: Nodes) -> Table:
    tables = []
    for rank, rank_tables in ranks.items():
        table = rank_tables.sheets["coll_analysis"]
        spans = nodes.spans(getattr(table, "Process Group Ranks"))
        tables.append(
            sheet({**table.as_dict(), "node_id": np.full(len(table), nodes.of(rank)), "node_span": spans})
        )
    return below([table for table in tables if len(table)] or tables[:1], list(tables[0]))


def _summary_sync(sync: Table) -> Table:
    """One row per kind and size, over its collectives; latency in µs, its total in ms."""
    key = ["Collective name", "dtype", "In msg nelems", "Process Group Name", "Group size"]
    first_rows, group = grouped_rows([getattr(sync, name) for name in key])
    count = np.bincount(group, minlength=len(first_rows))
    summary = {name: getattr(sync, name)[first_rows] for name in key}
    summary["Full msg size (MB)"] = _first_known(getattr(sync, "Full msg size (MB)"), group, len(first_rows))
    for figure in SUMMED:
        stats = _known_stats(getattr(sync, figure), group, len(first_rows))
        summary |= {f"{figure}_{name}": stats[name] for name in ("mean", "median", "min", "max")}
    total_ms = summary["comm_latency_mean"] * count / 1000
    return most_first(
        sheet({**summary, "count": count, "Total comm latency (ms)": total_ms}), "Total comm latency (ms)"
    )


def below(tables: Sequence[Table], columns: Sequence[str]) -> Table:
    """Tables one below the other, in these columns."""
    if not tables:
        return Table({name: np.empty(0, dtype=object) for name in columns})
    return Table({name: np.concatenate([getattr(table, name) for table in tables]) for name in columns})


def _first_known(values: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """The first value of each group (num_groups,) that is not NaN."""
    values_of_group = np.full(num_groups, np.nan)
    measured = np.flatnonzero(~np.isnan(values))[::-1]
    values_of_group[group[measured]] = values[measured]
    return values_of_group


def _known_stats(values: np.ndarray, group: np.ndarray, num_groups: int) -> dict[str, np.ndarray]:
    """Statistics of each group's values that are not NaN, arrays (num_groups,)."""
    measured = ~np.isnan(values)
    return grouped(values[measured], group[measured], num_groups)
