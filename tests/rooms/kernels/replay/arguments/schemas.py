"""Schemas as torch prints them."""

from __future__ import annotations

SCALAR_MUL = "aten::mul.Scalar(Tensor self, Scalar other) -> Tensor"


SUM = (
    "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
)


EMBEDDING = (
    "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, "
    "bool sparse=False) -> Tensor"
)


INDEX = "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor"


COPY = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
