"""The collective workbook of one configuration: what moved, who waited, and who keeps the others waiting."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from lab.recordings.pairing import Pairs
from lab.rooms.sweep.gemm.rank import RankTables
from lab.rooms.sweep.gemm.sheets.launches import dtype_bytes
from lab.rooms.sweep.gemm.sheets.workbook import splits

# Our columns of a call -> TraceLens' titles.
GROUP_NAMES = {
    "pg_name": "Process Group Name",
    "pg_ranks": "Process Group Ranks",
    "collective": "Collective name",
    "group_size": "Group size",
    "dtype": "dtype",
}
COUNTS = {"in_nelems": "In msg nelems", "out_nelems": "Out msg nelems"}
BYTES = {"in_nelems": "In msg size (MB)", "out_nelems": "Out msg size (MB)"}
FIGURES = {
    "latency_us": "comm_latency",
    "start_skew_us": "skew in start time",
    "first_rank": "earliest arrival rank",
    "end_skew_us": "skew in end time",
    "algbw_gb_s": "algo bw (GB/s)",
    "busbw_gb_s": "bus bw (GB/s)",
    "straggler_rank": "last arrival rank",
}
SUMMED = ["comm_latency", "skew in start time", "skew in end time", "algo bw (GB/s)", "bus bw (GB/s)"]


class Nodes:
    """The host of each rank, derived from the number of GPUs that its trace lists."""

    def __init__(self, ranks: Mapping[int, RankTables]) -> None:
        self._size = max((rank.num_devices for rank in ranks.values()), default=0)

    def of(self, rank: int) -> int:
        return rank // self._size if self._size else 0

    def spans(self, pg_ranks: pd.Series) -> pd.Series:
        """Number of hosts (n,) that each group of ranks, a text like `[0, 1]`, lies on."""
        num_hosts = {
            text: len({self.of(int(rank)) for rank in re.findall(r"\d+", text)}) or 1
            for text in set(pg_ranks)
        }
        return pg_ranks.map(num_hosts)


def collective_sheets(pairs: Pairs, ranks: Mapping[int, RankTables]) -> dict[str, pd.DataFrame]:
    """The sheets of one configuration's collective workbook."""
    nodes = Nodes(ranks)
    sync = nccl_implicit_sync(pairs, nodes)
    return {
        "nccl_summary_long": _summary_long(ranks, nodes),
        "nccl_long": nccl_long(pairs, nodes),
        "nccl_implicit_sync": sync,
        "nccl_summary_implicit_sync": _summary_sync(sync),
        "straggler_summary": straggler_summary(pairs, ranks, nodes),
    }


def nccl_long(pairs: Pairs, nodes: Nodes) -> pd.DataFrame:
    """One row per rank and collective, in order of time; collective_id is -1 where no other rank matches.

    ts in µs of the aligned clock, since the first collective of the configuration; sizes in MiB.
    """
    calls = _calls(pairs).sort_values(["ts_ns", "rank"], kind="stable", ignore_index=True)
    index_in_group = dict(zip(pairs.collectives.collective_id, pairs.collectives.index_in_group, strict=True))
    columns = {
        "collective_id": calls["collective_id"],
        "index_in_group": [index_in_group.get(number, -1) for number in calls["collective_id"]],
        "rank": calls["rank"],
        **{title: calls[name] for name, title in GROUP_NAMES.items()},
    }
    for name, title in COUNTS.items():
        columns |= {title: calls[name], BYTES[name]: calls[name] * _item_mib(calls)}
    sheet: pd.DataFrame = pd.DataFrame(
        {
            **columns,
            "In split size": splits(calls["in_split"]),
            "Out split size": splits(calls["out_split"]),
            "stream": calls["stream"],
            "ts": (calls["ts_ns"] - calls["ts_ns"].min()) / 1000,
            "dur": calls["dur_ns"] / 1000,
            "node_id": calls["rank"].map(nodes.of),
            "node_span": nodes.spans(calls["pg_ranks"]),
            **{name: calls[name] for name in ("wait_us", "step", "correlation", "grid_x", "block_x")},
        }
    )
    return sheet


def nccl_implicit_sync(pairs: Pairs, nodes: Nodes) -> pd.DataFrame:
    """One row per matched collective: latency (shortest rank), skews, waits, bandwidths, and every rank."""
    table = pd.DataFrame(pairs.collectives.as_dict())
    times = _times_by_rank(pairs)
    sizes = {title: table[name] * _item_mib(table) for name, title in BYTES.items()}
    by_rank = {
        f"rank_{rank}_{name}": of_rank[name].to_numpy()
        for names in (("ts", "dur"), ("wait_time",))
        for rank, of_rank in times.items()
        for name in names
    }
    waits_us = np.array([of_rank["wait_time"] for of_rank in times.values()]).reshape(len(times), len(table))
    # A rank that recorded the call alone has no known wait: the mean is over the others.
    num_measured = np.isfinite(waits_us).sum(axis=0)
    sync: pd.DataFrame = table.rename(columns={**FIGURES, **GROUP_NAMES, **COUNTS}).assign(
        **sizes,
        **{"Full msg size (MB)": table["msg_bytes"].where(table["msg_bytes"] >= 0) / 2**20},
        avg_wait_time=np.nansum(waits_us, axis=0) / np.maximum(num_measured, 1),
        **by_rank,
        node_span=nodes.spans(table["pg_ranks"]),
    )[
        [
            *("collective_id", *GROUP_NAMES.values(), *COUNTS.values(), *sizes, "Full msg size (MB)"),
            *("comm_latency", "skew in start time", "earliest arrival rank", "avg_wait_time"),
            *("skew in end time", "algo bw (GB/s)", "bus bw (GB/s)", *by_rank),
            *("node_span", "last arrival rank", "complete", "missing_ranks", "confidence"),
        ]
    ]
    return sync


def straggler_summary(pairs: Pairs, ranks: Mapping[int, RankTables], nodes: Nodes) -> pd.DataFrame:
    """One row per rank: how often it arrived last or first, how long it waited itself, and the others for it.

    Incomplete collectives do not count there: the missing rank may have been the last. end_deviation_us: its
    median end relative to the median rank.
    """
    table = pd.DataFrame(pairs.collectives.as_dict())
    complete = table[table["complete"].astype(bool)]
    calls = _calls(pairs).assign(wait_us=lambda frame: frame["wait_us"].fillna(0.0))
    counted = calls[calls["collective_id"].isin(complete["collective_id"])]
    waits = counted.groupby("rank")["wait_us"]
    last_rank = counted["collective_id"].map(complete.set_index("collective_id")["straggler_rank"])
    matched = calls[calls["collective_id"] >= 0]
    # Since the first call: a median is a float, which keeps 256 ns of a unix time.
    end_ns = matched["ts_ns"] - calls["ts_ns"].min() + matched["dur_ns"]
    deviation_ns = end_ns - end_ns.groupby(matched["collective_id"]).transform("median")
    figures = {
        "total_wait_time_us": waits.sum(),
        "mean_wait_time_us": waits.mean(),
        "times_arrived_last": complete["straggler_rank"].value_counts(),
        "times_arrived_first": complete["first_rank"].value_counts(),
        "pct_arrived_last": np.nan,
        "num_collectives": waits.size(),
        "total_nccl_dur_us": calls.groupby("rank")["dur_ns"].sum() / 1000,
        "node_id": 0,
        "caused_wait_time_us": counted.groupby(last_rank)["wait_us"].sum(),
        "end_deviation_us": deviation_ns.groupby(matched["rank"]).median() / 1000,
    }
    rows: pd.DataFrame = pd.DataFrame(figures, index=pd.Index(list(ranks), name="rank"))
    counts = ["times_arrived_last", "times_arrived_first", "num_collectives"]
    sums = ["total_wait_time_us", "total_nccl_dur_us", "caused_wait_time_us", "end_deviation_us"]
    rows[[*counts, *sums]] = rows[[*counts, *sums]].fillna(0.0)
    rows = rows.astype(dict.fromkeys(counts, int))
    rows["pct_arrived_last"] = 100 * rows["times_arrived_last"] / rows["num_collectives"]
    rows["node_id"] = [nodes.of(rank) for rank in ranks]
    summary: pd.DataFrame = rows.reset_index()
    return summary


def _calls(pairs: Pairs) -> pd.DataFrame:
    calls: pd.DataFrame = pd.DataFrame(pairs.instances.as_dict())
    return calls


def _item_mib(calls: pd.DataFrame) -> np.ndarray:
    return dtype_bytes(calls["dtype"].to_numpy()) / 2**20


def _times_by_rank(pairs: Pairs) -> dict[int, pd.DataFrame]:
    """By rank: ts, dur and wait_time in µs of every matched collective (n,), NaN where it is missing."""
    calls = _calls(pairs)
    times = calls.assign(
        ts=(calls["ts_ns"] - calls["ts_ns"].min()) / 1000,
        dur=calls["dur_ns"] / 1000,
        wait_time=calls["wait_us"],
    )
    return {
        rank: times[(times["rank"] == rank) & (times["collective_id"] >= 0)]
        .set_index("collective_id")[["ts", "dur", "wait_time"]]
        .reindex(pairs.collectives.collective_id)
        for rank in sorted(set(pairs.instances.rank.tolist()))
    }


def _summary_long(ranks: Mapping[int, RankTables], nodes: Nodes) -> pd.DataFrame:
    frames = []
    for rank, rank_tables in ranks.items():
        frame = pd.DataFrame(rank_tables.sheets["coll_analysis"].as_dict())
        frames.append(
            frame.assign(node_id=nodes.of(rank), node_span=nodes.spans(frame["Process Group Ranks"]))
        )
    filled = [frame for frame in frames if len(frame)] or frames[:1]
    sheet: pd.DataFrame = pd.concat(filled, ignore_index=True)
    return sheet


def _summary_sync(sync: pd.DataFrame) -> pd.DataFrame:
    """One row per kind and size, over its collectives; latency in µs, its total in ms."""
    groups = sync.groupby(["Collective name", "dtype", "In msg nelems", "Process Group Name", "Group size"])
    summary = groups[["Full msg size (MB)"]].first()
    for figure in SUMMED:
        stats = groups[figure].agg(["mean", "median", "min", "max"])
        summary = summary.join(stats.add_prefix(f"{figure}_"))
    summary["count"] = groups.size()
    total_ms = summary["comm_latency_mean"] * summary["count"] / 1000
    summary = summary.assign(**{"Total comm latency (ms)": total_ms}).reset_index()
    by_total: pd.DataFrame = summary.sort_values(
        "Total comm latency (ms)", ascending=False, kind="stable", ignore_index=True
    )
    return by_total
