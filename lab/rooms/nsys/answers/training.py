"""Question d: matrix products in inference and in training."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lab.core.words import plural
from lab.rooms.nsys.analyze import MATMUL_CLASSES
from lab.rooms.nsys.answers.answer import (
    OPEN,
    Answer,
    CellData,
    Check,
    check,
    interval_values,
    kernel_ns_by_step,
    no_answer,
)
from lab.rooms.nsys.answers.checks import every_kernel_has_a_phase, gemm_counts
from lab.rooms.nsys.measured import PHASES, STEP


def part_d(cell: CellData, siblings: Sequence[CellData]) -> Answer:
    """The share of matrix products in inference, in each phase of training, and over the whole step."""
    step = cell.phase(STEP)
    if cell.phase("optimizer_step") is None:
        return no_answer("d", cell, "the capture has no range `optimizer_step`, so it is not of training")
    phases = {name: row for name in PHASES if (row := cell.phase(name)) is not None}
    if step is None or not step.kernels > 0 or "forward" not in phases:
        return no_answer("d", cell, "no kernels in the step's phases")
    forwards = [sibling.phase("forward") for sibling in siblings if sibling.files.cell.type == "forward"]
    inference = next((row for row in forwards if row is not None and row.kernels > 0), None)
    values: dict[str, float | str] = {
        f"{name}_matmul_percent": row.matmul_percent for name, row in phases.items()
    }
    values |= {f"{name}_ms": row.kernel_ms for name, row in phases.items()}
    values |= {"step_matmul_percent": step.matmul_percent, "step_ms": step.kernel_ms}
    step_ns = kernel_ns_by_step(cell, [], lambda ops: ops["class"] != "")
    products_ns = kernel_ns_by_step(cell, [], lambda ops: ops["class"].isin(MATMUL_CLASSES))
    values |= interval_values("step", "ms", step_ns / 1e6)
    if step_ns.all():
        values |= interval_values("step_matmul", "percent", 100 * products_ns / step_ns)
    reference, kind = phases["forward"], "training's own forward (inference was not recorded)"
    if inference is not None:
        values["inference_matmul_percent"] = inference.matmul_percent
        reference, kind = inference, "inference"
    shares = ", ".join(f"{name} {_share(row)} of {row.kernel_ms:.2f} ms" for name, row in phases.items())
    sentence = (
        f"Matrix products take {reference.matmul_percent:.1f} % of {kind} and {step.matmul_percent:.1f} % "
        f"of a whole training step's kernel time ({shares}). {_kernels_of_other_threads(cell)}"
    )
    return Answer("d", cell.label, sentence.strip(), values, _checks(cell, step, phases, inference))


def _share(row: pd.Series) -> str:
    return f"{row.matmul_percent:.1f} %" if row.kernels > 0 else "no kernels"


def _kernels_of_other_threads(cell: CellData) -> str:
    """Operations without a phase under nsys' own rule: those attributed across threads."""
    assert cell.recording is not None
    count, ms = cell.recording.coverage.get("cross", (0, 0.0))
    num_steps = len(cell.recording.steps)
    if not count:
        return ""
    return (
        f"By the launching thread alone, {plural(round(count / num_steps), 'operation')} per step "
        f"({ms / num_steps:.1f} ms) would have no phase."
    )


def _checks(
    cell: CellData, step: pd.Series, phases: dict[str, pd.Series], inference: pd.Series | None
) -> tuple[Check, ...]:
    summed_ms = sum(row.kernel_ms for row in phases.values())
    passed = abs(summed_ms - step.kernel_ms) <= 1e-3 * step.kernel_ms
    adds_up = check("phases add up to the step", passed, f"{step.kernel_ms:.4f} ms", f"{summed_ms:.4f} ms")
    name, forward = "forward multiplies as often as inference", phases["forward"].matmuls
    if inference is None:
        as_often = Check(name, OPEN, "a forward capture", "none")
    else:
        as_often = check(name, forward == inference.matmuls, f"{inference.matmuls:g}", f"{forward:g}")
    return (adds_up, every_kernel_has_a_phase(cell), *gemm_counts(cell), as_often)
