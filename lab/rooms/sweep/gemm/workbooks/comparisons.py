"""Workbooks that put the thread counts of one channel count and rank side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lab.report.excel import write_workbook
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.reading.rank import RankTables

if TYPE_CHECKING:
    import pandas as pd


def write_comparisons(data: SweepData, out: Path) -> list[Path]:
    """Per channel count and rank, the timelines and op times of all thread counts side by side."""
    by_channel: dict[tuple[str, int], dict[int, RankTables]] = {}
    for key, ranks in sorted(data.ranks.items(), reverse=True):
        setting = "_".join(filter(None, (f"{key.channel}ch", key.algorithm, key.protocol)))
        for rank, rank_tables in ranks.items():
            # The first repeat comes last, so it is kept.
            by_channel.setdefault((setting, rank), {})[key.threads] = rank_tables
    return [
        write_workbook(
            comparison(by_threads),
            out / "comparisons" / f"compare_{setting}_rank{rank}_across_threads.xlsx",
        )
        for (setting, rank), by_threads in by_channel.items()
        if len(by_threads) > 1
    ]


def comparison(by_threads: Mapping[int, RankTables]) -> dict[str, pd.DataFrame]:
    """Sheets gpu_timeline and ops_summary, one set of columns per thread count, then the changes.

    diff is new minus first, ratio new over first; the first is the lowest thread count.
    """
    keys = {"gpu_timeline": ("type", ["time ms", "percent"])}
    figures = ["Count", "total_direct_kernel_time_ms", "total_subtree_kernel_time_ms"]
    keys["ops_summary"] = ("name", figures)
    return {sheet: _beside(by_threads, sheet, key, values) for sheet, (key, values) in keys.items()}


def _beside(by_threads: Mapping[int, RankTables], sheet: str, key: str, values: list[str]) -> pd.DataFrame:
    import pandas as pd

    order = sorted(by_threads)
    parts = [
        pd.DataFrame(by_threads[threads].sheets[sheet].as_dict()).set_index(key)[values] for threads in order
    ]
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
