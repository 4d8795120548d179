"""Classes of GPU rows: by the op that launched them, then by the kernel's name."""

from __future__ import annotations

import pytest

from lab.perfmodel.classes import (
    CLASSES,
    class_of_launch,
    kernel_class,
    moves_no_data,
    op_class,
    works_itself,
)

LOOP, FILL = "void at::native::vectorized_elementwise_kernel<4, X>(int)", "Memset (Device)"
FUSED_EXPERTS = "vllm::inplace_fused_experts"


@pytest.mark.parametrize(
    ("kernel", "op", "kind"),
    [
        (LOOP, "aten::where", "mask"),
        (LOOP, "aten::addmm", "elementwise"),  # its bias
        (LOOP, "_C::silu_and_mul", "elementwise"),
        (FILL, "aten::mm", "memset"),
        ("nvjet_sm90_hsh_64x8", "aten::add", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32>", "aten::mm", "splitk_reduce"),
        ("an_unheard_of_kernel", "aten::mm", "gemm"),
        ("an_unheard_of_kernel", "aiter::gemm_a8w8", "gemm"),
        ("an_unheard_of_kernel", "aiter::mla_decode_fwd", "attention"),
        ("an_unheard_of_kernel", "sgl_kernel::fwd", "attention"),
        ("an_unheard_of_kernel", "_C::fused_add_rms_norm", "norm"),
        ("an_unheard_of_kernel", "mamba_ssm::selective_scan_fwd", "scan"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x64x64", "aten::miopen_convolution", "conv"),
        ("batched_transpose_32x32_half", "aten::miopen_convolution", "copy"),
        ("void dot_kernel<float>", "aten::dot", "gemv"),
        ("moe_align_block_size_kernel", FUSED_EXPERTS, "index"),
        ("fused_moe_kernel", FUSED_EXPERTS, "gemm"),
        ("an_unheard_of_kernel", FUSED_EXPERTS, "gemm"),
        ("ncclDevKernel_AllReduce_Sum_bf16", "aten::mm", "comm"),
        ("an_unheard_of_kernel", "c10d::allreduce_", "comm"),
        ("triton_poi_fused_native_layer_norm_0", "triton_poi_fused_native_layer_norm_0", "triton"),
        ("an_unheard_of_kernel", "mylib::secret", "other"),
        ("void (anonymous namespace)::store_kvcache<2048l, 4>", "", "copy"),
        ("void flashinfer::sampling::TopPSamplingFromProbKernel<1024>", "", "rng"),
        ("void at::native::upsample_nearest2d_out_frame<float>", "", "elementwise"),
        ("Im2d2Col_v2", "", "conv"),
        ("wvSplitK_hf_sml_<__hip_bfloat16>", "", "gemm"),
        ("ck_moe_stage1_2stages", "", "gemm"),
        ("void moe::dev::routing::routingDeepSeek::routingMainKernel", "", "index"),
        ("chunk_gated_delta_rule_fwd_kernel_h", "", "scan"),
    ],
)
def test_the_op_decides_first(kernel, op, kind):
    assert kernel_class(kernel, op) == kind and kind in CLASSES


def test_a_cpu_op_stands_for_a_launch_by_its_own_class():
    assert class_of_launch("", "aten::mul", "cpu_op") == "elementwise"
    assert class_of_launch("", "aten::bmm", "cpu_op") == "gemm"
    assert class_of_launch("x", "aten::mm", "memcpy") == "memcpy"
    assert op_class("ProfilerStep#3") == "" and op_class("FlashAttnFunc") == "attention"
    assert moves_no_data("aten::unsqueeze_") and not moves_no_data("aten::mul_")
    assert works_itself("aten::addmm") and not works_itself("aten::linear")
