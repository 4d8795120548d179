"""Self-checks that several questions share."""

from __future__ import annotations

import statistics

import pandas as pd

from lab.rooms.nsys.analyze import of_phase
from lab.rooms.nsys.answers.answer import OPEN, CellData, Check, check

AGREE = 0.05  # relative difference below which two clocks agree


def times_nest(cell: CellData) -> tuple[Check, ...]:
    """busy <= span <= wall: every phase ends with a synchronisation inside its range."""
    name, row = "busy <= span <= wall", cell.phase("forward")
    if row is None or not cell.has_kernels:
        return (Check(name, OPEN, "kernels", "none"),)
    passed = row.busy_ms <= row.span_ms * (1 + 1e-9) and row.span_ms <= row.wall_ms * (1 + 1e-3)
    times = f"{row.busy_ms:.3f} <= {row.span_ms:.3f} <= {row.wall_ms:.3f} ms"
    return (check(name, passed, "in this order", times),)


def clocks_agree(cell: CellData) -> Check:
    """Python's clock around each `forward` against the range itself.

    The median over the steps, so that one interrupted step does not decide.
    """
    name = "Python's clock around the range agrees with it"
    result, walls_ms = cell.files.result, _walls_ms(cell)
    python_ms = [step["forward_ms"] for step in result.steps if "forward_ms" in step] if result else []
    if not python_ms or len(python_ms) != len(walls_ms):
        return Check(name, OPEN, "one time in cell.json per step", f"{len(python_ms)} and {len(walls_ms)}")
    range_ms = statistics.median(walls_ms)
    excess_ms = statistics.median(clock - wall for clock, wall in zip(python_ms, walls_ms, strict=True))
    passed = -0.02 * range_ms <= excess_ms <= AGREE * range_ms + 0.2
    return check(name, passed, f"{range_ms:.3f} ms", f"{range_ms + excess_ms:.3f} ms")


def _walls_ms(cell: CellData) -> list[float]:
    """Wall ms of `forward` in each step, in order."""
    if cell.recording is None:
        return []
    rows = cell.recording.ranges[cell.recording.ranges["name"] == "forward"]
    return [float(ns) / 1e6 for ns in rows["own_ns"].groupby(rows["step"]).sum()]


def launches_repeat(cell: CellData, top: pd.Series) -> Check:
    """Launches per pass are equal in every step; otherwise the counts of each step are listed."""
    row = cell.phase("forward")
    assert row is not None and cell.recording is not None
    passed = bool(top.same_in_all_steps and row.same_in_all_steps)
    counts = f"{top.launches:g} of the top kernel, {row.kernels:g} in all"
    if not passed:
        forward = of_phase(cell.recording.ops[cell.recording.ops["kernel"]], "forward")
        of_top = forward["step"][forward["name"] == top["name"]]
        by_step = [
            f"{(of_top == step).sum()} of {(forward['step'] == step).sum()}" for step in cell.recording.steps
        ]
        counts = f"by step: {', '.join(by_step)}"
    return check("launches per pass are the same in every step", passed, "integers", counts)


def gemm_counts(cell: CellData) -> list[Check]:
    """GEMM kernels against the model: 9 L + 1 forward, twice as many backward, split-K sums not counted."""
    spec, checks = cell.files.spec, []
    due = {"forward": spec.forward_gemms, "backward": spec.backward_gemms} if spec else {}
    for phase in ("forward", "backward"):
        row = cell.phase(phase)
        if row is None:
            continue
        name, matmuls = f"GEMMs of {phase} are the model's", f"{row.matmuls:g}"
        if spec is None:
            checks.append(Check(name, OPEN, "the model's shape", matmuls))
        else:
            checks.append(check(name, row.matmuls == due[phase], str(due[phase]), matmuls))
    return checks


def every_kernel_has_a_phase(cell: CellData) -> Check:
    """Every kernel launched in a step belongs to exactly one phase."""
    assert cell.recording is not None
    ops, ambiguous = cell.recording.ops, cell.recording.ambiguous
    kernels = ops[ops["kernel"]]
    outside = int((kernels["phase"] == "").sum())
    counts = f"{len(kernels) - outside} of {len(kernels)}"
    if ambiguous:
        counts += f", {ambiguous} ambiguous"
    passed = outside == 0 and not ambiguous
    return check("every kernel of a step has a phase", passed, f"{len(kernels)} of {len(kernels)}", counts)
