"""The category and the shown name of a function."""

from __future__ import annotations

import pytest

from lab.rooms.nan.nixnan.names import category, shown
from tests.rooms.nan.nixnan.examples import FLASH


@pytest.mark.parametrize(
    "name, word",
    {
        FLASH: "attention",
        "void cutlass::Kernel2": "gemm",
        "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x6_tn": "gemm",
        "void kgemm_4bit_inference_naive": "quantized gemm",
        "void kDequantizeBlockwise": "quant",
        "void ": "unnamed",
        "void at::native::": "unnamed",
        "void at::native::vectorized_elementwise_kernel": "elementwise",
        "__internal_x": "device function",
        "void cublasLt::splitKreduce_kernel": "splitk_reduce",
        "std::enable_if": "gemv",
        "triton_poi_fused_add_0": "triton",
        "void at::native::reduce_kernel": "reduce",
        "rd_step_fp32": "other",
        "nvjet_sm90_hsh_64x8_64x16_1x2": "gemm",
    }.items(),
)
def test_a_function_belongs_to(name, word):
    assert category(name) == word


def test_void_is_stripped_to_be_shown_and_kept_in_data():
    assert shown("void f") == "f" and shown("void ") == "(name cut away)"


def test_the_number_that_a_compiler_adds_changes_no_category():
    for name in (
        "triton_poi_fused_add",
        "void cutlass::Kernel2",
        "flash_fwd_kernel",
        "layer_norm",
        "mystery",
    ):
        assert category(f"{name}_4977") == category(f"{name}_12") == category(f"{name}_00")
