"""The measured steps of a capture: operations and ranges, by step, phase and part of attention."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lab.perfmodel.boards import Board
from lab.recordings.capture import Process
from lab.recordings.lacks import Lack
from lab.recordings.names import is_matmul, kernel_class
from lab.recordings.phase_names import BACKWARD, FORWARD, OPTIMIZER
from lab.stats import intervals


@dataclass(frozen=True)
class StepFigures:
    """Arrays (steps,): counts of kernels and of copies and fills; kernel time, time busy, and span, in ns."""

    kernels: np.ndarray
    copies_and_fills: np.ndarray
    kernel_ns: np.ndarray
    busy_ns: np.ndarray
    span_ns: np.ndarray

    @property
    def same_launches(self) -> bool:
        return bool((self.kernels == self.kernels[:1]).all())


def step_figures(
    start_ns: np.ndarray, end_ns: np.ndarray, kernel: np.ndarray, step: np.ndarray, num_steps: int
) -> StepFigures:
    """Figures of operations (n,): `kernel` marks the kernels, `step` is the step of each, -1 outside."""
    inside = np.flatnonzero(step >= 0)
    start_ns, end_ns, step, kernel = start_ns[inside], end_ns[inside], step[inside], kernel[inside]
    first_ns = np.full(num_steps, np.iinfo(np.int64).max)
    last_ns = np.full(num_steps, np.iinfo(np.int64).min)
    np.minimum.at(first_ns, step, start_ns)
    np.maximum.at(last_ns, step, end_ns)
    has_ops = np.bincount(step, minlength=num_steps) > 0
    kernels = np.bincount(step[kernel], minlength=num_steps)
    return StepFigures(
        kernels=kernels,
        copies_and_fills=np.bincount(step, minlength=num_steps) - kernels,
        kernel_ns=summed(end_ns - start_ns, np.where(kernel, step, -1), num_steps),
        busy_ns=intervals.totals(np.stack([start_ns, end_ns], axis=1), step, num_steps),
        span_ns=np.where(has_ops, last_ns - np.where(has_ops, first_ns, 0), 0),
    )


def summed(values: np.ndarray, step: np.ndarray, num_steps: int) -> np.ndarray:
    """Sums (steps,) of integers (n,) by step; -1 is left out."""
    sums = np.zeros(num_steps, dtype=np.int64)
    np.add.at(sums, step[step >= 0], values[step >= 0])
    return sums


def sample_sd(values: np.ndarray) -> float:
    """Sample standard deviation; 0 for a single value, as nsys writes it."""
    return float(np.asarray(values, dtype=float).std(ddof=1)) if len(values) > 1 else 0.0


PHASES = (FORWARD, BACKWARD, OPTIMIZER)
STEP = "step"

SCORES, MASK, SOFTMAX, FINAL = (
    "computing_attention_scores",
    "applying_mask",
    "computing_softmax",
    "final_matmul",
)

PARTS = (SCORES, MASK, SOFTMAX, FINAL)
OPS = ["step", "phase", "part", "name", "class", "kernel", "start_ns", "end_ns", "rule"]
RANGES = ["step", "name", "start_ns", "end_ns", "own_ns"]


@dataclass(frozen=True)
class Recording:
    """The measured steps of one process of a capture.

    ops: one row per device operation launched within a step, columns OPS (`phase`, `part` "" outside all);
    ranges: steps, phases and attention's parts on the host, columns RANGES (`own_ns`: without other phases
    inside it). `step` counts the instances of steps from 0, whatever their names; step_names has these.
    """

    ops: pd.DataFrame
    ranges: pd.DataFrame
    step_names: tuple[str, ...] = ()
    process: Process = field(default_factory=Process)
    process_index: int = 0
    collector: str = ""
    version: str = ""
    device: str = ""
    board: Board | None = None  # the data sheet of the first GPU
    outside_steps: int = 0
    ambiguous: int = 0
    problems: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = ()  # what the recording is missing
    coverage: dict[str, tuple[int, float]] = field(default_factory=dict)  # rule -> (operations, ms)
    cpu_ops: pd.DataFrame = field(default_factory=pd.DataFrame)  # op, calls and self_ms per step (Kineto)

    @property
    def steps(self) -> list[int]:
        return list(range(len(self.step_names)))

    @property
    def has_kernels(self) -> bool:
        return bool(self.ops["kernel"].any()) if len(self.ops) else False


def normalised(name: str) -> str:
    """A range name in one spelling: the course's handout has blanks where its code has underscores."""
    return re.sub(r"[\s_]+", "_", name.strip()).lower()


def class_of(name: str) -> str:
    """The class of a kernel; `gemm` for any kernel that multiplies matrices."""
    kind = kernel_class(name)
    return "gemm" if is_matmul(name) and kind != "gemv" else kind
