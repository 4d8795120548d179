"""What the measured steps of one capture did, as tables: phases, classes of kernels, kernels.

Four times that are never mixed: the sum of kernel times, the time the GPU was busy (union), the span from
the first start to the last end, and the wall time of the range on the host. Warm-up steps are left out;
means and standard deviations are over the measured steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.recordings.names import short_name
from lab.rooms.nsys import flops
from lab.rooms.nsys.attention import part_table, sample_sd, with_durations
from lab.rooms.nsys.flops import ModelSpec
from lab.rooms.nsys.measured import PHASES, STEP, Recording, class_of
from lab.stats.intervals import total, union

PHASE_COLUMNS = [
    *["phase", "steps", "wall_ms", "wall_sd_ms", "span_ms", "busy_ms", "kernel_ms", "kernel_sd_ms"],
    *["kernels", "copies_and_fills", "same_in_all_steps", "gap_ms", "idle_percent"],
    *["matmul_ms", "matmul_percent", "matmuls", "splitk_reductions", "gflop", "matmul_tflops"],
]

CLASS_COLUMNS = ["phase", "class", "ms", "sd_ms", "percent", "launches"]

KERNEL_COLUMNS = [
    "phase",
    "kernel",
    "class",
    "launches",
    "same_in_all_steps",
    "ms",
    "percent",
    "mean_us",
    "name",
]


@dataclass(frozen=True)
class CellTables:
    """The tables of one cell; columns as named at the top of this module."""

    phases: pd.DataFrame
    classes: pd.DataFrame
    kernels: pd.DataFrame
    parts: pd.DataFrame


def tables_of(
    recording: Recording, spec: ModelSpec | None, batch: int | None, context: int, dtype: str
) -> CellTables:
    """All tables of a cell. `dtype` is that of its products; spec and batch may be unknown."""
    return CellTables(
        phases=with_flop(phase_table(recording), spec, batch, context),
        classes=class_table(recording),
        kernels=kernel_table(recording),
        parts=part_table(recording, spec, batch, context, dtype),
    )


def phase_table(recording: Recording) -> pd.DataFrame:
    """A row per phase that the capture has, and one for the whole step; columns PHASE_COLUMNS."""
    rows = []
    for phase in (*PHASES, STEP):
        found = recording.ranges[recording.ranges["name"] == phase]
        if len(found):
            rows.append({"phase": phase, **_phase_row(recording, phase, found)})
    table: pd.DataFrame = pd.DataFrame(rows, columns=PHASE_COLUMNS)
    return table


def with_flop(phases: pd.DataFrame, spec: ModelSpec | None, batch: int | None, context: int) -> pd.DataFrame:
    """The phases with the FLOPs of their matrix products, from the model's shape, and the rate achieved."""
    if spec is None or batch is None or phases.empty:
        return phases
    per_phase = {
        name: flops.phase_flop(spec, batch, context, name) / 1e9 for name in phases["phase"] if name != STEP
    }
    gflop = phases["phase"].map({**per_phase, STEP: sum(per_phase.values())})
    rate: pd.Series = gflop / phases["matmul_ms"].astype(float)
    known: pd.DataFrame = phases.assign(gflop=gflop, matmul_tflops=rate.where(gflop > 0))
    return known


def _phase_row(recording: Recording, phase: str, found: pd.DataFrame) -> dict[str, object]:
    steps = recording.steps
    wall = found.assign(ns=found["end_ns"] - found["start_ns"]).groupby("step")["ns"].sum().reindex(steps)
    row = {"steps": len(steps), "wall_ms": wall.mean() / 1e6, "wall_sd_ms": sample_sd(wall) / 1e6}
    if not recording.has_kernels:  # unknown rather than 0, which would mean an idle GPU
        return row
    ops = of_phase(recording.ops, phase)
    figures = pd.DataFrame([_step_row(ops[ops["step"] == step]) for step in steps], index=steps)
    mean = figures.mean()
    matmul_ms, kernel_ms = mean["matmul_ns"] / 1e6, mean["kernel_ns"] / 1e6
    return row | {
        "span_ms": mean["span_ns"] / 1e6,
        "busy_ms": mean["busy_ns"] / 1e6,
        "kernel_ms": kernel_ms,
        "kernel_sd_ms": sample_sd(figures["kernel_ns"]) / 1e6,
        "kernels": mean["kernels"],
        "copies_and_fills": mean["others"],
        "same_in_all_steps": bool((figures[["kernels", "matmuls"]].nunique() <= 1).all()),
        "gap_ms": (mean["span_ns"] - mean["busy_ns"]) / 1e6,
        "idle_percent": 100 * (1 - mean["busy_ns"] / wall.mean()) if wall.mean() else np.nan,
        "matmul_ms": matmul_ms,
        "matmul_percent": 100 * matmul_ms / kernel_ms if kernel_ms else np.nan,
        "matmuls": mean["matmuls"],
        "splitk_reductions": mean["splitk"],
    }


def _step_row(ops: pd.DataFrame) -> dict[str, float]:
    """The times (ns) and counts of one step's operations."""
    spans = ops[["start_ns", "end_ns"]].to_numpy(np.int64)
    busy = union(spans)
    kernels = ops[ops["kernel"]]
    took = kernels["end_ns"] - kernels["start_ns"]
    matmul = kernels["class"].isin(("gemm", "gemv"))
    return {
        "span_ns": int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0,
        "busy_ns": int(total(busy)),
        "kernel_ns": int(took.sum()),
        "kernels": len(kernels),
        "others": len(ops) - len(kernels),
        "matmul_ns": int(took[matmul].sum()),
        "matmuls": int(matmul.sum()),
        "splitk": int((kernels["class"] == "splitk_reduce").sum()),
    }


def of_phase(ops: pd.DataFrame, phase: str) -> pd.DataFrame:
    """The operations of a phase; all of them for the whole step."""
    found: pd.DataFrame = ops if phase == STEP else ops[ops["phase"] == phase]
    return found


def class_table(recording: Recording) -> pd.DataFrame:
    """Kernel time by class, for each phase and for the whole step; columns CLASS_COLUMNS, costliest first."""
    rows: list[pd.DataFrame] = []
    for phase, kernels, steps in _kernels_by_phase(recording):
        per_step = kernels.groupby(["class", "step"])["dur_ns"].sum().unstack("step").reindex(columns=steps)
        per_step = per_step.fillna(0)
        ms = per_step.mean(axis=1) / 1e6
        rows.append(
            pd.DataFrame(
                {
                    "phase": phase,
                    "class": ms.index,
                    "ms": ms.to_numpy(),
                    "sd_ms": per_step.apply(sample_sd, axis=1).to_numpy() / 1e6,
                    "percent": (100 * ms / ms.sum()).to_numpy(),
                    "launches": (kernels.groupby("class").size().reindex(ms.index) / len(steps)).to_numpy(),
                }
            ).sort_values("ms", ascending=False)
        )
    return _stacked(rows, CLASS_COLUMNS)


def kernel_table(recording: Recording) -> pd.DataFrame:
    """Kernel time by name, for each phase and for the whole step; columns KERNEL_COLUMNS, costliest first."""
    rows: list[pd.DataFrame] = []
    for phase, kernels, steps in _kernels_by_phase(recording):
        groups = kernels.groupby("name")["dur_ns"]
        counts = kernels.groupby(["name", "step"]).size().unstack("step").reindex(columns=steps).fillna(0)
        ms = groups.sum() / len(steps) / 1e6
        names = list(ms.index)
        rows.append(
            pd.DataFrame(
                {
                    "phase": phase,
                    "kernel": [short_name(name) for name in names],
                    "class": [class_of(name) for name in names],
                    "launches": counts.loc[names].mean(axis=1).to_numpy(),
                    "same_in_all_steps": (counts.loc[names].nunique(axis=1) == 1).to_numpy(),
                    "ms": ms.to_numpy(),
                    "percent": (100 * ms / ms.sum()).to_numpy(),
                    "mean_us": groups.mean().to_numpy() / 1e3,
                    "name": names,
                }
            ).sort_values("ms", ascending=False)
        )
    return _stacked(rows, KERNEL_COLUMNS)


def _kernels_by_phase(recording: Recording) -> list[tuple[str, pd.DataFrame, list[int]]]:
    kernels = with_durations(recording.ops[recording.ops["kernel"]]) if len(recording.ops) else recording.ops
    found = [(phase, of_phase(kernels, phase), recording.steps) for phase in (*PHASES, STEP)]
    return [(phase, rows, steps) for phase, rows, steps in found if len(rows)]


def _stacked(rows: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    frame: pd.DataFrame = (
        pd.concat(rows, ignore_index=True)[columns] if rows else pd.DataFrame(columns=columns)
    )
    return frame
