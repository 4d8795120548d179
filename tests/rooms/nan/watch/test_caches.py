"""What a key/value cache of transformers held before a forward, and what that forward put into it."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
cache_utils = pytest.importorskip("transformers.cache_utils")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not hasattr(cache_utils, "StaticLayer"), reason="these caches have no layers"),
]
from torch import nn  # noqa: E402

import lab.nan  # noqa: E402
from lab.rooms.nan.watch.roles import Birth  # noqa: E402
from lab.rooms.nan.watch.watch import _explains  # noqa: E402
from lab.rooms.nan.workload.generate import state_name, state_of  # noqa: E402
from tests.rooms.nan.watch.models import prompt, tiny  # noqa: E402

NAN = float("nan")
WINDOW = 4


def made(kind, model):
    if "sliding" in kind:
        model.config.sliding_window = WINDOW
    if "static" in kind:
        return cache_utils.StaticCache(config=model.config, max_cache_len=48)
    return cache_utils.DynamicCache(config=model.config)


def decode(model, cache, ids, times=1):
    """A forward of the whole prompt, if there is one, then single ones; the cache that came out."""
    for at in range(times):
        given = ids if not at else ids[:, :1]
        cache = state_of(model(input_ids=given, use_cache=True, **{state_name(model): cache}))
    return cache


def keys_go_bad_at(monkeypatch, model, call, how=lambda keys: keys * NAN):
    """The model's own code makes bad keys in one call of its rotary embedding: layer `call` % layers."""
    code, calls = sys.modules[type(model).__module__], [0]
    plain = code.apply_rotary_pos_emb

    def spoiled(query, key, *args, **kwargs):
        query, key = plain(query, key, *args, **kwargs)
        calls[0] += 1
        return query, how(key) if calls[0] - 1 == call else key

    monkeypatch.setattr(code, "apply_rotary_pos_emb", spoiled)


@pytest.mark.parametrize("kind", ["dynamic", "static", "dynamic, sliding", "static, sliding"])
@pytest.mark.parametrize("step", [1, 3])
def test_keys_that_a_forward_made_bad_itself_are_not_said_to_have_been_there(monkeypatch, kind, step):
    model, (ids, _) = tiny("sdpa"), prompt()
    keys_go_bad_at(monkeypatch, model, 4 * step + 1)
    with torch.no_grad(), lab.nan.watch(model) as w:
        decode(model, made(kind, model), ids, times=6)
    assert w.first_step.number == step
    assert (w.first.kind, w.first.module) == ("between", "model.layers.1.self_attn"), w.first.place


@pytest.mark.parametrize("kind", ["dynamic", "static", "dynamic, sliding", "static, sliding"])
def test_keys_that_were_bad_before_are_told_though_later_steps_dropped_them(kind):
    model, (ids, _) = tiny("sdpa"), prompt()
    with torch.no_grad(), lab.nan.watch(model) as w:
        cache = decode(model, made(kind, model), ids, times=3)
        cache.layers[1].keys[:, :, 1] = NAN
        decode(model, cache, ids[:, :1])
        for layer in cache.layers:  # as a window that moves on, or a crop, drops them
            layer.keys.nan_to_num_() if "static" in kind else setattr(layer, "keys", layer.keys.nan_to_num())
        decode(model, cache, ids[:, :1], times=4)
    assert (w.first.kind, w.first.module) == ("cache", "model.layers.1.self_attn"), w.first.place


def test_a_new_cache_is_not_accused_of_what_the_last_one_held(monkeypatch):
    model, (ids, _) = tiny("sdpa"), prompt()
    keys_go_bad_at(monkeypatch, model, 4 * 6 + 1)
    with torch.no_grad(), lab.nan.watch(model) as w:
        cache = decode(model, None, ids, times=3)
        cache.layers[1].values[:, :, 0] = NAN
        decode(model, cache, ids[:, :1], times=2)
        decode(model, None, ids, times=3)
    births = {step.number: step.births[0] for step in w.steps if step.births}
    assert [*births] == [3, 4, 6, 7] or [*births] == [3, 4, 6], births
    assert births[3].kind == births[4].kind == "cache"
    assert (births[6].kind, births[6].module) == ("between", "model.layers.1.self_attn"), births[6].place


class Wrapped(nn.Module):
    """A program's own module around the model: what it takes says nothing of positions."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model(**batch)


@pytest.mark.parametrize("step", [1, 2])
def test_how_much_is_new_in_a_cache_is_known_in_a_model_inside_another(monkeypatch, step):
    model, (ids, _) = tiny("sdpa"), prompt()
    keys_go_bad_at(monkeypatch, model, 4 * step + 1)
    outer, cache = Wrapped(model), made("dynamic", model)
    with torch.no_grad(), lab.nan.watch(outer) as w:
        for at in range(4):
            outer({"input_ids": ids[:, :1] if at else ids, "use_cache": True, state_name(model): cache})
    assert w.first_step.number == step
    assert (w.first.kind, w.first.module) == ("between", "model.model.layers.1.self_attn"), w.first.place


@pytest.mark.skipif(not hasattr(cache_utils, "QuantizedLayer"), reason="no quantized layers")
def test_what_a_quantized_layer_holds_besides_its_newest_keys_is_no_fault_of_attention():
    class Packed(cache_utils.QuantizedLayer):
        def _quantize(self, tensor, axis):
            return tensor.clone(), axis

        def _dequantize(self, packed):
            return packed[0]

    model, (ids, _) = tiny("sdpa"), prompt()
    cache = cache_utils.Cache(layers=[Packed() for _ in range(4)])
    with torch.no_grad(), lab.nan.watch(model) as w:
        decode(model, cache, ids, times=3)
        cache.layers[1]._quantized_values[0][:, :, 0] = NAN
        decode(model, cache, ids[:, :1])
    assert (w.first.kind, w.first.module) == ("unknown", "model.layers.1.self_attn"), w.first.place
    assert "holds bad numbers" in w.first.unsure


def test_a_cache_that_a_forward_of_unknown_place_spoiled_does_not_explain_it():
    unknown = Birth("model.layers.0", "unknown", "args[0]", unsure="it was overwritten")
    cache = Birth("model.layers.0.self_attn", "cache", "args[0]", since_step=1)
    assert not _explains(cache, unknown, 1) and _explains(cache, unknown, 2)
