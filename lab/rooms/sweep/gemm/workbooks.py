"""The Excel and CSV reports: each rank, each configuration over its ranks, each setting beside the others.

Sheets and columns are those of TraceLens (AMD-AGI/TraceLens, `generate_multi_rank_collective_report`) in its
order, ours after them. Two things differ on purpose: bandwidths are in GB/s with GB = 1e9 and the bus factors of
nccl-tests (TraceLens writes GiB/s under the same heading), and collectives are paired by group and sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.recordings.pairing import Pairs, pair_collectives
from lab.recordings.tables import Table
from lab.recordings.views import DTYPE_BYTES
from lab.report.excel import write_workbook
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm.sheets import splits
from lab.rooms.sweep.gemm.tables import (
    SETTING,
    Progress,
    RankTables,
    Report,
    SweepData,
    read_sweep,
    report_name,
)

OUT = "tracelens_analysis"
GROUP_NAMES = {
    "Process Group Name": "pg_name",
    "Process Group Ranks": "pg_ranks",
    "Collective name": "collective",
    "Group size": "group_size",
    "dtype": "dtype",
}
TIMELINE_FIRST = [
    "threads",
    "channel",
    "rank",
    "computation_time_ms",
    "exposed_comm_time_ms",
    "exposed_memcpy_time_ms",
    "busy_time_ms",
    "idle_time_ms",
    "total_time_ms",
    "total_comm_time_ms",
    "total_memcpy_time_ms",
]
STRAGGLERS = [
    "threads",
    "channel",
    "rank",
    "num_collectives",
    "times_arrived_last",
    "pct_arrived_last",
    "total_wait_time_us",
    "verdict",
    "times_arrived_first",
    "mean_wait_time_us",
    "caused_wait_time_us",
    "computation_time_ms",
    "idle_time_ms",
    "end_deviation_us",
    "total_nccl_dur_us",
    "repeat",
]
COLLECTIVES = [
    "threads",
    "channel",
    "collective_id",
    "pg_name",
    "pg_ranks",
    "collective",
    "dtype",
    "in_nelems",
    "out_nelems",
    "group_size",
    "index_in_group",
    "msg_bytes",
    "latency_us",
    "start_skew_us",
    "end_skew_us",
    "straggler_rank",
    "first_rank",
    "algbw_gb_s",
    "busbw_gb_s",
    "complete",
    "missing_ranks",
    "confidence",
    "repeat",
]
SUMMED = ["comm_latency", "skew in start time", "skew in end time", "algo bw (GB/s)", "bus bw (GB/s)"]
# A rank is named only if it is last half as often again as chance would have it, and in 15 % of all at least.
NAMED_SHARE, LEAST_SHARE = 1.5, 0.15
# Ends of a collective differ by some 20 us around a ring without any fault (8 H200).
NOTABLE_END_US, NOTABLE_END_SHARE = 50.0, 0.1


def gemm_report(
    sweep: Path,
    out: Path,
    *,
    workers: int = 2,
    progress: Progress | None = None,
    data: SweepData | None = None,
    salvage: bool = False,
) -> Report:
    """Write every workbook and the CSV files beside them below `out`, usually SWEEP/tracelens_analysis.

    data: a sweep that `read_sweep` has read already, with its workbooks. Raises MissingError without traces,
    StorageError where `out` cannot be written; a broken trace is in `lacking`, the rest is written.
    """
    if data is None:
        cache = out / ".cache" / "traces"
        data = read_sweep(
            sweep, cache=cache, workers=workers, workbooks=out, salvage=salvage, progress=progress
        )
    paired = pairs_of(data)
    files = list(data.files)
    for setting, pairs in paired.items():
        sheets = collective_sheets(pairs, data.ranks[setting])
        files.append(write_workbook(sheets, out / report_name("collective", setting, "")))
    files += _comparisons(data, out)
    files += [write_csv(frame, out / f"{name}.csv") for name, frame in csv_tables(data, paired).items()]
    problems = [
        f"{setting[0]} threads {setting[1]} channels: {what}"
        for setting, pairs in paired.items()
        for what in pairs.problems
    ]
    late = stragglers(data, paired)
    return Report(
        files=files,
        lacking=list(data.lacking),
        problems=[*data.problems, *problems],
        findings=straggler_findings(late),
    )


def pairs_of(data: SweepData) -> dict[tuple[int, int, int], Pairs]:
    """For each configuration with a readable rank its collectives, matched over the ranks."""
    if "pairs" not in data.memo:
        data.memo["pairs"] = {
            setting: pair_collectives(
                {rank: one.collectives for rank, one in ranks.items() if one.collectives is not None}
            )
            for setting, ranks in data.ranks.items()
            if ranks
        }
    found: dict[tuple[int, int, int], Pairs] = data.memo["pairs"]
    return found


def csv_tables(data: SweepData, paired: Mapping[tuple[int, int, int], Pairs]) -> dict[str, pd.DataFrame]:
    """timeline, effective, collectives and stragglers of the whole sweep, ready to be written."""
    timeline = data.tables.timeline
    rest = [name for name in timeline if name not in TIMELINE_FIRST]
    return {
        "timeline": timeline[[*TIMELINE_FIRST, *rest]],
        "effective": data.tables.effective,
        "collectives": _over_settings(
            {setting: _collective_rows(pairs) for setting, pairs in paired.items()}, COLLECTIVES
        ),
        "stragglers": stragglers(data, paired),
    }


def collective_sheets(pairs: Pairs, ranks: Mapping[int, RankTables]) -> dict[str, pd.DataFrame]:
    """The sheets of one configuration's collective workbook."""
    nodes = _Nodes(ranks)
    long = nccl_long(pairs, ranks, nodes)
    sync = nccl_implicit_sync(pairs, nodes)
    return {
        "nccl_summary_long": _summary_long(ranks, nodes),
        "nccl_long": long,
        "nccl_implicit_sync": sync,
        "nccl_summary_implicit_sync": _summary_sync(sync),
        "straggler_summary": straggler_summary(pairs, ranks, nodes),
    }


def nccl_long(pairs: Pairs, ranks: Mapping[int, RankTables], nodes: _Nodes) -> pd.DataFrame:
    """One row per rank and collective, in order of time; collective_id is -1 where no other rank matches.

    ts in µs of the aligned clock, since the first collective of the configuration; sizes in MiB.
    """
    frames = []
    for rank, one in ranks.items():
        if one.collectives is None:
            continue
        table, matched = one.collectives, of_rank(pairs, rank)
        size = np.array([DTYPE_BYTES.get(name.lower(), np.nan) for name in table.dtype], dtype=float) / 2**20
        at = _index_of(pairs, matched.collective_id)
        frames.append(
            pd.DataFrame(
                {
                    "collective_id": matched.collective_id,
                    "index_in_group": np.where(at >= 0, pairs.collectives.index_in_group[at], -1)
                    if len(pairs.collectives)
                    else at,
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
    frame = pd.concat(frames, ignore_index=True)
    frame["ts"] = (frame["ts"] - _origin_ns(pairs)) / 1000
    result: pd.DataFrame = frame.sort_values(["ts", "rank"], kind="stable", ignore_index=True)
    return result


def nccl_implicit_sync(pairs: Pairs, nodes: _Nodes) -> pd.DataFrame:
    """One row per matched collective: latency (shortest rank), skews, waits, bandwidths, and every rank."""
    table, size = pairs.collectives, _dtype_mib(pairs.collectives)
    by_rank = _by_rank(pairs)
    wait_us = (
        np.stack([columns["wait"] for columns in by_rank.values()]) if by_rank else np.empty((0, len(table)))
    )
    known = np.isfinite(wait_us).sum(axis=0) if len(wait_us) else np.zeros(len(table))
    result: pd.DataFrame = pd.DataFrame(
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
            "avg_wait_time": np.nansum(wait_us, axis=0) / np.maximum(known, 1),
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
    return result


def straggler_summary(pairs: Pairs, ranks: Mapping[int, RankTables], nodes: _Nodes) -> pd.DataFrame:
    """One row per rank: how often it arrived last or first, and how long it waited itself.

    Incomplete collectives do not count: the missing rank may have been the last.
    """
    complete = pairs.collectives.where(pairs.collectives.complete.astype(bool))
    by_rank = _by_rank(pairs)
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


def stragglers(data: SweepData, paired: Mapping[tuple[int, int, int], Pairs]) -> pd.DataFrame:
    """One row per configuration and rank with a verdict: who keeps the others waiting, and the evidence."""
    frames = {}
    for setting, pairs in paired.items():
        summary = straggler_summary(pairs, data.ranks[setting], _Nodes(data.ranks[setting]))
        times = [data.ranks[setting][rank].figures.timeline or {} for rank in summary["rank"]]
        for name in ("computation_time_ms", "idle_time_ms"):
            summary[name] = [row.get(name, np.nan) for row in times]
        latency_us = float(np.median(pairs.collectives.latency_us)) if len(pairs.collectives) else np.nan
        records = summary.to_dict("records")
        summary["verdict"] = [straggler_verdict(row, records, latency_us) for row in records]
        frames[setting] = summary
    return _over_settings(frames, STRAGGLERS)


def straggler_verdict(
    row: Mapping[Any, Any], everyone: Sequence[Mapping[Any, Any]], latency_us: float
) -> str:
    """Why this rank arrives last, "" if it does not do so notably.

    The others' medians are the measure. More GPU idle time than they have means that its work is launched
    late, more computation that it computes longer; a rank that arrives in time and still ends late has a
    slower link.
    """
    others = [one for one in everyone if one["rank"] != row["rank"]]
    if not others or not row["num_collectives"]:
        return ""
    late_end = row["end_deviation_us"] > max(NOTABLE_END_US, NOTABLE_END_SHARE * latency_us)
    share = row["times_arrived_last"] / row["num_collectives"]
    if share < max(NAMED_SHARE / len(everyone), LEAST_SHARE):
        return (
            f"its link is slower: it ends {row['end_deviation_us']:.0f} µs after the others"
            if late_end
            else ""
        )
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
        f"{row['threads']} threads {row['channel']} channels: rank {row['rank']} arrives last in "
        f"{row['times_arrived_last']} of {row['num_collectives']} collectives; {row['verdict']}"
        for row in named.to_dict("records")
    ]


def of_rank(pairs: Pairs, rank: int) -> Table:
    """The rank's instances in order of time, which is the order of its own table of collectives."""
    mine = pairs.instances.where(pairs.instances.rank == rank)
    return mine.take(np.argsort(mine.ts_ns, kind="stable"))


@dataclass(frozen=True)
class _Nodes:
    """Which host a rank ran on, as far as the number of GPUs that a trace saw tells it."""

    ranks: Mapping[int, RankTables]

    def of(self, rank: int) -> int:
        size = max((one.num_devices for one in self.ranks.values()), default=0)
        return rank // size if size else 0

    def spans(self, pg_ranks: np.ndarray) -> np.ndarray:
        """Number of hosts (n,) that each group of ranks, a text like `[0, 1]`, lies on."""
        known: dict[str, int] = {}
        for text in set(pg_ranks.tolist()):
            members = [int(part) for part in text.strip("[] ").split(",") if part.strip().isdigit()]
            known[text] = len({self.of(rank) for rank in members}) or 1
        return np.array([known[text] for text in pg_ranks.tolist()], dtype=np.int64)


def _summary_long(ranks: Mapping[int, RankTables], nodes: _Nodes) -> pd.DataFrame:
    frames = []
    for rank, one in ranks.items():
        sheet = one.sheets["coll_analysis"]
        spans = nodes.spans(sheet["Process Group Ranks"].to_numpy(dtype=object))
        frames.append(sheet.assign(node_id=nodes.of(rank), node_span=spans))
    full = [frame for frame in frames if len(frame)]
    result: pd.DataFrame = pd.concat(full, ignore_index=True) if full else frames[0]
    return result


def _summary_sync(sync: pd.DataFrame) -> pd.DataFrame:
    """One row per kind and size, over its collectives; latency in µs, its total in ms."""
    key = ["Collective name", "dtype", "In msg nelems", "Process Group Name", "Group size"]
    named = {"Full msg size (MB)": ("Full msg size (MB)", "first")}
    named |= {f"{what}_{how}": (what, how) for what in SUMMED for how in ("mean", "median", "min", "max")}
    frame = sync.groupby(key, sort=True).agg(**named, count=("collective_id", "size")).reset_index()
    frame["Total comm latency (ms)"] = frame["comm_latency_mean"] * frame["count"] / 1000
    result: pd.DataFrame = frame.sort_values(
        "Total comm latency (ms)", ascending=False, kind="stable", ignore_index=True
    )
    return result


def _by_rank(pairs: Pairs) -> dict[int, dict[str, np.ndarray]]:
    """For each rank ts, dur and wait in µs of every matched collective (n,), NaN where it is missing."""
    columns = {}
    for rank in sorted(set(pairs.instances.rank.tolist())):
        mine = pairs.instances.where((pairs.instances.rank == rank) & (pairs.instances.collective_id >= 0))
        at = _index_of(pairs, mine.collective_id)
        values = {
            "ts": (mine.ts_ns - _origin_ns(pairs)) / 1000,
            "dur": mine.dur_ns / 1000,
            "wait": mine.wait_us,
        }
        columns[rank] = {name: np.full(len(pairs.collectives), np.nan) for name in values}
        for name, value in values.items():
            columns[rank][name][at] = value
    return columns


def _caused(pairs: Pairs, by_rank: Mapping[int, dict[str, np.ndarray]], rank: int) -> dict[str, float]:
    """What the others wait for this rank, and its median end after the collective's middle rank, both in µs."""
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


def _index_of(pairs: Pairs, collective_id: np.ndarray) -> np.ndarray:
    """Row of `collectives` (n,) of each id (n,), -1 for none."""
    ids = pairs.collectives.collective_id
    if not len(ids):
        return np.full(len(collective_id), -1, dtype=np.int64)
    order = np.argsort(ids)
    at = order[np.minimum(np.searchsorted(ids[order], collective_id), len(ids) - 1)]
    return np.where(ids[at] == collective_id, at, -1)


def _origin_ns(pairs: Pairs) -> int:
    return int(pairs.instances.ts_ns.min()) if len(pairs.instances) else 0


def _dtype_mib(table: Table) -> np.ndarray:
    sizes = [DTYPE_BYTES.get(str(name).lower(), np.nan) for name in table.dtype.tolist()]
    return np.array(sizes, dtype=float) / 2**20


def _collective_rows(pairs: Pairs) -> pd.DataFrame:
    found: pd.DataFrame = pd.DataFrame(pairs.collectives.as_dict())
    return found


def _over_settings(frames: Mapping[tuple[int, int, int], pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """The frames of all configurations below each other, with their settings, in these columns."""
    full = [
        frame.assign(**dict(zip(SETTING, setting, strict=True)))
        for setting, frame in frames.items()
        if len(frame)
    ]
    result: pd.DataFrame = (
        pd.concat(full, ignore_index=True)[columns] if full else pd.DataFrame(columns=columns)
    )
    return result


def _comparisons(data: SweepData, out: Path) -> list[Path]:
    """For every channel count and rank the timelines and op times of all thread counts side by side."""
    found: dict[tuple[int, int], dict[int, RankTables]] = {}
    for (threads, channel, _), ranks in sorted(data.ranks.items(), reverse=True):
        for rank, one in ranks.items():
            found.setdefault((channel, rank), {})[threads] = one  # the first repeat comes last, and stays
    return [
        write_workbook(
            comparison(by_threads),
            out / "comparisons" / f"compare_{channel}ch_rank{rank}_across_threads.xlsx",
        )
        for (channel, rank), by_threads in sorted(found.items())
        if len(by_threads) > 1
    ]


def comparison(by_threads: Mapping[int, RankTables]) -> dict[str, pd.DataFrame]:
    """Sheets gpu_timeline and ops_summary, a set of columns a thread count, then each one's change.

    diff is new minus first, ratio new over first; the first is the lowest thread count.
    """
    keys = {"gpu_timeline": ("type", ["time ms", "percent"])}
    figures = ["Count", "total_direct_kernel_time_ms", "total_subtree_kernel_time_ms"]
    keys["ops_summary"] = ("name", figures)
    return {sheet: _beside(by_threads, sheet, key, values) for sheet, (key, values) in keys.items()}


def _beside(by_threads: Mapping[int, RankTables], sheet: str, key: str, values: list[str]) -> pd.DataFrame:
    order = sorted(by_threads)
    parts = [by_threads[threads].sheets[sheet].set_index(key)[values] for threads in order]
    rows = list(dict.fromkeys(name for part in parts for name in part.index))
    parts = [part.reindex(rows) for part in parts]
    frame = pd.DataFrame(index=pd.Index(rows, name=key))
    for threads, part in zip(order, parts, strict=True):
        frame = frame.join(part.add_suffix(f" {threads}thread"))
    main = values[0] if sheet == "gpu_timeline" else values[1]
    for threads, part in zip(order[1:], parts[1:], strict=True):
        frame[f"{main} diff {threads}thread"] = part[main] - parts[0][main]
        frame[f"{main} ratio {threads}thread"] = part[main] / parts[0][main]
    result: pd.DataFrame = frame.reset_index()
    return result
