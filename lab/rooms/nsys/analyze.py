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
from lab.rooms.nsys.attention import part_table, with_durations
from lab.rooms.nsys.flops import ModelSpec
from lab.rooms.nsys.measured import PHASES, STEP, Recording, class_of
from lab.rooms.nsys.steps import sample_sd, step_figures, summed

MATMUL_CLASSES = ("gemm", "gemv")
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
    wall_ns = found.groupby("step")["own_ns"].sum().reindex(steps).fillna(0).to_numpy()
    row = {"steps": len(steps), "wall_ms": wall_ns.mean() / 1e6, "wall_sd_ms": sample_sd(wall_ns) / 1e6}
    if not recording.has_kernels:  # unknown rather than 0, which would mean an idle GPU
        return row
    ops = of_phase(recording.ops, phase)
    step, kernel = ops["step"].to_numpy(), ops["kernel"].to_numpy(bool)
    start_ns, end_ns = ops["start_ns"].to_numpy(np.int64), ops["end_ns"].to_numpy(np.int64)
    figures = step_figures(start_ns, end_ns, kernel, step, len(steps))
    matmul = np.where(kernel & ops["class"].isin(MATMUL_CLASSES).to_numpy(), step, -1)
    splitk = kernel & (ops["class"] == "splitk_reduce").to_numpy()
    matmuls = summed(np.ones(len(ops), dtype=np.int64), matmul, len(steps))
    matmul_ms = summed(end_ns - start_ns, matmul, len(steps)).mean() / 1e6
    kernel_ms = figures.kernel_ns.mean() / 1e6
    return row | {
        "span_ms": figures.span_ns.mean() / 1e6,
        "busy_ms": figures.busy_ns.mean() / 1e6,
        "kernel_ms": kernel_ms,
        "kernel_sd_ms": sample_sd(figures.kernel_ns) / 1e6,
        "kernels": figures.kernels.mean(),
        "copies_and_fills": figures.others.mean(),
        "same_in_all_steps": figures.same_launches and bool((matmuls == matmuls[:1]).all()),
        "gap_ms": (figures.span_ns - figures.busy_ns).mean() / 1e6,
        "idle_percent": 100 * (1 - figures.busy_ns.mean() / wall_ns.mean()) if wall_ns.mean() else np.nan,
        "matmul_ms": matmul_ms,
        "matmul_percent": 100 * matmul_ms / kernel_ms if kernel_ms else np.nan,
        "matmuls": matmuls.mean(),
        "splitk_reductions": splitk.sum() / len(steps),
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
