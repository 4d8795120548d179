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

from lab.perfmodel.calls import OpCall, Shape, Work, broadcast, names
from lab.perfmodel.dtypes import ITEMS_PER_ELEMENT, dtype_name, is_complex

GEMM = "GEMM"


@dataclass(frozen=True)
class Factors:
    """Where an op's factors stand among its arguments.

    transposed: the second factor is [N, K], as weights are kept. bias: the index of the bias, -1 without one.
    sparse: one factor holds two of four elements along K, and only those are multiplied.
    """

    left: int = 0
    right: int = 1
    transposed: bool = False
    bias: int = -1
    sparse: bool = False


_PLAIN, _AFTER_BIAS = Factors(), Factors(1, 2, bias=0)
_WEIGHT, _LINEAR = Factors(transposed=True), Factors(transposed=True, bias=2)
_AFTER_OUT = Factors(1, 2)
# linear and matmul call others of this table; they count only where they are innermost.
PRODUCTS = {
    "aten::mm": _PLAIN,
    "aten::_int_mm": _PLAIN,
    "aten::_scaled_mm": _PLAIN,
    "aten::bmm": _PLAIN,
    "aten::mv": _PLAIN,
    "aten::dot": _PLAIN,
    "aten::vdot": _PLAIN,
    "aten::addmv": _AFTER_BIAS,
    "aten::addbmm": _AFTER_BIAS,
    "aten::_weight_int8pack_mm": _WEIGHT,
    "aten::addmm": _AFTER_BIAS,
    "aten::_addmm_activation": _AFTER_BIAS,
    "aten::baddbmm": _AFTER_BIAS,
    "aten::_sparse_semi_structured_mm": Factors(0, 2, sparse=True),
    "aten::_sparse_semi_structured_addmm": Factors(1, 3, bias=0, sparse=True),
    "aten::_sparse_semi_structured_linear": Factors(0, 1, transposed=True, sparse=True),
    "aten::linear": _LINEAR,
    "aten::matmul": _PLAIN,
    # vLLM: the result comes first (csrc/torch_bindings.cpp); SGLang's kernels return it.
    "_C::cutlass_scaled_mm": _AFTER_OUT,
    "_C::cutlass_scaled_mm_azp": _AFTER_OUT,
    "_C::cutlass_scaled_fp4_mm": Factors(1, 2, transposed=True),
    "sgl_kernel::fp8_scaled_mm": _PLAIN,
    "sgl_kernel::int8_scaled_mm": _PLAIN,
    "sgl_kernel::fp8_blockwise_scaled_mm": _PLAIN,
    "vllm::rocm_unquantized_gemm_impl": _LINEAR,
    "vllm::rocm_unquantized_gemm": _LINEAR,
    # DeepGEMM behind SGLang's and vLLM's ops: A, its scales, B as [N, K], its scales, the result.
    "sglang::deep_gemm_fp8_fp8_bf16_nt": Factors(0, 2, transposed=True),
    "vllm::fp8_gemm_nt_op": Factors(0, 2, transposed=True),
    # aiter (ROCm/aiter, aiter/ops/gemm_op_*.py): activations, then weights as [N, K].
    **{
        f"aiter::{name}": _WEIGHT
        for name in names(
            "gemm_a16w16 gemm_a16w16_asm gemm_a8w8 gemm_a8w8_CK gemm_a8w8_ck gemm_a8w8_ASM gemm_a8w8_asm "
            "gemm_a8w8_bpreshuffle gemm_a8w8_bpreshuffle_ck gemm_a8w8_blockscale gemm_a8w8_blockscale_ck "
            "gemm_a4w4 gemm_a4w4_asm gemm_a4w4_blockscale"
        )
    },
    "aiter::hipb_mm": _PLAIN,
    "bitsandbytes::int8_linear_matmul": _WEIGHT,
}
# TransformerEngine's GEMM: A is a weight and B an activation, each with a flag that says it is transposed.
_TE_GEMM, _TE_FLAGS = "tex_ts::te_gemm_ts", (4, 9)
_TE_FACTORS = (0, 5)


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
    return op in PRODUCTS or op == _TE_GEMM


def factor_indices(op: str) -> tuple[int, int]:
    """Return where the two factors of a product stand among its arguments."""
    if op == _TE_GEMM:
        return _TE_FACTORS[1], _TE_FACTORS[0]
    factors = PRODUCTS[op]
    return factors.left, factors.right


def has_bias(call: OpCall) -> bool:
    """Tell whether a product adds a bias: always as the first argument, else where a tensor was passed."""
    index = PRODUCTS[call.name].bias if call.name in PRODUCTS else -1
    return index == 0 or (index > 0 and call.tensor(index) is not None)


def product_of(call: OpCall) -> Product | None:
    """Return the sizes of a product; None where a factor's shape was not recorded or the two do not fit."""
    if not is_product(call.name):
        return None
    left_index, right_index = factor_indices(call.name)
    a, b = call.tensor(left_index), call.tensor(right_index)
    if a is None or b is None:
        return None
    bias_elements = 0
    if call.name == _TE_GEMM:
        a, b = _te_factors(call, a, b)
    else:
        factors = PRODUCTS[call.name]
        if factors.transposed and len(b) >= 2:
            b = (*b[:-2], b[-1], b[-2])
        if factors.sparse and len(b) >= 2 and max(a[-1], b[-2]) == 2 * min(a[-1], b[-2]):
            kept_along_k = min(a[-1], b[-2])
            a, b = (*a[:-1], kept_along_k), (*b[:-2], kept_along_k, b[-1])
        if has_bias(call):
            bias_elements = math.prod(call.shape(factors.bias) or ())
    pair = _packed(call, left_index)
    return _sized((*a[:-1], a[-1] * pair) if a else a, _unpacked(b, pair), bias_elements)


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
    return Work(GEMM, params, flops, num_bytes, "matrix", call.dtype(left))


def _te_factors(call: OpCall, activation: Shape, weight: Shape) -> tuple[Shape, Shape]:
    """Write TransformerEngine's factors as [M, K] and [K, N]."""
    weight_transposed, activation_transposed = (call.flag(index) for index in _TE_FLAGS)
    a = activation[::-1] if activation_transposed else (math.prod(activation[:-1]), activation[-1])
    return a, weight[::-1] if weight_transposed else weight


def _packed(call: OpCall, index: int) -> int:
    """Return how many numbers an element of a factor holds: float4 comes in pairs along K."""
    return ITEMS_PER_ELEMENT.get(dtype_name(call.dtype(index)) or "", 1)


def _unpacked(b: Shape, pair: int) -> Shape:
    return (*b[:-2], b[-2] * pair, b[-1]) if len(b) >= 2 else b


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
