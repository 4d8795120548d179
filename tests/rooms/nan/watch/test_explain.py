"""Births in weights, caches and inputs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
import lab.nan  # noqa: E402
from lab.rooms.nan.workload.generate import forward  # noqa: E402
from tests.rooms.nan.watch.models import Body, prompt, tiny, watched  # noqa: E402


def test_a_bad_weight_is_found_before_any_forward_and_named_as_the_birth():
    body = Body()
    with torch.no_grad():
        body.second.weight[0, 0] = float("nan")
    w = watched(body, torch.ones(2, 4))
    assert [one["name"] for one in w.weights] == ["second.weight"]
    assert (w.first.module, w.first.how) == ("second", "weights")


def test_bad_inputs_are_nobodys_birth_but_given():
    w = watched(Body(), torch.full((2, 4), float("inf")))
    assert w.first.how == "given" and "inputs" in w.first.place


def test_a_bad_cache_is_told_as_the_cache_and_not_as_a_new_birth():
    model = tiny()
    ids, mask = prompt()
    with torch.no_grad(), lab.nan.watch(model) as w:
        state = forward(model, ids, mask).past_key_values
        state.layers[1].values[..., 0, :] = float("nan")
        longer = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        forward(model, ids[:, :1], longer, state)
    assert w.steps[0].births == [] and w.first_step.phase == "decode"
    assert (w.first.module, w.first.how) == ("model.layers.1.self_attn", "cache")
