"""Matrix products: which ops are one, their sizes, FLOPs and bytes.

A product of [M, K] and [K, N], B times, costs 2 B M N K operations, and B M N more where a bias is added; of
complex numbers 8 B M N K and 2 B M N.
Every command that prints FLOPs of a product takes them from here, once per op, over all kernels that the op
launched: a product split in K runs a GEMM and a sum, a batch may run two GEMMs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lab.perfmodel.calls import OpCall, Shape, Work, broadcast, op_of
from lab.perfmodel.dtypes import ITEMS_PER_ELEMENT, dtype_name, is_complex


@dataclass(frozen=True)
class Product:
    """One product of [M, K] and [K, N], B times; bias_elements: of a bias that was passed, 0 without one."""

    B: int
    M: int
    N: int
    K: int
    bias_elements: int = 0


def product_flops(B: Any, M: Any, N: Any, K: Any, bias: Any, dtype: str) -> Any:
    """Return 2 B M N K operations, and B M N more for a bias: numbers or arrays (n,) of one dtype.

    Of complex numbers a multiply-add is 4 products and 4 sums, as (a + bi)(c + di) is ac - bd and ad + bc and
    both are added up; a bias adds both parts.
    """
    per_multiply_add, per_sum = (8.0, 2.0) if is_complex(dtype) else (2.0, 1.0)
    return B * M * N * (per_multiply_add * K + per_sum * bias)


def is_product(op: str) -> bool:
    return op_of(op).model == "product"


def factor_indices(op: str) -> tuple[int, int]:
    """Return where the two factors of a product stand among its arguments."""
    arguments = op_of(op).arguments
    return arguments.get("left", 0), arguments.get("right", 1)


def has_bias(call: OpCall) -> bool:
    """Tell whether a product adds a bias: always as the first argument, else where a tensor was passed."""
    index = op_of(call.name).arguments.get("bias", -1)
    return index == 0 or (index > 0 and call.tensor(index) is not None)


def product_of(call: OpCall) -> Product | None:
    """Return the sizes of a product; None where a factor's shape was not recorded or the two do not fit."""
    if not is_product(call.name):
        return None
    arguments = op_of(call.name).arguments
    left, right = factor_indices(call.name)
    a, b = call.tensor(left), call.tensor(right)
    if a is None or b is None:
        return None
    if "left_flag" in arguments:  # without the flag an activation's axes but its last are rows
        a = a[::-1] if call.flag(arguments["left_flag"]) else (math.prod(a[:-1]), a[-1])
        b = b[::-1] if call.flag(arguments["right_flag"]) else b
    if "transposed" in arguments and len(b) >= 2:
        b = (*b[:-2], b[-1], b[-2])
    if "sparse" in arguments and len(b) >= 2 and max(a[-1], b[-2]) == 2 * min(a[-1], b[-2]):
        kept_along_k = min(a[-1], b[-2])
        a, b = (*a[:-1], kept_along_k), (*b[:-2], kept_along_k, b[-1])
    bias_elements = math.prod(call.shape(arguments["bias"]) or ()) if has_bias(call) else 0
    # float4 comes in pairs along K.
    pair = ITEMS_PER_ELEMENT.get(dtype_name(call.dtype(left)) or "", 1)
    if len(b) >= 2:
        b = (*b[:-2], b[-2] * pair, b[-1])
    return _sized((*a[:-1], a[-1] * pair), b, bias_elements)


def product_work(call: OpCall) -> Work | None:
    """Return the work of a product. Bytes: both factors and the bias read once, the result written once.

    The result counts as wide as the first factor; bytes are NaN where its type is unknown.
    """
    product = product_of(call)
    if product is None:
        return None
    left, right = factor_indices(call.name)
    a_bytes = call.element_bytes(left) or math.nan
    b_bytes = call.element_bytes(right) or a_bytes
    result = product.B * product.M * product.N
    num_bytes = (
        call.touched(left) * a_bytes
        + call.touched(right) * b_bytes
        + (result + product.bias_elements) * a_bytes
    )
    params = {name: getattr(product, name) for name in "BMNK"} | {"bias": bool(product.bias_elements)}
    flops = product_flops(product.B, product.M, product.N, product.K, params["bias"], call.dtype(left))
    return Work("GEMM", params, flops, num_bytes, "matrix", call.dtype(left))


def _sized(a: Shape, b: Shape, bias_elements: int) -> Product | None:
    """Multiply shapes as torch.matmul does: a vector gets an axis, a stack by one matrix is one product."""
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    if len(b) == 2:
        sizes = 1, math.prod(a[:-1]), b[1], a[-1]
    else:
        batch = broadcast(a[:-2], b[:-2])
        if batch is None:
            return None
        sizes = math.prod(batch), a[-2], b[-1], a[-1]
    # Columns are 64 bits wide, and no tensor has more elements.
    return Product(*sizes, bias_elements) if max(sizes) < 2**63 else None
