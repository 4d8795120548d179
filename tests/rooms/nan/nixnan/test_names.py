"""Types of operands by their opcode; categories of functions by their cut names."""

from __future__ import annotations

import pytest

from lab.rooms.nan.nixnan.grammar import category, opcode_of, shown, type_of
from lab.rooms.nan.nixnan.reading.parse import parse
from tests.rooms.nan.nixnan import nixgen
from tests.rooms.nan.nixnan.examples import FLASH


def test_types_come_from_the_opcode_and_the_operand():
    assert [type_of("HMMA.16816.F32.BF16", n) for n in range(4)] == ["f32", "bf16", "bf16", "f32"]
    assert [type_of("HMMA.16816.F32", n) for n in range(4)] == ["f32", "f16", "f16", "f32"]
    assert (
        type_of("FFMA.FTZ", 2) == "f32"
        and type_of("STG.E.128", 1) is None
        and type_of("DMMA.884", 1) == "f64"
    )
    assert opcode_of("@!UP0 FFMA.SAT R1, R2") == "FFMA.SAT" and opcode_of("MUFU.RSQ R1") == "MUFU.RSQ"


def test_a_line_whose_printed_type_is_not_the_opcodes_is_flagged(tmp_path):
    found = parse(
        nixgen.write(tmp_path / "a", nixgen.log(nixgen.error(sass="FFMA R1, R2, R3, R4", type="f64")))
    )
    assert found.type_mismatch_lines == 1 and found.sites[0].type == "f32" and found.counts["f64"]["NaN"] == 1


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
