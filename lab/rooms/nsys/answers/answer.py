"""Answers, their checks, and the data of a cell that they are computed from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.rooms.nsys.analyze import CellTables
from lab.rooms.nsys.layout import CellFiles, CellResult
from lab.rooms.nsys.measured import Recording
from lab.rooms.nsys.steps import sample_sd, summed
from lab.stats.means import Sample, mean_ci

OK, FAILED, OPEN = "ok", "failed", "not checked"


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


@dataclass(frozen=True)
class Answer:
    """A sentence, the numbers in it, and its checks. `is_answered` is false where the data cannot answer."""

    part: str
    cell: str
    sentence: str
    values: dict[str, float | str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    is_answered: bool = True

    @property
    def state(self) -> str:
        """`failed` if a check failed, `no answer` without one, else `ok`."""
        if not self.is_answered:
            return "no answer"
        return FAILED if any(check.state == FAILED for check in self.checks) else OK


@dataclass(frozen=True)
class CellData:
    """A cell with the recording and tables of one process; None without a readable capture."""

    files: CellFiles
    recording: Recording | None = None
    tables: CellTables | None = None

    @property
    def label(self) -> str:
        return self.files.label

    @property
    def size_and_context(self) -> tuple[str, int]:
        return self.files.cell.size, self.files.cell.context

    @property
    def has_kernels(self) -> bool:
        return self.recording is not None and self.recording.has_kernels

    def phase(self, name: str) -> pd.Series | None:
        """A phase's row; None where the capture has no such phase."""
        if self.tables is None:
            return None
        rows = self.tables.phases[self.tables.phases["phase"] == name]
        return rows.iloc[0] if len(rows) else None


def no_answer(part: str, cell: CellData, reason: str) -> Answer:
    """An answer that only states why the question is open."""
    if cell.recording is not None and not cell.recording.has_kernels:
        reason = "the capture has no GPU kernels (no_gpu_data): it was made on a CPU or without GPU tracing"
        if cell.recording.outside_steps:
            operations = plural(cell.recording.outside_steps, "GPU operation")
            reason = (
                f"no step owns any of the {operations} recorded (no_gpu_data): their launches are unknown"
            )
    return Answer(part, cell.label, f"Cannot be answered: {reason}.", is_answered=False)


def check(name: str, passed: bool, expected: str, actual: str) -> Check:
    return Check(name, OK if passed else FAILED, expected, actual)


def spread(sample: Sample) -> str:
    """`2.58 ± 0.17 ms (n = 3)`: mean and standard deviation; without the latter for a single step."""
    if sample.n == 1:
        return f"{sample.mean:.2f} ms (n = 1)"
    return f"{sample.mean:.2f} ± {sample.sd:.2f} ms (n = {sample.n})"


def interval_values(name: str, unit: str, per_step: np.ndarray) -> dict[str, float | str]:
    """The 95 % interval of a mean over steps, as `name_low_unit` and `name_high_unit`; {} for one step."""
    if len(per_step) < 2:
        return {}
    low, high = mean_ci(Sample(float(per_step.mean()), sample_sd(per_step), len(per_step)))
    return {f"{name}_low_{unit}": low, f"{name}_high_{unit}": high}


def kernel_ns_by_step(
    cell: CellData, phases: Sequence[str], chosen: Callable[[pd.DataFrame], pd.Series]
) -> np.ndarray:
    """Time of the chosen kernels in each step (steps,) in ns, in these phases; in the whole step for none."""
    assert cell.recording is not None
    ops = cell.recording.ops
    mask = ops["kernel"].astype(bool) & chosen(ops)
    if phases:
        mask &= ops["phase"].isin(phases)
    ops = ops[mask]
    dur_ns = (ops["end_ns"] - ops["start_ns"]).to_numpy(np.int64)
    return summed(dur_ns, ops["step"].to_numpy(np.int64), len(cell.recording.steps))


def python_sample(result: CellResult | None, phase: str) -> Sample | None:
    """ms of a phase over the steps by Python's clock; None where it was not timed."""
    times = [step[f"{phase}_ms"] for step in result.steps if f"{phase}_ms" in step] if result else []
    if not times:
        return None
    return Sample(sum(times) / len(times), statistics.stdev(times) if len(times) > 1 else 0.0, len(times))
