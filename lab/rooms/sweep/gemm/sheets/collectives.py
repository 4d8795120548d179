"""The sheet of one rank's collectives."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.figures import dtype_bytes, objects


def coll_analysis(collectives: Table, rank: int) -> pd.DataFrame:
    """One row per kind, size and stream of a rank's collectives; sizes in MiB as in TraceLens."""
    frame = pd.DataFrame(
        {
            "rank": rank,
            "Process Group Name": collectives.pg_name,
            "Process Group Ranks": collectives.pg_ranks,
            "Collective name": collectives.collective,
            "Group size": collectives.group_size,
            "dtype": collectives.dtype,
            "In msg nelems": collectives.in_nelems,
            "Out msg nelems": collectives.out_nelems,
            **{f"{side} split size": splits(collectives, side.lower()) for side in ("In", "Out")},
            "stream": collectives.stream,
        }
    )
    key = list(frame)
    size = dtype_bytes(frame["dtype"])
    for side in ("In", "Out"):
        frame[f"{side} msg size (MB)_first"] = frame[f"{side} msg nelems"] * size / 2**20
    frame["dur"] = collectives.dur_ns / 1000
    aggregates = {
        f"{side} msg size (MB)_first": (f"{side} msg size (MB)_first", "first") for side in ("In", "Out")
    }
    aggregates |= {f"dur_{how}": ("dur", how) for how in ("sum", "mean", "std", "min", "max")}
    result: pd.DataFrame = (
        frame.groupby(key, sort=True).agg(**aggregates, operation_count=("dur", "size")).reset_index()
    )
    return result


def splits(table: Table, side: str) -> np.ndarray:
    """The split sizes of one side, `in` or `out`, as text (n,), without the quotes of some profilers."""
    return objects([text.strip('"') for text in getattr(table, f"{side}_split").tolist()])
