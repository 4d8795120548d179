"""Tensors over recorded storages."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.workload.replay.order import Memory  # noqa: E402
from tests.rooms.kernels.workload.replay.made import CPU, spec  # noqa: E402


def test_tensors_of_one_storage_share_memory_and_an_op_moves_a_storage_to_its_result():
    memory = Memory(CPU)
    a = memory.tensor((0, 0), spec(shape=(4,), stride=(1,)), 7, 0)
    b = memory.tensor((1, 0), spec(shape=(2,), stride=(1,)), 7, 2)
    a[2] = 5.0
    assert float(b[0]) == 5.0
    result = torch.full((4,), 3.0)
    memory.buffers[7] = result.untyped_storage()
    assert float(memory.tensor((2, 0), spec(shape=(4,), stride=(1,)), 7, 0)[0]) == 3.0


def test_a_storage_that_is_too_small_is_made_again_and_kept_for_the_next_pass():
    memory = Memory(CPU)
    memory.tensor((0, 0), spec(shape=(4,), stride=(1,)), 7, 0)
    big = memory.tensor((1, 0), spec(shape=(400,), stride=(1,)), 7, 0)
    del memory.buffers[7]
    assert memory.tensor((1, 0), spec(shape=(400,), stride=(1,)), 7, 0).data_ptr() == big.data_ptr()
