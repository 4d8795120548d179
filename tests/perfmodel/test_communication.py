"""What a communication kernel is, by its name."""

from __future__ import annotations

import pytest

from lab.perfmodel.communication import communication
from lab.recordings.names import kernel_class

NAMES = [
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "p2p"),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
    ("ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16(ncclSymkDevWorkArgs)", "all_reduce"),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgs*)", ""),
    ("mscclKernel_Sum_half_Simple_1(ncclDevComm*)", ""),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)", "all_reduce"),
    ("void sglang::cross_device_reduce_2stage<half, 8>(RankData*)", "all_reduce"),
    ("aiter::cross_device_reduce_2stage_write_mode<__hip_bfloat16, 8>", "all_reduce"),
    ("void quickreduce::allreduce_prototype_twoshot<T>(...)", "all_reduce"),
    (
        "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<T>(x)",
        "all_reduce",
    ),
    ("void one_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(x)", "all_reduce"),
    ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(x)", "all_reduce"),
    ("void multimem_one_shot_all_reduce_kernel<float, 16>(x)", "all_reduce"),
    ("void multimem_all_gather_kernel<16>(x)", "all_gather"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "all_to_all"),
    ("void primus_turbo::deep_ep::internode::combine<T>(int4*)", "all_to_all"),
    ("void deep_ep::internode_ll::dispatch<true, 7168>(void*)", "all_to_all"),
    ("EpDispatchIntraNodeKernel<hip_bfloat16>", "all_to_all"),
    ("mscclpp::collective::allreducePacket<half>(x)", "all_reduce"),
    ("mscclpp::collective::alltoallvKernel(x)", "all_to_all"),
    ("mscclpp::collective::allgatherFullmesh2(x)", "all_gather"),
    ("nvshmemi_transfer_rma<...>", ""),
]
LOCAL = [
    "__amd_rocclr_copyBuffer",
    "__amd_rocclr_fillBufferAligned",
    "void cub::DeviceReduceKernel<x>(y)",
    "void splitKreduce_kernel<32, 16>(x)",
    "triton_red_fused_all_reduce_sum_0",
    "void deep_ep::layout::get_dispatch_layout<256>(x)",
    "void at::native::reduce_kernel<512, 1>(x)",
    "void dispatch_rows<float>(x)",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<x>(y)",
]


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_every_library_is_known_with_its_kind(name, kind):
    found = communication(name)
    assert found is not None and found.kind == kind
    assert kernel_class(name) == "comm"


@pytest.mark.parametrize("name", LOCAL)
def test_words_of_communication_in_local_kernels_do_not_count(name):
    assert communication(name) is None and kernel_class(name) != "comm"


def test_a_fused_norm_blocks_and_low_latency_sends_do_not():
    fused = communication("trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<x>")
    sent = communication("void deep_ep::internode_ll::combine<7168>(x)")
    assert fused is not None and fused.blocking
    assert sent is not None and not sent.blocking
