"""Distinct launches as a table, with and without arguments in the key."""

from __future__ import annotations

from typing import Any

import pandas as pd

from lab.rooms.kernels.catalogue.launches import GEOMETRY
from lab.rooms.kernels.catalogue.trace_args import summary
from lab.rooms.kernels.schema import UNIQUE_COLUMNS, Durations, Launch, Signature, Signatures


def unique_table(signatures: Signatures, launches: list[Launch]) -> pd.DataFrame:
    """`unique_kernels.csv`: one row per signature, most time first; `bound` is the catalogue's."""
    total_us = sum(signature.dur_us.sum for signature in signatures.signatures) or 1.0
    rows = [_row(signature, launches, total_us) for signature in signatures.signatures]
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(UNIQUE_COLUMNS))
    return table


def _row(signature: Signature, launches: list[Launch], total_us: float) -> dict[str, Any]:
    streams = sorted({(launches[line].device, launches[line].stream) for line in signature.launches})
    same = ("sig_id", "kernel", "op", "phase", "smem_bytes", "regs", "count", "count_per_forward")
    return {
        **{name: getattr(signature, name) for name in (*same, "arg_src", "kind", "bytes", "name")},
        **{
            name: getattr(signature, name)
            for name in ("op_rule", "layer_rule", "confidence", "layers", "kernel_hash")
        },
        "class": signature.class_,
        "overload": signature.overload or "",
        "arg_summary": summary(signature.args),
        **dict(zip(GEOMETRY[:6], (*signature.grid, *signature.block), strict=True)),
        "ranks": ranks_text(signature.count_by_rank),
        **{f"dur_{name}_us": getattr(signature.dur_us, name) for name in Durations.__struct_fields__},
        "time_share": signature.dur_us.sum / total_us,
        "streams": " ".join(f"{device}:{stream}" for device, stream in streams),
        "module": next(iter(signature.modules), ""),
        "modules": len(signature.modules),
    }


def ranks_text(counts: dict[int, int]) -> str:
    """`0 1` if all ranks have the same count, otherwise `0:96 1:95`."""
    even = len(set(counts.values())) == 1
    return " ".join(str(rank) if even else f"{rank}:{count}" for rank, count in counts.items())


def bucketed(unique: pd.DataFrame) -> pd.DataFrame:
    """The table without arguments, geometry and bytes in the key: a cache that grows with every token is one
    row.

    Sum, minimum and maximum of the durations are exact; percentiles cannot be derived and are left out.
    """
    keys = ["kernel", "class", "op", "overload", "phase", "kind"]
    groups = unique.groupby(keys, sort=False, dropna=False)
    buckets = groups.agg(
        signatures=("sig_id", "size"),
        count=("count", "sum"),
        count_per_forward=("count_per_forward", "sum"),
        dur_sum_us=("dur_sum_us", "sum"),
        dur_min_us=("dur_min_us", "min"),
        dur_max_us=("dur_max_us", "max"),
        time_share=("time_share", "sum"),
        arg_summary=("arg_summary", "first"),
        bound=("bound", "first"),
    ).reset_index()
    table: pd.DataFrame = buckets.sort_values("dur_sum_us", ascending=False, kind="stable", ignore_index=True)
    return table
