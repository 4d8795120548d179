"""Distinct launches with their counts, durations and modules."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pandas as pd

from lab.recordings.names import short_name
from lab.rooms.kernels.catalogue.ops import GEOMETRY, OpBook
from lab.rooms.kernels.catalogue.rank import RankData
from lab.rooms.kernels.catalogue.trace_args import summary
from lab.rooms.kernels.schema import UNIQUE_COLUMNS, Durations, Launch, OpRecord, Signature, Signatures


def signatures_of(
    ranks: list[RankData], books: list[OpBook], launches: list[Launch], modules: list[str]
) -> Signatures:
    """Every distinct launch of all ranks, most time first. books: of the ranks; launches: in their order."""
    forwards = count_forwards(ranks)
    groups: dict[str, list[int]] = defaultdict(list)
    for line, launch in enumerate(launches):
        groups[launch.sig_id].append(line)
    by_rank = {book.rank.rank: book for book in books}
    signatures = [_signature(lines, launches, modules, by_rank, forwards) for lines in groups.values()]
    signatures.sort(key=lambda signature: (-signature.dur_us.sum, signature.sig_id))
    meta = ranks[0].trace.meta
    return Signatures(
        ranks=[rank.rank for rank in ranks],
        device="gpu" if any(rank.on_gpu for rank in ranks) else "cpu",
        gpu=meta.devices[0] if meta.devices else "",
        num_sms=meta.num_sms[0] if meta.num_sms else 0,
        forwards=forwards,
        signatures=signatures,
    )


def count_forwards(ranks: list[RankData]) -> dict[str, int]:
    """Forwards per phase and rank as the traces hold them; the maximum if ranks differ."""
    counts: Counter[str] = Counter()
    for rank in ranks:
        for phase, count in Counter(rank.marks.phases).items():
            counts[phase] = max(counts[phase], count)
    return dict(counts)


def modules_of(books: list[OpBook], launches: list[Launch]) -> list[str]:
    """The module path of each launch (n,)."""
    modules: list[str] = []
    for book in books:
        launches_of_rank = launches[len(modules) : len(modules) + len(book.rank.rows)]
        modules += book.modules_of([launch.op_id for launch in launches_of_rank])
    return modules


def _signature(
    lines: list[int],
    launches: list[Launch],
    module_of: list[str],
    books: dict[int, OpBook],
    forwards: dict[str, int],
) -> Signature:
    """The signature of the launches at `lines`, which are all the same."""
    example = launches[lines[0]]
    record = books[example.rank].describe(example.op_id) if example.op_id >= 0 else None
    by_rank = Counter([launches[line].rank for line in lines])
    modules = Counter([module_of[line] for line in lines])
    runs = forwards.get(example.phase, 0) or sum(forwards.values()) or 1
    return Signature(
        sig_id=example.sig_id,
        kernel=short_name(example.name),
        name=example.name,
        class_=example.class_,
        kind=example.kind,
        grid=example.grid,
        block=example.block,
        smem_bytes=example.smem_bytes,
        regs=example.regs,
        bytes=example.bytes,
        op=record.name if record else "",
        overload=record.overload if record else None,
        args=record.args if record else [],
        arg_src=_source(record),
        phase=example.phase,
        count=len(lines),
        count_per_forward=len(lines) / len(by_rank) / runs,
        count_by_rank=dict(sorted(by_rank.items())),
        modules={path: n for path, n in modules.most_common() if path},
        dur_us=spread(np.array([launches[line].own_us for line in lines])),
        launches=lines,
        op_rule=example.op_rule,
        layer_rule=example.layer_rule,
        confidence=example.confidence,
        kernel_hash=example.kernel_hash,
        layers=len({launches[line].layer for line in lines} - {""}),
    )


def _source(record: OpRecord | None) -> str:
    if record is None:
        return ""
    return "recorder" if record.recorded >= 0 else "trace" if record.args else "none"


def spread(dur_us: np.ndarray) -> Durations:
    """Sum, extremes and percentiles of durations (n,)."""
    p10, median, p90, p95 = np.percentile(dur_us, [10, 50, 90, 95]).tolist()
    return Durations(
        sum=float(dur_us.sum()),
        min=float(dur_us.min()),
        p10=p10,
        median=median,
        p90=p90,
        p95=p95,
        max=float(dur_us.max()),
    )


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
