"""Sums over the catalogue."""

from __future__ import annotations

from lab.rooms.kernels import analyze


def test_layers_of_a_model_fold_into_one():
    assert analyze.folded("transformer.h.12.mlp.dense_4h_to_h") == "transformer.h.*.mlp.dense_4h_to_h"
    assert analyze.folded("model.layers.0") == "model.layers.*" and analyze.folded("lm_head2") == "lm_head2"
