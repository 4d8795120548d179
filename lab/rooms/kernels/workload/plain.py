"""Arguments of ops as plain data that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

# The first match counts: a bool is an int too.
NUMBERS: tuple[tuple[str, Any], ...] = (
    ("bool", bool),
    ("int", int),
    ("float", float),
    ("complex", complex),
    ("str", str),
)
NAMED: tuple[tuple[str, Any], ...] = (
    ("dtype", torch.dtype),
    ("device", torch.device),
    ("layout", torch.layout),
    ("memory_format", torch.memory_format),
)
LISTS: tuple[tuple[str, Any], ...] = (("bools", bool), ("ints", int), ("floats", (int, float)))


def plain(value: Any) -> dict[str, Any]:
    """kind and value of an argument that is not a tensor; what JSON cannot hold becomes text."""
    if value is None:
        return {"kind": "none"}
    for kind, of in NUMBERS:
        if isinstance(value, of):
            return {"kind": kind, "value": number(value)}
    for kind, of in NAMED:
        if isinstance(value, of):
            return {"kind": kind, "value": short(value)}
    if isinstance(value, torch.Generator):
        return {"kind": "generator", "value": str(value.device)}
    if isinstance(value, (list, tuple)):
        return _list(value)
    return {"kind": "other", "value": str(value)[:200]}


def _list(values: Sequence[Any]) -> dict[str, Any]:
    for kind, of in LISTS:
        if all(isinstance(value, of) for value in values):
            return {"kind": kind, "value": [number(value) for value in values]}
    return {"kind": "other", "value": str(list(values))[:200]}


def number(value: Any) -> Any:
    """A number as JSON can hold it: infinities and NaN by name, complex as a pair."""
    if isinstance(value, complex):
        return [number(value.real), number(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def short(value: Any) -> str:
    return str(value).removeprefix("torch.")
