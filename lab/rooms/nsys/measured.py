"""The measured steps of a capture: operations and ranges, by step, phase and part of attention."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pandas as pd

from lab.perfmodel.boards import Board
from lab.recordings.capture import Process
from lab.recordings.lacks import Lack
from lab.recordings.names import is_matmul, kernel_class
from lab.recordings.phase_names import BACKWARD, FORWARD, OPTIMIZER

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
