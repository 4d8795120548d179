"""Answers, and the checks that more than one question makes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pandas as pd

from lab.core.words import plural
from lab.recordings.phase_names import BACKWARD, FORWARD
from lab.rooms.nsys.analyze import of_phase
from lab.rooms.nsys.layout import CellData, CellResult
from lab.stats.means import Sample, mean_ci

AGREE = 0.05  # relative difference below which two clocks agree
OK, FAILED, OPEN = "ok", "failed", "not checked"

Values = dict[str, Any]


class Check(msgspec.Struct, frozen=True, rename={"actual": "found"}):
    """What was expected, what the recording has, and whether they agree (`ok`, `failed`, `not checked`)."""

    name: str
    state: str
    expected: str
    actual: str

    def line(self, *, with_state: bool = True) -> str:
        """`[ok] name: expected 1, found 1`."""
        state = f"[{self.state}] " if with_state else ""
        return f"{state}{self.name}: expected {self.expected}, found {self.actual}"


def check(name: str, passed: bool | None, expected: str, actual: str) -> Check:
    """passed: None where it could not be checked."""
    return Check(name, OPEN if passed is None else OK if passed else FAILED, expected, actual)


@dataclass(frozen=True)
class Answer:
    """A sentence, the numbers in it, and its checks. `is_answered` is false where the data cannot answer."""

    part: str
    cell: str
    sentence: str
    values: Values = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    is_answered: bool = True

    @property
    def state(self) -> str:
        """`failed` if a check failed, `no answer` without one, else `ok`."""
        if not self.is_answered:
            return "no answer"
        return FAILED if any(check.state == FAILED for check in self.checks) else OK


def no_answer(part: str, cell: CellData, reason: str) -> Answer:
    """An answer that only states why the question is open."""
    if not cell.has_kernels:
        reason = "the capture has no GPU kernels (no_gpu_data): it was made on a CPU or without GPU tracing"
        if cell.recording.outside_steps:
            operations = plural(cell.recording.outside_steps, "GPU operation")
            reason = (
                f"no step owns any of the {operations} recorded (no_gpu_data): their launches are unknown"
            )
    return Answer(part, cell.label, f"Cannot be answered: {reason}.", is_answered=False)


def times_nest(cell: CellData) -> Check:
    """busy <= span <= wall: every phase ends with a synchronisation inside its range."""
    name, row = "busy <= span <= wall", cell.phase(FORWARD)
    if row is None or not cell.has_kernels:
        return check(name, None, "kernels", "none")
    passed = row.busy_ms <= row.span_ms * (1 + 1e-9) and row.span_ms <= row.wall_ms * (1 + 1e-3)
    times = f"{row.busy_ms:.3f} <= {row.span_ms:.3f} <= {row.wall_ms:.3f} ms"
    return check(name, passed, "in this order", times)


def clocks_agree(cell: CellData) -> Check:
    """Python's clock around each `forward` against the range itself.

    The median over the steps, so that one interrupted step does not decide.
    """
    name = "Python's clock around the range agrees with it"
    ranges = cell.recording.ranges[cell.recording.ranges["name"] == FORWARD]
    walls_ms = (ranges["own_ns"].groupby(ranges["step"]).sum() / 1e6).tolist()
    python_ms = python_times(cell.result, FORWARD)
    if not python_ms or len(python_ms) != len(walls_ms):
        return check(name, None, "one time in cell.json per step", f"{len(python_ms)} and {len(walls_ms)}")
    range_ms = statistics.median(walls_ms)
    excess_ms = statistics.median(clock - wall for clock, wall in zip(python_ms, walls_ms, strict=True))
    passed = -0.02 * range_ms <= excess_ms <= AGREE * range_ms + 0.2
    return check(name, passed, f"{range_ms:.3f} ms", f"{range_ms + excess_ms:.3f} ms")


def python_times(result: CellResult | None, phase: str) -> list[float]:
    """ms of a phase in each step by Python's clock; [] where it was not timed."""
    return [step[f"{phase}_ms"] for step in result.steps if f"{phase}_ms" in step] if result else []


def launches_repeat(cell: CellData, top: pd.Series) -> Check:
    """Launches per pass are equal in every step; otherwise the counts of each step are listed."""
    row = cell.phase(FORWARD)
    passed = bool(top.same_in_all_steps and row.same_in_all_steps)
    counts = f"{top.launches:g} of the top kernel, {row.kernels:g} in all"
    if not passed:
        forward = of_phase(cell.recording.kernels, FORWARD)
        of_top = cell.recording.by_step(forward[forward["name"] == top["name"]], "kernel")
        in_all = cell.recording.by_step(forward, "kernel")
        counts = "by step: " + ", ".join(f"{n} of {total}" for n, total in zip(of_top, in_all, strict=True))
    return check("launches per pass are the same in every step", passed, "integers", counts)


def gemm_counts(cell: CellData) -> list[Check]:
    """GEMM kernels against the model: 9 L + 1 forward, twice as many backward, split-K sums not counted."""
    spec, checks = cell.spec, []
    due = {FORWARD: spec.forward_gemms, BACKWARD: spec.backward_gemms} if spec else {}
    for phase in (FORWARD, BACKWARD):
        if (row := cell.phase(phase)) is not None:
            passed = row.matmuls == due[phase] if due else None
            expected = str(due.get(phase, "the model's shape"))
            checks.append(check(f"GEMMs of {phase} are the model's", passed, expected, f"{row.matmuls:g}"))
    return checks


def every_kernel_has_a_phase(cell: CellData) -> Check:
    """Every kernel launched in a step belongs to exactly one phase."""
    kernels, ambiguous = cell.recording.kernels, cell.recording.ambiguous
    inside = int((kernels["phase"] != "").sum())
    counts = f"{inside} of {len(kernels)}" + (f", {ambiguous} ambiguous" if ambiguous else "")
    passed = inside == len(kernels) and not ambiguous
    return check("every kernel of a step has a phase", passed, f"{len(kernels)} of {len(kernels)}", counts)


def spread(sample: Sample) -> str:
    """`2.58 ± 0.17 ms (n = 3)`: mean and standard deviation; without the latter for a single step."""
    if sample.n == 1:
        return f"{sample.mean:.2f} ms (n = 1)"
    return f"{sample.mean:.2f} ± {sample.sd:.2f} ms (n = {sample.n})"


def interval_values(name: str, unit: str, sample: Sample) -> Values:
    """The 95 % interval of a mean over steps, as `name_low_unit` and `name_high_unit`; {} for one step."""
    if sample.n < 2:
        return {}
    low, high = mean_ci(sample)
    return {f"{name}_low_{unit}": low, f"{name}_high_{unit}": high}


def python_sample(result: CellResult | None, phase: str) -> Sample | None:
    """ms of a phase over the steps by Python's clock; None where it was not timed."""
    times = python_times(result, phase)
    return Sample.of(times) if times else None
