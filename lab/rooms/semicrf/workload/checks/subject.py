"""What is checked, the cases it is checked on, and the row that a check writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from lab.rooms.semicrf.workload.cases import Case, Solution, random_case, solve

Row = dict[str, Any]
# (B, T, K, C): one frame, one label, K > T, K = 1, labels not a power of two, more labels than a warp,
# than one tile of a product.
SMALL = (
    (1, 1, 1, 1),
    (2, 7, 3, 2),
    (3, 9, 20, 5),
    (2, 30, 8, 1),
    (4, 33, 8, 33),
    (3, 40, 16, 39),
    (2, 64, 1, 17),
    (2, 12, 5, 100),
)
# Many frames, durations beyond what a block of threads holds at once, more sequences than processors.
LONG = ((4, 500, 30, 24), (2, 2000, 100, 16), (1, 3000, 700, 5), (300, 30, 7, 6))
FORBIDDEN = -math.inf


@dataclass(frozen=True)
class Subject:
    """The backend under test, its device, and how many cases it gets."""

    backend: str
    device: torch.device
    batches: int
    seed: int

    @property
    def repeats(self) -> int:
        return 100 if self.device.type == "cuda" else 10

    def solve(self, case: Case) -> Solution:
        return solve(case.to(self.device), self.backend)


def drawn(seed: int, shape: tuple[int, ...]) -> Case:
    batch, frames, longest, classes = shape
    return random_case(torch.Generator().manual_seed(seed), batch, frames, longest, classes)


def as_row(
    check: str,
    shape: Any,
    dtype: Any,
    value: float | None,
    limit: float | None,
    text: str,
    *,
    ok: bool | None = None,
) -> Row:
    """A row; without `ok` it passes if the value is there and within its limit."""
    good = ok if ok is not None else value is not None and limit is not None and value <= limit
    number = None if value is None or not math.isfinite(value) else float(value)
    return {
        "check": check,
        "shape": "x".join(map(str, shape)),
        "dtype": str(dtype).replace("torch.", ""),
        "value": number,
        "limit": limit,
        "verdict": "pass" if good else "fail",
        "text": text,
    }
