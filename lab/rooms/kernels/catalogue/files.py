"""The catalogue as files: the room's own formats, and those of the original scripts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.core.files import replacing, write_atomic
from lab.report.tables import write_csv
from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.inductor import compiled_kernels
from lab.rooms.kernels.catalogue.launches import GEOMETRY
from lab.rooms.kernels.catalogue.unique import bucketed
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
        write_json_lines(
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


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    with replacing(path) as file:
        for row in rows:
            file.write(msgspec.json.encode(row) + b"\n")
    return path


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
    ops = {(op.rank, op.op_id): op for op in catalogue.ops}
    owners = [ops.get((launch.rank, launch.op_id)) for launch in catalogue.launches]
    table["op"] = [op.name if op else "" for op in owners]
    table["module"] = [op.module_path if op else "" for op in owners]
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
