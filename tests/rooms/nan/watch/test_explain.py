"""Births in weights, caches and inputs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
import lab.nan  # noqa: E402
from tests.rooms.nan.watch.models import Body, watched  # noqa: E402


def test_a_bad_weight_is_found_before_any_forward_and_named_as_the_birth():
    body = Body()
    with torch.no_grad():
        body.second.weight[0, 0] = float("nan")
    w = watched(body, torch.ones(2, 4))
    assert [one["name"] for one in w.weights] == ["second.weight"]
    assert (w.first.module, w.first.kind) == ("second", "weights")


def test_bad_inputs_are_nobodys_birth_but_given():
    w = watched(Body(), torch.full((2, 4), float("inf")))
    assert w.first.kind == "given" and "inputs" in w.first.place


def bad_from_the_second_call(model, given, bad):
    """(how, module, why it is not certain) of the first birth; the first calls make templates."""
    x = torch.randn(2, 4)
    with torch.no_grad(), lab.nan.watch(model) as w:
        for number in range(4):
            model(x, **{name: bad if number == 3 else value for name, value in given.items()})
    assert w.status == "bad" and w.first_step.number == 3
    return w.first.kind, w.first.module, w.first.unsure


class KVCache:
    def __init__(self, keys, values):
        self.keys, self.values = keys, [{"all": values}]


class Attention(torch.nn.Module):
    """Takes keys and values from a cache of one of three layouts."""

    def __init__(self):
        super().__init__()
        self.query, self.out, self.breaks = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), False

    def forward(self, x, kv_cache=None, state=None):
        held = kv_cache if kv_cache is not None else state
        keys, values = held if isinstance(held, tuple) else (held.keys, held.values[0]["all"])
        scores = self.query(x) @ keys.mT * (float("inf") if self.breaks else 1)
        return self.out(torch.softmax(scores, -1) @ values)


class Layers(torch.nn.Module):
    """`numbered`: layers have numbers, as transformers' do. `own`: each takes a cache of its own."""

    def __init__(self, numbered, own):
        super().__init__()
        self.layers, self.own = torch.nn.ModuleList([Attention() for _ in range(3)]), own
        for at, layer in enumerate(self.layers if numbered else ()):
            layer.layer_idx = at

    def forward(self, x, **caches):
        for at, layer in enumerate(self.layers):
            x = layer(x, **({name: held[at] for name, held in caches.items()} if self.own else caches))
        return x


def cache_of(kind, bad=()):
    keys, values = torch.randn(3, 4), torch.randn(3, 4)
    values[[*bad]] = float("nan")
    return (keys, values) if kind is tuple else kind(keys, values)


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("name", ["kv_cache", "cache_of_any_class"])
def test_a_cache_of_any_layout_accuses_no_module_of_what_it_holds(numbered, name):
    kinds = (tuple, KVCache) if name == "kv_cache" else (KVCache,)
    name = name if name == "kv_cache" else "state"
    for kind in kinds:
        caches = [cache_of(kind) for _ in range(3)]
        spoiled = [caches[0], cache_of(kind, (1,)), caches[2]]
        how, module, why = bad_from_the_second_call(Layers(numbered, True), {name: caches}, spoiled)
        assert module == "layers.1"
        assert how == "unknown" and "cache of layers.1 holds bad numbers" in why


def test_a_module_is_named_for_sure_where_its_cache_was_read_and_is_clean():
    for kind in (tuple, KVCache):
        for own in (True, False):
            model, caches = Layers(False, own), [cache_of(kind) for _ in range(3)] if own else cache_of(kind)
            with torch.no_grad(), lab.nan.watch(model) as w:
                for number in range(4):
                    model.layers[1].breaks = number == 3
                    model(torch.randn(2, 4), kv_cache=caches)
            assert (w.first.kind, w.first.module, w.first.unsure) == ("between", "layers.1", "")


def test_a_cache_that_cannot_be_looked_into_leaves_the_place_unknown():
    model, held = Layers(False, False), cache_of(KVCache)
    held.stream = iter(())
    bad = cache_of(KVCache)
    bad.stream = held.stream
    model.layers[0].breaks = False
    with torch.no_grad(), lab.nan.watch(model) as w:
        model(torch.randn(2, 4), kv_cache=held)
        model.layers[0].breaks = True
        model(torch.randn(2, 4), kv_cache=bad)
    assert (w.first.kind, w.first.module) == ("unknown", "layers.0")
    assert "cache of layers.0 was not looked into" in w.first.unsure


class ByPlace(Layers):
    """Hands its layers their caches by place, as GPT2 does."""

    def forward(self, x, caches):
        for at, layer in enumerate(self.layers):
            x = layer(x, caches[at])
        return x


@pytest.mark.parametrize("numbered", [True, False])
def test_a_cache_that_is_handed_over_by_place_accuses_no_module_either(numbered):
    model, caches = ByPlace(numbered, True), [cache_of(KVCache) for _ in range(3)]
    x = torch.randn(2, 4)
    with torch.no_grad(), lab.nan.watch(model) as w:
        for _ in range(3):
            model(x, caches)
        model(x, [caches[0], cache_of(KVCache, (1,)), caches[2]])
    assert (w.status, w.first_step.number, w.first.module, w.first.kind) == ("bad", 3, "layers.1", "unknown")
    assert "cache of layers.1 holds bad numbers" in w.first.unsure
