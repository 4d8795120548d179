"""Families of GEMM kernels and categories of ops, from their names."""

from __future__ import annotations

import re
from functools import lru_cache

from lab.perfmodel.products import is_product
from lab.recordings.names import gemm_library as family

__all__ = ["category", "family"]

_CATEGORIES = [
    ("SDPA_bwd", re.compile(r"^aten::_scaled_dot_product.*_backward$")),
    # TraceLens recognises attention by these ops only; what they launch through other ops is `other`.
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


@lru_cache(maxsize=65536)  # a trace names a few hundred kernels, thousands of times
def category(op: str, kernel: str) -> str:
    """The report's category of an op by its name, else by the first kernel that it launched."""
    if is_product(op):
        return "GEMM"
    for name, pattern in _CATEGORIES:
        if pattern.search(op):
            return name
    return next((name for name, pattern in _KERNEL_CATEGORIES if pattern.search(kernel)), "other")
