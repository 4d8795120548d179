"""Strides and extents of tensors."""

from __future__ import annotations

from lab.rooms.kernels.tensors import contiguous_stride, extent


def test_a_storage_reaches_to_the_last_addressed_element():
    assert extent((2, 3), (10, 2)) == 15
    assert extent((4,), (0,)) == 1
    assert extent((0, 5), (5, 1)) == 0
    assert contiguous_stride((2, 3, 4)) == (12, 4, 1)


def test_dense_strides_are_row_major():
    assert [contiguous_stride(shape) for shape in ([2, 3, 4], [], [2, 0])] == [(12, 4, 1), (), (1, 1)]
