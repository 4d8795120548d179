"""The arguments of ops as sheets show them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from lab.perfmodel.calls import nested_tuple
from lab.recordings.capture import Capture

ARGUMENTS = {
    "Input Dims": "dims_id",
    "Input type": "types_id",
    "Input Strides": "strides_id",
    "Concrete Inputs": "concrete_id",
}


def op_arguments(trace: Capture, op_rows: np.ndarray) -> dict[str, list[str]]:
    """Columns Input Dims, Input type, Input Strides, Concrete Inputs of ops (n,), written as lists."""
    ops = trace.operators.take(op_rows)
    return {
        title: [str(json.loads(text)) if text else "" for text in trace.text(getattr(ops, name))]
        for title, name in ARGUMENTS.items()
    }


class Cached(dict[int, str]):
    """Texts by number, each computed once."""

    def __init__(self, compute: Callable[[int], str]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: int) -> str:
        self[key] = self._compute(key)
        return self[key]


@lru_cache(maxsize=1 << 14)  # several sheets show the same arguments
def as_tuple(text: str) -> str:
    return str(nested_tuple(json.loads(text))) if text else ""
