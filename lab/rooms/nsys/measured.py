"""The measured steps of a capture: operations and ranges, by step, phase and part of attention."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lab.recordings.lacks import Lack
from lab.recordings.names import is_matmul, kernel_class

PHASES = ("forward", "backward", "optimizer_step")
STEP = "step"

SCORES, MASK, SOFTMAX, FINAL = (
    "computing_attention_scores",
    "applying_mask",
    "computing_softmax",
    "final_matmul",
)

PARTS = (SCORES, MASK, SOFTMAX, FINAL)
_STEP_NAME = re.compile(r"(?:forward_|training_)?step_(\d+)\Z")
OPS = ["step", "phase", "part", "name", "class", "kernel", "start_ns", "end_ns", "rule"]
RANGES = ["step", "name", "start_ns", "end_ns"]


@dataclass(frozen=True)
class Recording:
    """The measured steps of a capture.

    ops: one row per device operation launched within a step, columns OPS (`phase`, `part` "" outside all);
    ranges: steps, phases and attention's parts on the host, columns RANGES. Names are normalised.
    """

    ops: pd.DataFrame
    ranges: pd.DataFrame
    collector: str = ""
    version: str = ""
    device: str = ""
    gpu: dict[str, Any] = field(default_factory=dict)  # name, sm_count, clock_hz, ... as far as recorded
    outside_steps: int = 0
    ambiguous: int = 0
    problems: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = ()  # what the recording is missing
    coverage: dict[str, tuple[int, float]] = field(default_factory=dict)  # rule -> (operations, ms)
    cpu_ops: pd.DataFrame = field(default_factory=pd.DataFrame)  # op, calls and self_ms per step (Kineto)

    @property
    def steps(self) -> list[int]:
        return sorted(self.ranges.loc[self.ranges["name"] == STEP, "step"].unique())

    @property
    def has_kernels(self) -> bool:
        return bool(self.ops["kernel"].any()) if len(self.ops) else False


def normalised(name: str) -> str:
    """A range name in one spelling: the course's handout has blanks where its code has underscores."""
    return re.sub(r"[\s_]+", "_", name.strip()).lower()


def step_number(name: str) -> int:
    """N of `step_N` (also `forward_step_N`, `training_step_N`), -1 for any other range."""
    found = _STEP_NAME.match(normalised(name))
    return int(found[1]) if found else -1


def class_of(name: str) -> str:
    """The class of a kernel; `gemm` for any kernel that multiplies matrices."""
    kind = kernel_class(name)
    return "gemm" if is_matmul(name) and kind != "gemv" else kind
