"""Self-checks that several questions share."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pandas as pd

from lab.rooms.nsys import flops
from lab.rooms.nsys.analyze import of_phase
from lab.rooms.nsys.answers.answer import OPEN, CellData, Check, check

AGREE = 0.05  # relative difference below which two clocks agree


def times_nest(cell: CellData) -> tuple[Check, ...]:
    """busy <= span <= wall: every phase ends with a synchronisation inside its range."""
    row = cell.phase("forward")
    if row is None or cell.recording is None or not cell.recording.has_kernels:
        return (Check("busy <= span <= wall", OPEN, "kernels", "none"),)
    passed = row.busy_ms <= row.span_ms * (1 + 1e-9) and row.span_ms <= row.wall_ms * (1 + 1e-3)
    return (
        check(
            "busy <= span <= wall",
            passed,
            "in this order",
            f"{row.busy_ms:.3f} <= {row.span_ms:.3f} <= {row.wall_ms:.3f} ms",
        ),
    )


def clocks_agree(cell: CellData) -> Check:
    """Python's clock around each `forward` against the range itself.

    The median over the steps, so that one interrupted step does not decide.
    """
    name = "Python's clock around the range agrees with it"
    result, walls = cell.found.result, _walls_ms(cell)
    python = [step["forward_ms"] for step in result.steps if "forward_ms" in step] if result else []
    if not python or len(python) != len(walls):
        return Check(name, OPEN, "one time in cell.json per step", f"{len(python)} and {len(walls)}")
    range_ms = statistics.median(walls)
    over = statistics.median(one - other for one, other in zip(python, walls, strict=True))
    passed = -0.02 * range_ms <= over <= AGREE * range_ms + 0.2
    return check(name, passed, f"{range_ms:.3f} ms", f"{range_ms + over:.3f} ms")


def _walls_ms(cell: CellData) -> list[float]:
    """Wall ms of `forward` in each step, in order."""
    if cell.recording is None:
        return []
    rows = cell.recording.ranges[cell.recording.ranges["name"] == "forward"]
    took = rows["own_ns"].groupby(rows["step"]).sum()
    return [float(ns) / 1e6 for ns in took]


def launches_repeat(cell: CellData, top: pd.Series) -> Check:
    """Launches per pass are equal in every step; otherwise the counts of each step are listed."""
    row = cell.phase("forward")
    assert row is not None and cell.recording is not None
    passed = bool(top.same_in_all_steps and row.same_in_all_steps)
    found = f"{top.launches:g} of the top kernel, {row.kernels:g} in all"
    if not passed:
        forward = of_phase(cell.recording.ops[cell.recording.ops["kernel"]], "forward")
        own = forward[forward["name"] == top["name"]]
        counts = [
            (int((own["step"] == n).sum()), int((forward["step"] == n).sum())) for n in cell.recording.steps
        ]
        found = "by step: " + ", ".join(f"{of_top} of {every}" for of_top, every in counts)
    return check("launches per pass are the same in every step", passed, "integers", found)


def gemm_counts(cell: CellData) -> tuple[Check, ...]:
    """GEMM kernels against the model: 9 L + 1 forward, twice as many backward, split-K sums not counted."""
    spec = cell.found.spec
    due: dict[str, Callable[[flops.ModelSpec], int]] = {
        "forward": lambda s: s.forward_gemms,
        "backward": lambda s: s.backward_gemms,
    }
    checks = []
    for phase, count in due.items():
        row = cell.phase(phase)
        if row is None:
            continue
        name = f"GEMMs of {phase} are the model's"
        if spec is None:
            checks.append(Check(name, OPEN, "the model's shape", f"{row.matmuls:g}"))
        else:
            checks.append(check(name, row.matmuls == count(spec), str(count(spec)), f"{row.matmuls:g}"))
    return tuple(checks)


def every_kernel_has_a_phase(cell: CellData) -> Check:
    """Every kernel launched in a step belongs to exactly one phase."""
    assert cell.recording is not None
    ops = cell.recording.ops
    kernels = ops[ops["kernel"]]
    outside = int((kernels["phase"] == "").sum())
    found = f"{len(kernels) - outside} of {len(kernels)}"
    if cell.recording.ambiguous:
        found += f", {cell.recording.ambiguous} ambiguous"
    return check(
        "every kernel of a step has a phase",
        outside == 0 and not cell.recording.ambiguous,
        f"{len(kernels)} of {len(kernels)}",
        found,
    )
