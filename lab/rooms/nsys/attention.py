"""Attention's parts in the forward pass: time, FLOPs and bytes per layer."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.rooms.nsys import flops
from lab.rooms.nsys.flops import ModelSpec
from lab.rooms.nsys.measured import MASK, PARTS, SOFTMAX, Recording
from lab.rooms.nsys.steps import sample_sd

PART_COLUMNS = [
    *["part", "ranges", "kernels", "us_per_layer", "sd_us", "matmul_us_per_layer", "matmuls_per_layer"],
    *["flop", "least_bytes", "tflops", "gb_per_s"],
]


def part_table(
    recording: Recording, spec: ModelSpec | None, batch: int | None, context: int, dtype: str
) -> pd.DataFrame:
    """Attention's parts in the forward pass, per layer: all kernels of a range, and its GEMM alone."""
    steps, rows = recording.steps, []
    for part in PARTS:
        ranges = int((recording.ranges["name"] == part).sum())
        if not ranges or not recording.has_kernels:
            continue
        kernels = with_durations(recording.ops[(recording.ops["part"] == part) & recording.ops["kernel"]])
        matmuls = kernels[kernels["class"] == "gemm"]
        per_step_us = (
            kernels.groupby("step")["dur_ns"].sum().reindex(steps).fillna(0) * len(steps) / ranges / 1e3
        )
        row = {
            "part": part,
            "ranges": ranges / max(1, len(steps)),
            "kernels": len(kernels) / ranges,
            "us_per_layer": kernels["dur_ns"].sum() / ranges / 1e3,
            "sd_us": sample_sd(per_step_us.to_numpy()),
            "matmul_us_per_layer": matmuls["dur_ns"].sum() / ranges / 1e3 if len(matmuls) else np.nan,
            "matmuls_per_layer": len(matmuls) / ranges,
        }
        fused = bool((kernels["class"] == "softmax").any())
        rows.append({**row, **_rates(row, spec, batch, context, dtype, fused=fused)})
    table: pd.DataFrame = pd.DataFrame(rows, columns=PART_COLUMNS)
    return table


def _rates(
    row: dict[str, object],
    spec: ModelSpec | None,
    batch: int | None,
    context: int,
    dtype: str,
    *,
    fused: bool,
) -> dict[str, float]:
    """FLOPs and minimum bytes of a part, and the rates achieved; empty without the model's shape."""
    if spec is None or batch is None or row["part"] == MASK:
        return {}
    width = 2 if dtype in ("bf16", "fp16") else 4
    if row["part"] == SOFTMAX:
        flop = flops.softmax_flop(spec, batch, context)
        moved = flops.softmax_bytes(spec, batch, context, fused=fused)
        seconds = float(row["us_per_layer"]) / 1e6  # type: ignore[arg-type]
    else:
        flop = flops.scores_flop(spec, batch, context)
        moved = flops.scores_bytes(spec, batch, context, width)
        seconds = float(row["matmul_us_per_layer"]) / 1e6  # type: ignore[arg-type]
    if not seconds > 0:
        return {"flop": flop, "least_bytes": moved}
    return {
        "flop": flop,
        "least_bytes": moved,
        "tflops": flop / seconds / 1e12,
        "gb_per_s": moved / seconds / 1e9,
    }


def with_durations(ops: pd.DataFrame) -> pd.DataFrame:
    timed: pd.DataFrame = ops.assign(dur_ns=ops["end_ns"] - ops["start_ns"])
    return timed
