"""Tensors made again: strides, dtypes, bounds, data."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.workload.replay.build import make, pattern  # noqa: E402
from tests.rooms.kernels.workload.replay.made import CPU, spec  # noqa: E402

DTYPES = "float16 bfloat16 float32 float64 int64 int32 uint8 bool complex64 float8_e4m3fn"


def test_a_tensor_has_its_strides_overlap_and_alignment():
    made = make("", spec(shape=(2, 3), stride=(0, 2), align_bytes=8), CPU, 0)
    assert (made.shape, made.stride(), made.storage_offset()) == ((2, 3), (0, 2), 2)
    assert made.untyped_storage().nbytes() == 4 * (2 + 5)


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_every_dtype_can_be_filled(dtype):
    assert make("", spec(dtype, shape=(5,), stride=(1,)), CPU, 3).dtype is getattr(torch, dtype)


def test_an_empty_tensor_can_be_made():
    assert make("", spec(shape=(0,), stride=(1,)), CPU, 0).numel() == 0


def test_indices_stay_within_their_bounds():
    made = make("", spec("int64", shape=(1000,), stride=(1,), low=2, high=6), CPU, 0)
    assert (int(made.min()), int(made.max())) == (2, 6)


def test_data_are_the_same_each_time_and_spread_like_random_ones():
    table = pattern(CPU)
    assert float(table.mean().abs()) < 0.01 and 0.56 < float(table.std()) < 0.6
    assert torch.equal(make("", spec(), CPU, 1), make("", spec(), CPU, 1))
    assert not torch.equal(make("", spec(), CPU, 1), make("", spec(), CPU, 2))
