"""Mitigations that people try, as data: what is set, and what that is known to change."""

from __future__ import annotations

from typing import NamedTuple


class Mitigation(NamedTuple):
    env: dict[str, str]
    changes: str


MITIGATIONS = {
    "none": Mitigation({}, "nothing: the baseline"),
    "tf32_off": Mitigation(
        {"NVIDIA_TF32_OVERRIDE": "0"},
        "float32 matmuls and convolutions of cuBLAS and cuDNN in full precision, whatever the program asks",
    ),
    "cublas_workspace": Mitigation(
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        "a fixed cuBLAS workspace: the same split of a matmul on every stream",
    ),
    "launch_blocking": Mitigation(
        {"CUDA_LAUNCH_BLOCKING": "1"}, "every launch waits: hides races between streams, and slows"
    ),
    "launch_blocking_hip": Mitigation(
        {"AMD_SERIALIZE_KERNEL": "3", "HIP_LAUNCH_BLOCKING": "1"},
        "on ROCm: every kernel waits: hides races between streams, and slows",
    ),
    "nccl_ring": Mitigation(
        {"NCCL_ALGO": "Ring"}, "one algorithm for all collectives: the order of sums follows the topology"
    ),
    "nccl_simple": Mitigation({"NCCL_PROTO": "Simple"}, "no LL or LL128 protocol in collectives"),
    "nccl_no_p2p": Mitigation({"NCCL_P2P_DISABLE": "1"}, "no direct copies between GPUs: through the host"),
    "one_queue": Mitigation(
        {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "one hardware queue: launches of all streams keep their order"
    ),
    "no_caching_allocator": Mitigation(
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        "torch frees at once: hides or moves a use of memory after its end, and slows",
    ),
    "expandable_segments": Mitigation(
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "torch's allocator grows its segments: other addresses, less fragmentation",
    ),
    "one_thread": Mitigation(
        {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, "CPU sums in one order, and slower"
    ),
}
