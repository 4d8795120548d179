"""The work of matrix products by their shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from lab.rooms.kernels.schema import Arg, Signature
from lab.rooms.kernels.tensors import ITEM_BYTES

# Ops with two factors: index of the first among the arguments.
_FACTORS = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
    "aten::_int_mm": 0,
    "aten::_scaled_mm": 0,
}


class Work(msgspec.Struct, frozen=True):
    """FLOPs and least bytes of one matrix product: each factor read once, the result written once."""

    flops: int
    bytes: int
    dtype: str


def product_of(one: Signature) -> Work | None:
    """The work of a matrix product; None for other ops, and if shapes are not known."""
    first = _FACTORS.get(one.op)
    if first is None or one.class_ not in ("gemm", "gemv") or len(one.args) < first + 2:
        return None
    a, b = one.args[first], one.args[first + 1]
    if not a.shape or not b.shape or len(a.shape) < 2 or len(b.shape) < 2 or a.dtype not in ITEM_BYTES:
        return None
    batch, m, k, n = math.prod(a.shape[:-2]), a.shape[-2], a.shape[-1], b.shape[-1]
    read = sum(_bytes(arg) for arg in one.args[: first + 2])
    return Work(2 * batch * m * n * k, read + batch * m * n * ITEM_BYTES[a.dtype], a.dtype)


def _bytes(arg: Arg) -> int:
    """Bytes of the distinct elements of a tensor: an expanded dimension is read once."""
    sizes: Sequence[int] = arg.shape or ()
    strides = arg.stride if arg.stride is not None and len(arg.stride) == len(sizes) else [1] * len(sizes)
    kept = [size for size, stride in zip(sizes, strides, strict=True) if stride != 0]
    return math.prod(kept) * ITEM_BYTES.get(arg.dtype or "", 4)
