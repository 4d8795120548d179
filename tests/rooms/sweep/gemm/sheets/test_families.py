"""GEMM libraries by the names of their kernels."""

from __future__ import annotations

import pytest

from lab.rooms.sweep.gemm.sheets import families


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "nvjet"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT128x224x64", "hipBLASLt"),
        ("Cijk_Alik_Bljk_SB_MT64x64x16", "Tensile"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_tn>", "cutlass"),
        ("ampere_sgemm_128x64_tn", "cuBLAS"),
        ("void gemv2T_kernel_val<int, int, float>", "cuBLAS"),
        ("triton_tem_fused_mm_3", "Triton"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", ""),
        ("void at::native::vectorized_elementwise_kernel<4>", ""),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", ""),
        ("void cutlass::fmha_cutlassF_f16_aligned_64x64_rf_sm80", ""),
    ],
)
def test_gemm_families_are_told_by_their_kernel(kernel, family):
    assert families.family(kernel) == family
