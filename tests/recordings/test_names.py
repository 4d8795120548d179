"""Kernel classes and short names, in both collectors' spellings."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.recordings.names import CLASSES, gemm_library, is_matmul, kernel_class, short_dims, short_name

XMMA = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4"
ATEN = "void at::native::"
ATEN_ANONYMOUS = "void at::native::(anonymous namespace)::"

SAME_KERNEL = [  # as nsys spells it, as Kineto does, its class, its short name
    (
        ATEN + "vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<float, float, float, "
        "at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)3>>(int, T2, T3)",
        ATEN + "vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
        "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, at::native::"
        "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >)",
        "elementwise",
        "vectorized_elementwise_kernel<MulFunctor>",
    ),
    (
        "void <unnamed>::softmax_warp_forward<float, float, float, (int)8, (bool)0, (bool)0>"
        "(T2 *, const T1 *)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*)",
        "softmax",
        "softmax_warp_forward",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(T1::Params)",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>"
        "(cutlass_80_simt_sgemm_128x256_8x4_nt_align1::Params)",
        "gemm",
        "Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>",
    ),
    (
        ATEN + "unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
        "[lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 1)], (int)4>(int, T1)",
        ATEN + "unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
        "{lambda()#3}::operator()() const::{lambda(float)#1}, 4>(int)",
        "copy",
        "unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
    ),
    (
        ATEN + "<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, "
        "at::native::<unnamed>::UnaryOpFunctor<float, (int)2>>(T1, T2)",
        ATEN + "(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "TensorListMetadata<2>, at::native::(anonymous namespace)::UnaryOpFunctor<float, 2> >()",
        "optimizer",
        "multi_tensor_apply_kernel<UnaryOpFunctor>",
    ),
]

CLASSES_OF_NAMES = [
    (f"{XMMA}_execute_kernel__5x_cublas", "gemm"),
    (f"{XMMA}_execute_split_k_kernel__5x_cublas", "splitk_reduce"),
    ("void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float>(cublasLt::T1)", "splitk_reduce"),
    ("nvjet_sm90_hsh_64x16_64x16_4x1_v_bz_splitK_bias_TNT", "gemm"),
    ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64>>", "attention"),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>", "attention"),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "attention"),
    ("_ZN7ck_tile6kentryINS_13FmhaFwdKernelE", "attention"),
    ("sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x16", "conv"),
    (
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28Grid",
        "conv",
    ),
    ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN", "gemm"),
    ("Cijk_S_GA_PostGSU4_VW4", "splitk_reduce"),
    ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __half>", "gemv"),
    ("void kgemm_4bit_inference_naive<__half, 128, 16>(int)", "quant"),
    ("triton_poi_fused__softmax_add_mul_3", "triton"),
    ("triton_tem_fused_mm_7", "gemm"),
    ("triton_tem_fused_flex_attention_0", "attention"),
    (
        ATEN_ANONYMOUS + "multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float>>",
        "copy",
    ),
    (
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int)",
        "norm",
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>",
        "reduce",
    ),
    (
        ATEN + "vectorized_elementwise_kernel<2, at::native::(anonymous namespace)::where_kernel_impl(a)",
        "mask",
    ),
    ("void at::native::triu_tril_kernel<float, int, false, 1>(int)", "mask"),
    (
        "void (anonymous namespace)::elementwise_kernel_with_index"
        "<int, at::native::arange_cuda_out(c10::Scalar)",
        "elementwise",
    ),
    ("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)", "index"),
    ("void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>", "rng"),
    ("void vllm::rotary_embedding_kernel<c10::Half, true>(long const*)", "rope"),
    ("Memcpy HtoD (Pageable -> Device)", "memcpy"),
    ("[CUDA memcpy Host-to-Device]", "memcpy"),
    ("Memset (Device)", "memset"),
    ("[CUDA memset]", "memset"),
    ("void ", "other"),
    ("", "other"),
]


@pytest.mark.parametrize(("nsys", "kineto", "kind", "short"), SAME_KERNEL)
def test_both_collectors_spellings_give_the_same_class_and_short_name(nsys, kineto, kind, short):
    assert (kernel_class(nsys), kernel_class(kineto)) == (kind, kind)
    assert (short_name(nsys), short_name(kineto)) == (short, short)


@pytest.mark.parametrize(("name", "kind"), CLASSES_OF_NAMES)
def test_a_kernel_has_the_class_that_its_name_tells(name, kind):
    assert kernel_class(name) == kind


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, __half, (bool)0>(T1)",
            "gemvx::kernel",
        ),
        (
            ATEN + "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(R)",
            "reduce_kernel<MeanOps>",
        ),
        ("_ZN2ck16tensor_operation6device12_GLOBAL__N_111kernel_convINS_3FooE", "kernel_conv"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("void cutlass::Kernel2", "Kernel2"),
        ("void ", "void"),
        ("(odd", "(odd"),
    ],
)
def test_a_short_name_keeps_what_tells_kernels_apart(name, short):
    assert short_name(name) == short


def test_a_split_k_sum_and_an_attention_kernel_are_no_matrix_product():
    assert is_matmul(f"{XMMA}_execute_kernel__5x_cublas")
    assert is_matmul("nvjet_sm90_hsh_64x16_64x16_4x1_v_bz_splitK_bias_TNT")
    assert is_matmul("void kgemm_4bit_inference_naive<__half>")
    assert not is_matmul(f"{XMMA}_execute_split_k_kernel__5x_cublas")
    assert not is_matmul("void pytorch_flash::flash_fwd_kernel")


def test_a_split_k_sum_belongs_to_no_gemm_library():
    assert gemm_library(f"{XMMA}_execute_split_k_kernel__5x_cublas") == ""
    assert gemm_library(f"{XMMA}_execute_kernel__5x_cublas") == "cuBLAS"


@given(st.text(max_size=60) | st.text(alphabet="_ZN019a<>(){}[]:, void&*", max_size=60))
def test_any_text_has_a_class_and_a_short_name(name):
    assert kernel_class(name) in CLASSES
    assert bool(short_name(name)) == bool(name)


@pytest.mark.data
def test_no_kernel_of_the_recorded_transformers_is_left_over(shared_data):
    names = set(_kineto_names(shared_data / "kernels_h200" / "cs336_small_training.json.gz"))
    names |= set(_kineto_names(shared_data / "kernels_h200" / "bloom560m_generate.json.gz"))
    names |= set(_nsys_names(shared_data / "nsys_h200" / "transformer_2layer.sqlite.gz"))
    assert {name for name in names if kernel_class(name) == "other"} == set()
    assert len({short_name(name) for name in names}) > 50


def _kineto_names(path):
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "kernel"]


def _nsys_names(path):
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(gzip.decompress(path.read_bytes()))
        file.flush()
        rows = sqlite3.connect(file.name).execute(
            "SELECT DISTINCT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
        )
        return [name for (name,) in rows]


@pytest.mark.parametrize(
    ("dims", "short"),
    [
        ("[[64],[8,64],[],[]]", "[[64],[8,64]]"),
        ("[[64], [], [8], []]", "[[64], [], [8]]"),
        ("[[[4],[4]],[]]", "[[[4],[4]]]"),
        ("[[],[]]", "[[]]"),
        ("[]", "[]"),
        ("", ""),
    ],
)
def test_shapes_in_a_sentence_end_with_the_last_tensor(dims, short):
    assert short_dims(dims) == short
