"""The catalogue as files: the room's own formats, and those of the original scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.recordings.compiled import InductorKernel, fused_ops, is_inductor, name_of_category
from lab.report.tables import write_csv
from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.ops import GEOMETRY
from lab.rooms.kernels.catalogue.signatures import bucketed
from lab.rooms.kernels.schema import LAUNCHES, OPS, SIGNATURES, TABLES, UNIQUE, Launch, Signature
from lab.rooms.kernels.trails import write_lines

PARAMS = "kernel_launch_params.csv"
COUNTS = "kernel_counts.csv"
SEED_UNIQUE = "unique_kernels.jsonl"
BUCKETS = "unique_bucketed.csv"
COMPILED = "compiled_kernels.csv"
# Threads per warp on NVIDIA, per wavefront on AMD's compute GPUs.
WARP = {"nvidia": 32, "amd": 64, "none": 32}


def write_unique(catalogue: Catalogue, out: Path) -> list[Path]:
    """Distinct launches: the room's CSV and JSON, the bucketed view, and the original's JSONL."""
    tables = out / TABLES
    write_atomic(tables / SIGNATURES, msgspec.json.encode(catalogue.signatures))
    compiled = compiled_kernels(catalogue).assign(**catalogue.marks)
    return [
        *([write_csv(compiled, tables / COMPILED)] if len(compiled) else []),
        write_csv(catalogue.unique, tables / UNIQUE),
        tables / SIGNATURES,
        write_csv(bucketed(catalogue.unique), tables / BUCKETS),
        write_lines(
            tables / SEED_UNIQUE,
            (_seed_unique(signature) | catalogue.marks for signature in catalogue.signatures.signatures),
        ),
    ]


def write_launches(catalogue: Catalogue, out: Path) -> list[Path]:
    """Every launch and the ops that own them, and the original's CSV files of parameters and counts."""
    tables = out / TABLES
    return [
        write_lines(tables / LAUNCHES, catalogue.launches),
        write_lines(tables / OPS, catalogue.ops),
        write_csv(launch_params(catalogue).assign(**catalogue.marks), tables / PARAMS),
        write_csv(kernel_counts(catalogue.launches).assign(**catalogue.marks), tables / COUNTS),
    ]


def _seed_unique(signature: Signature) -> dict[str, Any]:
    """The fields of the original's unique_kernels.jsonl, with the sum of durations that it lacks."""
    fields: dict[str, Any] = {"name": signature.name}
    if signature.kind == "kernel":
        fields |= {"grid": signature.grid, "block": signature.block, "shared memory": signature.smem_bytes}
    elif signature.bytes >= 0:
        fields |= {"bytes": signature.bytes}
    return {
        "name": signature.name,
        "signature": fields,
        "args": signature.args,
        "count": signature.count,
        "dur_sum_us": signature.dur_us.sum,
        "category": signature.class_,
        "sig_id": signature.sig_id,
    }


def launch_params(catalogue: Catalogue) -> pd.DataFrame:
    """One row per launch, columns as in the original; blocks and warps per SM from the geometry."""
    metas = {rank.rank: rank.trace.meta for rank in catalogue.ranks}
    table: pd.DataFrame = pd.DataFrame([_params(launch, metas[launch.rank]) for launch in catalogue.launches])
    table["op"], table["module"] = catalogue.op_names, catalogue.modules
    return table


def _params(launch: Launch, meta: Any) -> dict[str, Any]:
    sms = meta.num_sms[min(max(launch.device, 0), len(meta.num_sms) - 1)] if meta.num_sms else 0
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2] if launch.grid[0] > 0 else None
    threads = launch.block[0] * launch.block[1] * launch.block[2] if launch.block[0] > 0 else None
    per_sm = blocks / sms if blocks is not None and sms else None
    warps = per_sm * -(-threads // WARP[meta.vendor]) if per_sm is not None and threads is not None else None
    return {
        "name": launch.name,
        "rank": launch.rank,
        "device": launch.device,
        "stream": launch.stream,
        **dict(zip(GEOMETRY[:6], map(_known, (*launch.grid, *launch.block)), strict=True)),
        "shared_memory": _known(launch.smem_bytes),
        "registers_per_thread": _known(launch.regs),
        "blocks_per_sm": per_sm,
        "warps_per_sm": warps,
        "correlation": _known(launch.correlation),
        "bytes": _known(launch.bytes),
        "collective_name": launch.coll,
        "ts_us": launch.ts_us,
        "dur_us": launch.dur_us,
        "wait_us": launch.wait_us,
        "category": launch.class_,
        "op_id": _known(launch.op_id),
        "phase": launch.phase,
        "forward": _known(launch.forward),
        "sig_id": launch.sig_id,
        "op_rule": launch.op_rule,
        "layer_rule": launch.layer_rule,
        "layer": launch.layer,
        "confidence": launch.confidence,
    }


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def kernel_counts(launches: list[Launch]) -> pd.DataFrame:
    """device, category, kernel_name, count, dur_sum_us: launches only, no runtime calls."""
    frame = pd.DataFrame(
        {
            "device": [launch.device for launch in launches],
            "category": [launch.kind for launch in launches],
            "kernel_name": [launch.name for launch in launches],
            "dur_us": [launch.dur_us for launch in launches],
        }
    )
    groups = frame.groupby(["device", "category", "kernel_name"], sort=False)["dur_us"]
    counted = groups.agg(count="size", dur_sum_us="sum").reset_index()
    table: pd.DataFrame = counted.sort_values("count", ascending=False, kind="stable", ignore_index=True)
    return table


_COMPILED_COLUMNS = """
    kernel kernel_hash category count dur_sum_us time_share fused_ops ops_rule
    source source_rule module block_sizes num_warps num_stages
"""


def compiled_kernels(catalogue: Catalogue) -> pd.DataFrame:
    """`compiled_kernels.csv`: one row per kernel of Inductor, most time first; empty if there are none."""
    total_us = sum(launch.dur_us for launch in catalogue.launches) or 1.0
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    start = 0
    for index, rank in enumerate(catalogue.ranks):
        lines = range(start, start + len(rank.rows))
        for line in lines if rank.compiled is not None else ():
            launch = catalogue.launches[line]
            if launch.kind == "kernel" and is_inductor(launch.name):
                groups.setdefault((launch.name, launch.kernel_hash), []).append((index, line))
        start = lines.stop
    rows = [_compiled_row(catalogue, key, members, total_us) for key, members in groups.items()]
    rows.sort(key=lambda row: (-row["dur_sum_us"], row["kernel"]))
    table: pd.DataFrame = pd.DataFrame(rows, columns=_COMPILED_COLUMNS.split())
    return table


def _compiled_row(
    catalogue: Catalogue,
    key: tuple[str, str],
    members: list[tuple[int, int]],
    total_us: float,
) -> dict[str, Any]:
    name, hash_ = key
    rank = catalogue.ranks[members[0][0]]
    compiled = rank.compiled
    assert compiled is not None
    launches = [catalogue.launches[line] for _, line in members]
    origin = compiled.provenance.of(name, hash_)
    by_name = fused_ops(name, compiled.op_names)
    lines = origin.lines if origin else ()
    places = ((catalogue.ranks[index].compiled, catalogue.launches[line].row) for index, line in members)
    generated = _by_count(of_rank.lines[row] for of_rank, row in places if of_rank is not None)
    kernel = compiled.kernels.get(hash_, InductorKernel(name))
    dur_us = sum(launch.dur_us for launch in launches)
    return {
        "kernel": name,
        "kernel_hash": hash_,
        "category": name_of_category(name),
        "count": len(launches),
        "dur_sum_us": dur_us,
        "time_share": dur_us / total_us,
        "fused_ops": " ".join(origin.ops if origin else by_name),
        "ops_rule": origin.rule if origin else "name" if by_name else "none",
        "source": "; ".join(lines) or _first(generated),
        "source_rule": origin.rule if origin and lines else "stack" if generated else "none",
        "module": _first(_by_count(catalogue.modules[line] for _, line in members)),
        "block_sizes": kernel.kwargs,
        "num_warps": kernel.num_warps if kernel.num_warps >= 0 else None,
        "num_stages": kernel.num_stages if kernel.num_stages >= 0 else None,
    }


def _by_count(texts: Iterable[str]) -> list[str]:
    return [text for text, _ in Counter(filter(None, map(str, texts))).most_common()]


def _first(texts: list[str]) -> str:
    """The most frequent text, and how many others there are."""
    further = f" (+{len(texts) - 1} more)" if len(texts) > 1 else ""
    return texts[0] + further if texts else ""


def compiled_sentences(table: pd.DataFrame) -> list[str]:
    """One sentence on how much of Inductor's kernels is explained; none without such kernels."""
    if not len(table):
        return []
    share = table["time_share"].sum()
    rules = Counter(table["ops_rule"])
    unplaced = int((table["source_rule"] == "none").sum())
    explained = ", ".join(f"{n} by {rule}" for rule, n in rules.most_common() if rule != "none")
    lost = f", {plural(rules['none'], 'kernel')} with no op known" if rules["none"] else ""
    without_line = (
        f"; no line of the model known for {plural(unplaced, 'kernel')} (TORCH_COMPILE_DEBUG=1 writes it: "
        "give that folder with --inductor)"
        if unplaced
        else ""
    )
    kernels = plural(len(table), "Inductor kernel")
    return [f"{kernels} ({share:.1%} of the time): fused ops {explained or 'unknown'}{lost}{without_line}"]
