"""What a kernel or an op is, from its name: GEMM families and the categories of the reports."""

from __future__ import annotations

import re

from lab.trace.views import GEMM_OPS

# First match counts. Tensile's names serve both rocBLAS and hipBLASLt; only the latter passes UserArgs.
_FAMILIES = [
    ("hipBLASLt", re.compile(r"^Cijk_.*UserArgs")),
    ("Tensile", re.compile(r"^Cijk_")),
    ("nvjet", re.compile(r"nvjet")),
    ("cutlass", re.compile(r"cutlass.*gemm|^cutlass|cutlass_\d+_", re.IGNORECASE)),
    ("Triton", re.compile(r"^triton_.*(mm|gemm|matmul)|^(_?matmul|_?gemm)_kernel", re.IGNORECASE)),
    ("CK", re.compile(r"(^|[^a-z])ck(_tile)?::.*gemm|_ZN2ck.*gemm", re.IGNORECASE)),
    ("cuBLAS", re.compile(r"(^|_|::)(s|d|h|c|z|i|b|g)?gemm|gemv|_s\d+gemm_|hmma.*gemm", re.IGNORECASE)),
]
_NOT_GEMM = re.compile(r"flash|fmha|attn|attention|splitKreduce", re.IGNORECASE)

_CATEGORIES = [
    ("SDPA_bwd", re.compile(r"^aten::_scaled_dot_product.*_backward$")),
    # TraceLens knows attention by these ops only; what they launch through other ops is `other`.
    ("SDPA_fwd", re.compile(r"^aten::_scaled_dot_product")),
    ("CONV_bwd", re.compile(r"convolution.*backward")),
    ("CONV_fwd", re.compile(r"^aten::(\w*_)?conv")),
    ("NORM_bwd", re.compile(r"(batch|layer|group|rms)_?norm.*backward")),
    ("NORM_fwd", re.compile(r"^aten::\w*(batch|layer|group|rms)_?norm")),
    ("record_param_comms", re.compile(r"^record_param_comms$")),
]
_KERNEL_CATEGORIES = [
    ("triton", re.compile(r"^triton")),
    ("multi_tensor_apply", re.compile(r"multi_tensor_apply")),
    ("reduce", re.compile(r"at::native::reduce_kernel")),
    ("elementwise", re.compile(r"elementwise_kernel(?!_with_index)")),
]


def family(kernel: str) -> str:
    """The library behind a GEMM kernel, "" for a kernel that is no GEMM."""
    if _NOT_GEMM.search(kernel):
        return ""
    return next((name for name, pattern in _FAMILIES if pattern.search(kernel)), "")


def category(op: str, kernel: str) -> str:
    """The report's category of an op by its name, else by the first kernel that it launched."""
    if op in GEMM_OPS:
        return "GEMM"
    for name, pattern in _CATEGORIES:
        if pattern.search(op):
            return name
    return next((name for name, pattern in _KERNEL_CATEGORIES if pattern.search(kernel)), "other")
