"""Parameters of the built-in models; strides and extents of tensors."""

from __future__ import annotations

from lab.rooms.kernels.config import MODELS, num_params, sharded_params
from lab.rooms.kernels.replay.args import contiguous_stride, extent


def test_parameters_are_those_of_the_published_models():
    assert num_params(MODELS["bloom-560m"].config) == 559_214_592
    assert num_params(MODELS["vicuna-7b"].config) == 6_738_415_616


def test_two_ranks_hold_both_halves_and_each_the_embeddings():
    config = MODELS["vicuna-7b"].config
    assert 2 * sharded_params(config, 2) == num_params(config) + 2 * 32000 * 4096


def test_a_storage_reaches_to_the_last_addressed_element():
    assert extent((2, 3), (10, 2)) == 15
    assert extent((4,), (0,)) == 1
    assert extent((0, 5), (5, 1)) == 0


def test_dense_strides_are_row_major():
    assert [contiguous_stride(shape) for shape in ([2, 3, 4], [], [2, 0])] == [(12, 4, 1), (), (1, 1)]
