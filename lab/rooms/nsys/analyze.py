"""What the measured steps of one capture did, as tables: phases, classes of kernels, kernels, attention.

Four times that are never mixed: the sum of kernel times, the time the GPU was busy (union), the span from
the first start to the last end, and the wall time of the range on the host. Warm-up steps are left out;
means and standard deviations are over the measured steps.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pandas as pd

from lab.recordings.names import short_name
from lab.rooms.nsys import flops
from lab.rooms.nsys.captures.phases import sample_sd
from lab.rooms.nsys.flops import ModelSpec
from lab.rooms.nsys.layout import CellData
from lab.rooms.nsys.recording import MASK, PARTS, PHASES, SOFTMAX, STEP, Recording

MATMUL_CLASSES = ("gemm", "gemv")
PHASE_COLUMNS = [
    *["phase", "steps", "wall_ms", "wall_sd_ms", "span_ms", "busy_ms", "kernel_ms", "kernel_sd_ms"],
    *["kernels", "copies_and_fills", "same_in_all_steps", "gap_ms", "idle_percent"],
    *["matmul_ms", "matmul_percent", "matmuls", "splitk_reductions", "gflop", "matmul_tflops"],
]
CLASS_COLUMNS = ["phase", "class", "ms", "sd_ms", "percent", "launches"]
KERNEL_COLUMNS = [
    *["phase", "kernel", "class", "launches", "same_in_all_steps", "ms", "percent", "mean_us", "name"],
]
PART_COLUMNS = [
    *["part", "ranges", "kernels", "us_per_layer", "sd_us", "matmul_us_per_layer", "matmuls_per_layer"],
    *["flop", "least_bytes", "tflops", "gb_per_s"],
]


def with_tables(cell: CellData, recording: Recording) -> CellData:
    """The cell with a recording of it, and its tables by the name of their CSV."""
    tables = {
        "phases": _with_flop(phase_table(recording), cell),
        "classes": _share_table(recording, "class", CLASS_COLUMNS),
        "kernels": _share_table(recording, "name", KERNEL_COLUMNS),
        "attention": _part_table(recording, cell),
    }
    return msgspec.structs.replace(cell, recording=recording, tables=tables)


def phase_table(recording: Recording) -> pd.DataFrame:
    """A row per phase that the capture has, and one for the whole step; columns PHASE_COLUMNS."""
    rows = []
    for phase in (*PHASES, STEP):
        ranges = recording.ranges[recording.ranges["name"] == phase]
        if len(ranges):
            rows.append({"phase": phase, **_phase_row(recording, phase, ranges)})
    table: pd.DataFrame = pd.DataFrame(rows, columns=PHASE_COLUMNS)
    return table


def _with_flop(phases: pd.DataFrame, cell: CellData) -> pd.DataFrame:
    """The phases with the FLOPs of their matrix products, from the model's shape, and the rate achieved."""
    if cell.spec is None or phases.empty:
        return phases
    shape = cell.spec, cell.batch, cell.context
    per_phase = {name: flops.phase_flop(*shape, name) / 1e9 for name in phases["phase"] if name != STEP}
    gflop = phases["phase"].map({**per_phase, STEP: sum(per_phase.values())})
    rate = gflop / phases["matmul_ms"].astype(float)
    table: pd.DataFrame = phases.assign(gflop=gflop, matmul_tflops=rate.where(gflop > 0))
    return table


def _phase_row(recording: Recording, phase: str, ranges: pd.DataFrame) -> dict[str, object]:
    num_steps = len(recording.steps)
    wall_ns = recording.by_step(ranges, "own_ns")
    row = {"steps": num_steps, "wall_ms": wall_ns.mean() / 1e6, "wall_sd_ms": sample_sd(wall_ns) / 1e6}
    if not recording.has_kernels:  # unknown rather than 0, which would mean an idle GPU
        return row
    figures, kernels = recording.figures[phase], of_phase(recording.kernels, phase)
    products = kernels[kernels["class"].isin(MATMUL_CLASSES)]
    matmul_ms = recording.by_step(products, "dur_ns").mean() / 1e6
    launches, matmuls = figures["num_kernels"], recording.by_step(products, "kernel")
    busy_ns, span_ns, kernel_ns = (figures[name] for name in ("busy_ns", "span_ns", "kernel_ns"))
    return row | {
        "span_ms": span_ns.mean() / 1e6,
        "busy_ms": busy_ns.mean() / 1e6,
        "kernel_ms": kernel_ns.mean() / 1e6,
        "kernel_sd_ms": sample_sd(kernel_ns) / 1e6,
        "kernels": launches.mean(),
        "copies_and_fills": (figures["num_ops"] - launches).mean(),
        "same_in_all_steps": bool((launches == launches[0]).all() and (matmuls == matmuls[0]).all()),
        "gap_ms": (span_ns - busy_ns).mean() / 1e6,
        "idle_percent": 100 * (1 - busy_ns.mean() / wall_ns.mean()) if wall_ns.any() else np.nan,
        "matmul_ms": matmul_ms,
        "matmul_percent": 100 * matmul_ms / (kernel_ns.mean() / 1e6) if kernel_ns.any() else np.nan,
        "matmuls": matmuls.mean(),
        "splitk_reductions": (kernels["class"] == "splitk_reduce").sum() / num_steps,
    }


def of_phase(ops: pd.DataFrame, phase: str) -> pd.DataFrame:
    """The operations of a phase; all of them for the whole step."""
    return ops if phase == STEP else ops[ops["phase"] == phase]


def _share_table(recording: Recording, key: str, columns: list[str]) -> pd.DataFrame:
    """Kernel time by `key` (class or name), for each phase and for the whole step, costliest first."""
    tables = []
    for phase in (*PHASES, STEP):
        kernels = of_phase(recording.kernels, phase)
        if kernels.empty:
            continue
        grouped = kernels.groupby([key, "step"])["dur_ns"]
        ns, counts = (
            figure.unstack("step").reindex(columns=recording.steps).fillna(0)
            for figure in (grouped.sum(), grouped.size())
        )
        ms = ns.mean(axis=1) / 1e6
        rows = pd.DataFrame(
            {
                "phase": phase,
                "ms": ms,
                "sd_ms": ns.apply(sample_sd, axis=1) / 1e6,
                "percent": 100 * ms / ms.sum(),
                "launches": counts.mean(axis=1),
                "same_in_all_steps": counts.nunique(axis=1) == 1,
                "mean_us": ns.sum(axis=1) / counts.sum(axis=1) / 1e3,
            }
        )
        tables.append(rows.rename_axis(key).reset_index().sort_values("ms", ascending=False))
    joined = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)
    if key == "name":
        joined["kernel"] = [short_name(name) for name in joined["name"]]
        # Launches of one name by different ops may differ in class: that of the most time stands for it.
        time_ns = recording.kernels.groupby(["name", "class"])["dur_ns"].sum().sort_values()
        joined["class"] = joined["name"].map(time_ns.reset_index().groupby("name")["class"].last())
    table: pd.DataFrame = joined[columns]
    return table


def _part_table(recording: Recording, cell: CellData) -> pd.DataFrame:
    """Attention's parts in the forward pass, per layer: all kernels of a range, and its GEMM alone."""
    num_steps, rows = len(recording.steps), []
    for part in PARTS:
        ranges = int((recording.ranges["name"] == part).sum())
        if not ranges or not recording.has_kernels:
            continue
        kernels = recording.kernels[recording.kernels["part"] == part]
        matmuls = kernels[kernels["class"] == "gemm"]
        per_step_ns = recording.by_step(kernels, "dur_ns")
        row = {
            "part": part,
            "ranges": ranges / num_steps,
            "kernels": len(kernels) / ranges,
            "us_per_layer": kernels["dur_ns"].sum() / ranges / 1e3,
            "sd_us": sample_sd(per_step_ns * num_steps / ranges / 1e3),
            "matmul_us_per_layer": matmuls["dur_ns"].sum() / ranges / 1e3 if len(matmuls) else np.nan,
            "matmuls_per_layer": len(matmuls) / ranges,
        }
        if cell.spec is not None and part != MASK:
            fused = bool((kernels["class"] == "softmax").any())
            row |= _rates(row, (cell.spec, cell.batch, cell.context), cell.dtype, fused=fused)
        rows.append(row)
    table: pd.DataFrame = pd.DataFrame(rows, columns=PART_COLUMNS)
    return table


def _rates(
    row: dict[str, Any], shape: tuple[ModelSpec, int, int], dtype: str, *, fused: bool
) -> dict[str, float]:
    """FLOPs and minimum bytes of a part, and the rates achieved."""
    if row["part"] == SOFTMAX:
        flop, moved = flops.softmax_flop(*shape), flops.softmax_bytes(*shape, fused=fused)
        seconds = row["us_per_layer"] / 1e6
    else:
        flop, moved = flops.scores_flop(*shape), flops.scores_bytes(*shape, flops.width(dtype))
        seconds = row["matmul_us_per_layer"] / 1e6
    rates: dict[str, float] = {"flop": flop, "least_bytes": moved}
    if seconds > 0:
        rates |= {"tflops": flop / seconds / 1e12, "gb_per_s": moved / seconds / 1e9}
    return rates
