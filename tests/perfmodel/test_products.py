"""Sizes, FLOPs and bytes of products by hand."""

from __future__ import annotations

import pytest

from lab.perfmodel.calls import OpCall
from lab.perfmodel.ops import work_of
from lab.perfmodel.products import factor_indices, is_product, product_of, product_work

HALF = "c10::Half"


def sizes(name, *shapes, types=None, values=()):
    product = product_of(OpCall(name, shapes, types or [HALF] * len(shapes), (), values))
    return product and (product.B, product.M, product.N, product.K, product.bias_elements)


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("aten::mm", ([4, 6], [6, 5]), (1, 4, 5, 6, 0)),
        ("aten::addmm", ([5], [4, 6], [6, 5]), (1, 4, 5, 6, 5)),
        ("aten::addmm_", ([4, 5], [4, 6], [6, 5]), (1, 4, 5, 6, 20)),
        ("aten::baddbmm", ([3, 4, 5], [3, 4, 6], [3, 6, 5]), (3, 4, 5, 6, 60)),
        ("aten::linear", ([2, 4, 6], [5, 6], [5]), (1, 8, 5, 6, 5)),
        ("aten::linear", ([6], [5, 6]), (1, 1, 5, 6, 0)),
        ("aten::matmul", ([2, 1, 4, 6], [3, 6, 5]), (6, 4, 5, 6, 0)),
        ("aten::matmul", ([2, 4, 6], [3, 6, 5]), None),
        ("aten::mm", ([4, 6], [7, 5]), None),
        ("aten::mv", ([4, 6], [6]), (1, 4, 1, 6, 0)),
        ("aten::dot", ([6], [6]), (1, 1, 1, 6, 0)),
        ("aten::addmv", ([4], [4, 6], [6]), (1, 4, 1, 6, 4)),
        ("aten::_weight_int8pack_mm", ([4, 6], [5, 6], [5]), (1, 4, 5, 6, 0)),
        # Two of four along K are multiplied.
        ("aten::_sparse_semi_structured_mm", ([4, 6], [4, 1], [12, 5]), (1, 4, 5, 6, 0)),
        ("aten::_sparse_semi_structured_addmm", ([5], [4, 6], [4, 1], [12, 5]), (1, 4, 5, 6, 5)),
        ("aten::_sparse_semi_structured_linear", ([4, 12], [5, 6], [5, 1]), (1, 4, 5, 6, 0)),
        ("_C::cutlass_scaled_mm", ([4, 5], [4, 6], [6, 5], [1], [1]), (1, 4, 5, 6, 0)),
        ("aiter::gemm_a8w8", ([4, 6], [5, 6], [4, 1], [5]), (1, 4, 5, 6, 0)),
        ("sglang::deep_gemm_fp8_fp8_bf16_nt", ([4, 6], [4, 1], [5, 6], [1, 1], [4, 5]), (1, 4, 5, 6, 0)),
    ],
)
def test_sizes(name, shapes, expected):
    assert is_product(name) and sizes(name, *shapes) == expected


def test_float4_pairs_count_as_two_along_k():
    pair = "c10::Float4_e2m1fn_x2"
    assert sizes("aiter::gemm_a4w4", [4, 3], [5, 3], types=[pair] * 2) == (1, 4, 5, 6, 0)


def test_transformer_engines_flags_say_which_factor_is_transposed():
    shapes, values = [[]] * 10, [""] * 10
    shapes[0], shapes[5], values[4] = [5, 6], [4, 6], "1"
    assert sizes("tex_ts::te_gemm_ts", *shapes, values=values) == (1, 4, 5, 6, 0)
    shapes[0], values[4] = [6, 5], "0"
    assert sizes("tex_ts::te_gemm_ts", *shapes, values=values) == (1, 4, 5, 6, 0)
    assert factor_indices("tex_ts::te_gemm_ts") == (5, 0)


def test_flops_and_bytes_with_a_bias_and_an_expanded_factor():
    call = OpCall("aten::addmm", [[5], [4, 6], [6, 5]], [HALF] * 3, [[1], [0, 1], [5, 1]])
    work = product_work(call)
    assert work.flops == 4 * 5 * (2 * 6 + 1)
    assert work.num_bytes == 2 * (5 + 6 + 30 + 20)  # the four equal rows of the first factor are read once
    assert (work.unit, work.spec) == ("matrix", "matrix_fp16")


def counted(m: int, n: int, k: int, bias: bool) -> int:
    """Real operations of a complex product, one by one."""
    operations = 0
    for _ in range(m * n):
        for _ in range(k):
            operations += 4 + 2  # ac, bd, ad, bc; ac - bd, ad + bc
            operations += 2  # both parts to the sum
        operations += 2 * bias
    return operations


@pytest.mark.parametrize(
    "dtype", ["c10::complex<float>", "c10::complex<double>", "c10::complex<c10::Half>", "complex64"]
)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (4, 5, 6), (7, 1, 3)])
def test_a_complex_multiply_add_is_eight_operations(dtype, m, n, k):
    plain = product_work(OpCall("aten::mm", [[m, k], [k, n]], [dtype] * 2))
    biased = product_work(OpCall("aten::addmm", [[n], [m, k], [k, n]], [dtype] * 3))
    assert plain.flops == counted(m, n, k, False) == 8 * m * n * k
    assert biased.flops == counted(m, n, k, True)
    batched = product_work(OpCall("aten::bmm", [[3, m, k], [3, k, n]], [dtype] * 2))
    assert batched.flops == 3 * plain.flops


def test_a_complex_convolution_is_four_real_ones():
    values = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    real, complex_ = (
        work_of(OpCall("aten::convolution", [[2, 3, 8, 8], [4, 3, 3, 3], *[[]] * 7], [dtype] * 9, (), values))
        for dtype in ("float", "c10::complex<float>")
    )
    assert complex_.flops == 4 * real.flops > 0
