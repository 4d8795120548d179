"""Tensors made again: strides, overlap, alignment and data.

Data are a fixed hash of the element's index, so that Python, C++ and two runs see the same numbers. The bits
are spread like random ones, because zeros cost less energy than data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.perfmodel.dtypes import ITEM_BYTES
from lab.rooms.kernels.replay.args import TensorArg, fill_of
from lab.rooms.kernels.tensors import extent

PATTERN_ELEMENTS = 1 << 20  # the period of the hash


def make(op: str, spec: TensorArg, device: torch.device, seed: int) -> Any:
    """One tensor of `spec`: storage up to its last addressed element, filled, then strided."""
    if spec.number:
        return placeholder(spec.dtype)
    place = torch.device("cpu") if spec.device == "cpu" else device
    lead = spec.align_bytes // ITEM_BYTES[spec.dtype]
    flat = filled(op, spec, lead + extent(spec.shape, spec.stride), place, seed)
    if spec.pinned and device.type != "cpu":
        flat = flat.pin_memory()
    return flat.as_strided(spec.shape, spec.stride, lead)


def filled(op: str, spec: TensorArg, length: int, device: torch.device, seed: int) -> Tensor:
    """A 1-D tensor of `length`: hashed floats in [-1, 1), integers within bounds, hashed bools."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    kind = fill_of(op, spec)
    if kind in ("zeros", "ones"):
        return torch.full((length,), 1 if kind == "ones" else 0, dtype=dtype, device=device)
    table = pattern(device)
    if kind == "positive":
        table = table.abs()
    elif kind == "bools":
        table = table < 0
    elif kind == "bounded":
        low, span = spec.low or 0, (spec.high or 0) - (spec.low or 0) + 1
        table = ((table.double() + 1) * 0.5 * span).floor().clamp_(max=span - 1) + low
    elif "complex" in spec.dtype:
        table = torch.complex(table, table)
    return _tiled(table.to(dtype), length, seed)


def _tiled(table: Tensor, length: int, seed: int) -> Tensor:
    """The table from an offset that `seed` selects, repeated up to `length`."""
    size = table.numel()
    start = (seed * 7919) % size
    table = torch.cat([table[start:], table[:start]])
    if length <= size:
        return table[:length].clone()
    out = torch.empty(length, dtype=table.dtype, device=table.device)
    num_tiles = length // size
    out[: num_tiles * size].view(num_tiles, size).copy_(table)
    out[num_tiles * size :].copy_(table[: length - num_tiles * size])
    return out


_tables: dict[str, Tensor] = {}


def pattern(device: torch.device) -> Tensor:
    """PATTERN_ELEMENTS hashed float32 in [-1, 1), the same on every device and in the C++ program."""
    key = str(device)
    if key not in _tables:
        mask = (1 << 32) - 1
        x = (torch.arange(PATTERN_ELEMENTS, dtype=torch.int64) * 2654435761) & mask
        x = (x ^ (x >> 16)) * 22468225 & mask
        x = x ^ (x >> 13)
        _tables[key] = ((x >> 8).float() * 2.0**-23 - 1.0).to(device)
    return _tables[key]


def placeholder(dtype: str) -> Any:
    """A stand-in for a number whose value no trace holds: 1, with which no result drifts."""
    return WholeNumber(1) if dtype in ("int64", "bool") else Number(1.0)


class Number(float):
    """A placeholder float for a parameter that is a tensor in the schema."""

    @property
    def number(self) -> float | int | bool:
        return float(self)


class WholeNumber(int):
    """A placeholder int for a parameter that is a tensor in the schema."""

    @property
    def number(self) -> int:
        return int(self)
