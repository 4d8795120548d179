"""Data sheets: exact names, whole boards only, and the rate that a kernel competes with."""

from __future__ import annotations

import pytest

from lab.perfmodel.boards import Roof, board_of, boards, excess_of, matrix_rate, vector_rate

GEMM, SIMT = "sm90_xmma_gemm_bf16bf16_bf16f32", "cutlass_80_simt_sgemm_128x128_8x4_nn_align1"
TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_tensor16x8x8_kernel"


@pytest.mark.parametrize(
    ("name", "dtype", "kernels", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "c10::BFloat16", GEMM, 989.5),
        ("NVIDIA H100 80GB HBM3", "float", TF32, 494.7),
        ("NVIDIA H100 80GB HBM3", "float", SIMT, 66.9),
        ("NVIDIA H100 80GB HBM3", "float", "triton_mm", None),  # vector units or TF32: its name does not say
        ("NVIDIA H100 80GB HBM3", "float", "nvjet_sss_128x64 ; splitKreduce_kernel", None),
        ("NVIDIA H100 80GB HBM3", "c10::Float8_e4m3fn", "nvjet", 1979.0),
        ("NVIDIA H100 80GB HBM3", "signed char", "imma_gemm", 1979.0),
        ("NVIDIA H100 80GB HBM3", "double", "dgemm", 66.9),
        ("NVIDIA H100 NVL", "c10::BFloat16", GEMM, 835.5),
        ("NVIDIA GB200", "c10::Half", GEMM, 2500.0),
        ("NVIDIA GeForce GTX 1080 Ti", "c10::Half", "maxwell_fp16_sgemm_fp16_128x64_tn", 11.34),
        ("NVIDIA GeForce GTX 1080 Ti", "float16", "maxwell_hgemm_128x64_tn", 0.177),
        ("GeForce GTX 1080 Ti", "float32", "maxwell_sgemm_128x64_nn", 11.34),
        ("NVIDIA GeForce RTX 3090", "float16", "ampere_h16816gemm_128x64", 142.0),
        ("NVIDIA GeForce RTX 3090", "float16", "ampere_fp16_s16816gemm_fp16", 71.0),
        ("NVIDIA A100-SXM4-80GB", "float8_e5m2", "gemm", None),  # it has no float8
        ("AMD Instinct MI250X", "c10::BFloat16", "Cijk_BBS_MT256x256x64_MI16x16x1", 191.5),
        ("AMD Instinct MI250X", "float", "Cijk_SB_MT64x64x8_MI16x16x4x1", 47.85),
        ("AMD Instinct MI300X", "float", "Cijk_S_MX_B_MT128_MI16x16x8", 653.7),
        ("Tesla P100-PCIE-16GB", "float16", "maxwell_hgemm", 18.7),
        ("Tesla V100-SXM2-16GB", "bfloat16", "volta_sgemm", None),
    ],
)
def test_the_peak_is_that_of_the_units_a_kernel_uses(name, dtype, kernels, tflops):
    board = board_of(name)
    peak = board.flops_per_s(matrix_rate(board, dtype, kernels))
    assert (peak and peak / 1e12) == pytest.approx(tflops)


def test_a_device_is_found_by_its_whole_name_and_only_as_a_whole():
    known = "NVIDIA A100-SXM4-40GB"
    assert board_of(known).bytes_per_s == 1.555e12 and board_of(known, 108) is board_of(known.lower())
    assert board_of(known, 14) is None  # a MIG slice
    assert board_of(known, 98) and board_of(known, 97) is None  # 108 of a whole board
    assert board_of(known + " MIG 1g.5gb") is None and board_of("NVIDIA A100") is None
    assert board_of("AMD Instinct MI300X", 38) is None and board_of("AMD Instinct MI300X", 304)  # CPX
    assert board_of("") is None and board_of("Voodoo 2") is None


def test_elementwise_work_competes_with_vector_units_in_float32():
    board = board_of("NVIDIA H200")
    assert board.tflops[vector_rate(board, "c10::BFloat16")] == 66.9
    assert board.tflops[vector_rate(board, "double")] == 33.5


def test_no_sheet_promises_less_of_a_narrower_type():
    order = ("fp64", "fp32", "tf32", "fp16", "fp8", "fp4")
    for board in boards().values():
        rates = [board.tflops[rate] for rate in order if rate in board.tflops]
        assert rates == sorted(rates) and min(rates) > 0, board.names
        assert 0 < board.tb_per_s < 10 and board.source and board.multiprocessors > 0
        assert set(board.tflops) <= {
            *order,
            "fp64_matrix",
            "fp32_matrix",
            "fp16_vector",
            "fp16_acc16",
            "bf16",
            "int8",
        }


@pytest.mark.parametrize(
    ("compute_s", "memory_s", "begin"),
    [
        (1.004, 0.0, ""),
        (1.006, 0.0, "101 % of the fp16 peak"),
        (0.5, 1.004, ""),
        (0.5, 1.006, "faster than memory"),
    ],
)
def test_half_a_percent_above_a_roof_is_rounding(compute_s, memory_s, begin):
    text = excess_of(Roof("fp16", 1e15, compute_s, memory_s), 1.0)
    assert text.startswith(begin) and bool(text) is bool(begin)
