"""Mitigations that people try, as data: what is set, and what that is known to change."""

from __future__ import annotations

from typing import NamedTuple


class Mitigation(NamedTuple):
    """env: variables, and the libraries that read them; settings: names in `workload.effects.SETTINGS`."""

    env: dict[str, str]
    changes: str
    settings: tuple[str, ...] = ()
    read_by: str = ""


CUDA_LIBRARY = r"libcuda\.so|libcudart"
NCCL = r"libnccl|librccl|libtorch_cuda|libtorch_hip"
TORCH_GPU = r"libc10_cuda|libc10_hip"
MITIGATIONS = {
    "none": Mitigation({}, "nothing: the baseline"),
    "tf32_off": Mitigation(
        {"NVIDIA_TF32_OVERRIDE": "0"},
        "float32 matmuls and convolutions of cuBLAS and cuDNN in full precision, whatever the program asks",
        read_by=r"libcublas|libcudnn",
    ),
    "tf32_torch_off": Mitigation(
        {},
        "torch asks cuBLAS and cuDNN for full float32, until the program asks otherwise",
        ("tf32_torch_off",),
    ),
    "deterministic": Mitigation(
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        "torch takes deterministic forms where it has them, and warns where not; slower, fills empty memory; "
        "not flash attention's backward, which turns deterministic only where torch may raise",
        ("deterministic",),
    ),
    "deterministic_strict": Mitigation(
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        "the same with flash attention's backward; torch raises at an operator without a deterministic form",
        ("deterministic_strict",),
    ),
    "cudnn_deterministic": Mitigation(
        {}, "cuDNN neither times its algorithms nor takes one that adds by atomics", ("cudnn_deterministic",)
    ),
    "flash_off": Mitigation({}, "scaled_dot_product_attention does not take flash attention", ("flash_off",)),
    "sdpa_math": Mitigation(
        {}, "scaled_dot_product_attention by plain matmuls and softmax: slower, more memory", ("sdpa_math",)
    ),
    "anomaly": Mitigation(
        {}, "autograd checks every gradient for NaN and raises there; slower", ("anomaly",)
    ),
    "cublas_workspace": Mitigation(
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        "a fixed cuBLAS workspace: the same split of a matmul on every stream",
        read_by=r"libcublas",
    ),
    "launch_blocking": Mitigation(
        {"CUDA_LAUNCH_BLOCKING": "1"},
        "every launch waits: hides races between streams, and slows",
        read_by=CUDA_LIBRARY,
    ),
    "launch_blocking_hip": Mitigation(
        {"AMD_SERIALIZE_KERNEL": "3", "HIP_LAUNCH_BLOCKING": "1"},
        "on ROCm: every kernel waits: hides races between streams, and slows",
        read_by=r"libamdhip64",
    ),
    "nccl_ring": Mitigation(
        {"NCCL_ALGO": "Ring"},
        "one algorithm for all collectives: the order of sums follows the topology",
        read_by=NCCL,
    ),
    "nccl_tree": Mitigation(
        {"NCCL_ALGO": "Tree"}, "sums of collectives along trees: another order", read_by=NCCL
    ),
    "nccl_simple": Mitigation(
        {"NCCL_PROTO": "Simple"}, "no LL or LL128 protocol in collectives", read_by=NCCL
    ),
    "nccl_no_p2p": Mitigation(
        {"NCCL_P2P_DISABLE": "1"}, "no direct copies between GPUs: through the host", read_by=NCCL
    ),
    "nccl_no_nvls": Mitigation({"NCCL_NVLS_ENABLE": "0"}, "no sums inside the NVLink switch", read_by=NCCL),
    "one_queue": Mitigation(
        {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        "one hardware queue: launches of all streams keep their order",
        read_by=CUDA_LIBRARY,
    ),
    "no_caching_allocator": Mitigation(
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        "torch frees at once: hides or moves a use of memory after its end, and slows",
        read_by=TORCH_GPU,
    ),
    "expandable_segments": Mitigation(
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "torch's allocator grows its segments: other addresses, less fragmentation",
        read_by=TORCH_GPU,
    ),
    "one_thread": Mitigation(
        {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        "CPU sums in one order, and slower",
        read_by=r"libgomp|libiomp|libomp|libmkl",
    ),
}
