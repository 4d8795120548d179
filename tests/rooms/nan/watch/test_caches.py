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
import lab.nan  # noqa: E402
from lab.rooms.nan.workload.model import state_name, state_of  # noqa: E402
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


@pytest.mark.parametrize("kind", ["dynamic", "static", "dynamic, sliding"])
def test_a_cache_that_is_finite_is_not_suspected(monkeypatch, kind):
    # eager, because torch's fused attention on a CPU may make finite numbers of a query that is NaN
    model, (ids, _) = tiny("eager"), prompt()
    code, calls = sys.modules[type(model).__module__], [0]
    plain = code.apply_rotary_pos_emb

    def spoiled(query, key, *args, **kwargs):
        query, key = plain(query, key, *args, **kwargs)
        calls[0] += 1
        return query * (NAN if calls[0] == 4 * 3 + 2 else 1), key

    monkeypatch.setattr(code, "apply_rotary_pos_emb", spoiled)
    with torch.no_grad(), lab.nan.watch(model) as w:
        decode(model, made(kind, model), ids, times=6)
    assert (w.first_step.number, w.first.kind, w.first.module) == (3, "between", "model.layers.1.self_attn")


@pytest.mark.parametrize("kind", ["dynamic", "static", "dynamic, sliding"])
def test_attention_is_not_named_for_certain_where_its_cache_holds_bad_numbers(kind):
    model, (ids, _) = tiny("sdpa"), prompt()
    with torch.no_grad(), lab.nan.watch(model) as w:
        cache = decode(model, made(kind, model), ids, times=3)
        cache.layers[1].keys[:, :, 1] = NAN
        decode(model, cache, ids[:, :1])
    assert (w.first.kind, w.first.module) == ("unknown", "model.layers.1.self_attn"), w.first.place
    assert "the key/value cache of model.layers.1.self_attn holds bad numbers" in w.first.unsure


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
