"""unique"""

from __future__ import annotations

import pandas as pd

from lab.rooms.kernels.catalogue.launches import GEOMETRY
from lab.rooms.kernels.catalogue.trace_args import summary
from lab.rooms.kernels.schema import (
    UNIQUE_COLUMNS,
    Durations,
    Launch,
    Signatures,
)


def unique_table(found: Signatures, launches: list[Launch]) -> pd.DataFrame:
    """`unique_kernels.csv`: a row a signature, most time first."""
    total_us = sum(one.dur_us.sum for one in found.signatures) or 1.0
    rows = []
    for one in found.signatures:
        streams = sorted({(launches[line].device, launches[line].stream) for line in one.launches})
        rows.append(
            {
                "sig_id": one.sig_id,
                "kernel": one.kernel,
                "class": one.class_,
                "op": one.op,
                "overload": one.overload or "",
                "arg_summary": summary(one.args),
                "phase": one.phase,
                **dict(zip(GEOMETRY[:6], (*one.grid, *one.block), strict=True)),
                "smem_bytes": one.smem_bytes,
                "regs": one.regs,
                "count": one.count,
                "count_per_forward": one.count_per_forward,
                "ranks": ranks_text(one.count_by_rank),
                **{f"dur_{name}_us": getattr(one.dur_us, name) for name in Durations.__struct_fields__},
                "time_share": one.dur_us.sum / total_us,
                "arg_src": one.arg_src,
                "kind": one.kind,
                "bytes": one.bytes,
                "streams": " ".join(f"{device}:{stream}" for device, stream in streams),
                "module": next(iter(one.modules), ""),
                "modules": len(one.modules),
                "name": one.name,
            }
        )
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(UNIQUE_COLUMNS))
    return table


def ranks_text(counts: dict[int, int]) -> str:
    """`0 1` where every rank has as many, else `0:96 1:95`."""
    even = len(set(counts.values())) == 1
    return " ".join(str(rank) if even else f"{rank}:{count}" for rank, count in counts.items())


def bucketed(unique: pd.DataFrame) -> pd.DataFrame:
    """The table without arguments, geometry and bytes in the key: a cache that grows by a token a step fits one row.

    Durations: sum, least and greatest are exact; the percentiles of a bucket are not known from its rows and left out.
    """
    keys = ["kernel", "class", "op", "overload", "phase", "kind"]
    groups = unique.groupby(keys, sort=False, dropna=False)
    found = groups.agg(
        signatures=("sig_id", "size"),
        count=("count", "sum"),
        count_per_forward=("count_per_forward", "sum"),
        dur_sum_us=("dur_sum_us", "sum"),
        dur_min_us=("dur_min_us", "min"),
        dur_max_us=("dur_max_us", "max"),
        time_share=("time_share", "sum"),
        arg_summary=("arg_summary", "first"),
    ).reset_index()
    table: pd.DataFrame = found.sort_values("dur_sum_us", ascending=False, kind="stable", ignore_index=True)
    return table
