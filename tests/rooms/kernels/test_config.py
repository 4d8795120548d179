"""Parameters of the built-in models."""

from __future__ import annotations

from lab.rooms.kernels.config import MODELS, num_params, sharded_params


def test_parameters_are_those_of_the_published_models():
    assert num_params(MODELS["bloom-560m"].config) == 559_214_592
    assert num_params(MODELS["vicuna-7b"].config) == 6_738_415_616


def test_two_ranks_hold_both_halves_and_each_the_embeddings():
    config = MODELS["vicuna-7b"].config
    assert 2 * sharded_params(config, 2) == num_params(config) + 2 * 32000 * 4096
