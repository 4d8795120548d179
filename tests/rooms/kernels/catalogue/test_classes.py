"""Classes of kernels and of ops."""

from __future__ import annotations

from lab.rooms.kernels.catalogue.classes import class_of, class_of_op, moves_no_data


def test_what_only_loops_is_named_by_its_op():
    assert class_of("void at::native::vectorized_elementwise_kernel<4, X>(int)", "aten::where") == "mask"
    assert (
        class_of("void at::native::vectorized_elementwise_kernel<4, X>(int)", "aten::addmm") == "elementwise"
    )
    assert class_of("nvjet_sm90_hsh_64x8", "aten::add") == "gemm"
    assert class_of_op("c10d::allreduce_") == "comm" and class_of_op("aten::mul") == "elementwise"
    assert moves_no_data("aten::unsqueeze_") and not moves_no_data("aten::mul_")
