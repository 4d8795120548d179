"""The sheet of one rank's collectives."""

from __future__ import annotations

import numpy as np

from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.figures import dtype_bytes, sheet
from lab.stats.columns import grouped_rows, objects
from lab.stats.robust import grouped


def coll_analysis(collectives: Table, rank: int) -> Table:
    """One row per kind, size and stream of a rank's collectives; sizes in MiB as in TraceLens."""
    key = {
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
    first_rows, group = grouped_rows(list(key.values()))
    size = dtype_bytes(collectives.dtype[first_rows])
    stats = grouped(collectives.dur_ns / 1000, group, len(first_rows))
    return sheet(
        {
            "rank": np.full(len(first_rows), rank),
            **{name: values[first_rows] for name, values in key.items()},
            **{
                f"{side} msg size (MB)_first": key[f"{side} msg nelems"][first_rows] * size / 2**20
                for side in ("In", "Out")
            },
            **{f"dur_{how}": stats[how] for how in ("sum", "mean", "std", "min", "max")},
            "operation_count": stats["count"],
        }
    )


def splits(table: Table, side: str) -> np.ndarray:
    """The split sizes of one side, `in` or `out`, as text (n,), without the quotes of some profilers."""
    return objects([text.strip('"') for text in getattr(table, f"{side}_split").tolist()])
