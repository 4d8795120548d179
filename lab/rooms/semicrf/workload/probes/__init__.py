"""The probes of a diagnosis: each asks one question about input, objective or kernel, and gives one row."""

from __future__ import annotations

import math
from typing import Any

import torch

Row = dict[str, Any]


def row(probe: str, cause: str, clean: bool, value: float, limit: float, text: str, backend: str = "") -> Row:
    return {
        "probe": probe,
        "cause": cause,
        "backend": backend,
        "clean": bool(clean),
        "value": finite_number(value),
        "limit": limit,
        "text": text,
    }


def finite_number(value: float | torch.Tensor) -> float | None:
    """JSON has no NaN and no infinity."""
    number = float(value)
    return number if math.isfinite(number) else None
