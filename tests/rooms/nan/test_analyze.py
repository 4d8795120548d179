"""Modules grouped by their layer."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")
from lab.rooms.nan.analyze import layer_of


@pytest.mark.parametrize(
    "module, layer",
    [
        ("model.layers.12.self_attn.q_proj", "layer 12"),
        ("transformer.h.3.mlp", "layer 3"),
        ("lm_head", "lm_head"),
        ("", "(the model)"),
    ],
)
def test_modules_are_grouped_by_their_layer(module, layer):
    assert layer_of(module) == layer
