"""Dtypes and strides: names as recordings write them, bytes per element, extent of a strided tensor."""

from __future__ import annotations

from collections.abc import Sequence

from lab.perfmodel.dtypes import SPELLINGS

# A replay does not rebuild these; the catalogue names them.
_NAMED_ONLY = ("complex32", "float8_e8m0fnu", "float4_e2m1fn_x2")
# Spellings in recordings (Kineto's "Input type", the execution trace's "Tensor(...)") -> torch's name.
DTYPES = {spelling: name for spelling, name in SPELLINGS.items() if name not in _NAMED_ONLY}
FLOATS = frozenset(name for name in DTYPES.values() if "float" in name or "complex" in name)


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last addressed one, 0 for an empty tensor."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))
