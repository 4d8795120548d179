"""When two groups of launches are the same."""

from __future__ import annotations

import msgspec

from lab.rooms.kernels.replay.proof.rows import compare
from tests.rooms.kernels.replay.made import FILL, GEMM, REDUCE


def test_the_same_kernel_is_the_same_name_grid_block_and_shared_memory():
    assert compare([GEMM, REDUCE], [GEMM, REDUCE]) == "exact"
    assert compare([GEMM], [msgspec.structs.replace(GEMM, grid=(5, 1, 1))]) == "other geometry"
    assert compare([GEMM], [msgspec.structs.replace(GEMM, smem_bytes=0)]) == "other geometry"
    assert compare([GEMM], [REDUCE]) == "other kernel"
    assert compare([GEMM, REDUCE], [REDUCE, GEMM]) == "other kernel"
    assert compare([GEMM, REDUCE], [GEMM]) == "other kernel"
    assert compare([GEMM], []) == "nothing launched"


def test_copies_compare_by_kind_name_and_bytes():
    assert compare([FILL], [msgspec.structs.replace(FILL, bytes=8)]) == "other geometry"
    assert compare([FILL], [FILL]) == "exact"
