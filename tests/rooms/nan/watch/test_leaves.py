"""Which tensors are leaves: by what they are, never by a name that sounds like a mask."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from tests.rooms.nan.watch.models import watched  # noqa: E402


class Gives(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.give = give

    def forward(self, *args, **kwargs):
        return self.give(*args, **kwargs)


def test_nested_outputs_and_keyword_inputs_are_counted_whatever_their_names_are():
    class Nested(nn.Module):
        def forward(self, *, states, attention_mask):
            return {"hidden": (states, [states * float("inf")]), "past_key_values": states * float("nan")}

    w = watched(Nested(), states=torch.ones(2), attention_mask=torch.full((2,), -float("inf")))
    leaves = {(t.side, t.leaf): t.counts[:3].sum() for t in w.totals()}
    assert leaves == {
        ("in", "states"): 0,
        ("in", "attention_mask"): 2,
        ("out", "hidden[0]"): 0,
        ("out", "hidden[1][0]"): 2,
        ("out", "past_key_values"): 2,
    }
    assert w.first.leaf == "hidden[1][0]"


@pytest.mark.parametrize("name", ["pred_masks", "mask_logits", "unbiased_logits", "masks_queries_logits"])
def test_an_output_that_is_called_like_a_mask_is_no_mask(name):
    w = watched(Gives(lambda x: {name: x * float("nan")}), torch.ones(2))
    assert w.status == "bad" and w.first.leaf == name and w.first.kind == "output"


BAD_NUMBERS = [float("nan"), complex(0, float("nan")), complex(float("inf"), 0), np.float64("nan")]


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=repr)
def test_a_number_of_python_counts_in_every_forward(bad):
    given = iter([type(bad)(1), type(bad)(2), type(bad)(1), bad])
    model = Gives(lambda x: (x, next(given)))
    with nan.watch(model) as w:
        for _ in range(4):
            model(torch.ones(2))
    assert w.status == "bad" and w.first.leaf == "output[1]" and w.forwards == 4


def test_minus_infinity_is_legal_in_a_mask_and_nan_is_not():
    mask = torch.tensor([0.0, -float("inf")])
    fine = watched(Gives(lambda x, attention_mask: x), torch.ones(2), attention_mask=mask)
    assert fine.clean and fine.absorbed == {"-inf in attention_mask of the model itself": 1}
    bad = watched(Gives(lambda x, attention_mask: x), torch.ones(2), attention_mask=mask * 0)
    assert bad.status == "bad" and bad.first.place == "given in the inputs of the model: attention_mask"


def test_minus_infinity_that_a_softmax_absorbs_is_no_finding():
    class Takes(nn.Module):
        def forward(self, x, attention_mask):
            return (x + attention_mask).softmax(-1)

    assert watched(Takes(), torch.ones(2), torch.tensor([0.0, -float("inf")])).clean


def test_nan_in_an_argument_called_bias_accuses_who_made_it_and_not_who_took_it():
    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Gives(lambda x, bias: x + bias)

        def forward(self, x):
            return self.child(x, bias=x / 0 - x / 0)

    assert watched(Parent(), torch.ones(2)).first.place == "in the model itself, before child"


def test_a_buffer_called_bias_is_checked():
    model = Gives(lambda x: x)
    model.register_buffer("running_bias", torch.tensor([float("nan")]))
    w = watched(model, torch.ones(2))
    assert [one["name"] for one in w.weights] == ["running_bias"] and w.status == "bad"


class Holder:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    "give",
    [
        lambda x: Holder(x * float("nan")),
        lambda x: {x * float("nan")},
        lambda x: (x, float("nan")),
        lambda x: [[[[[x * float("nan")]]]]],
        lambda x: {"a": Holder({"b": (x * float("inf"),)})},
        lambda x: {"a": x * float("nan")}.values(),
        lambda x: {"a": x * float("nan")}.items(),
    ],
    ids=["object", "set", "python float", "deep", "object in a dict", "values of a dict", "items of a dict"],
)
def test_bad_numbers_in_objects_sets_and_plain_floats_are_seen(give):
    assert watched(Gives(give), torch.ones(2)).status == "bad"


@pytest.mark.parametrize(
    ("give", "why"),
    [
        (lambda x: (x, (y for y in [x * float("nan")])), "a generator"),
        (lambda x: (x, lambda: x * float("nan")), "a function"),
        (lambda x: (x, x.numpy() * float("nan")), "a numpy array"),
        (lambda x: [[[[[[[[x * float("nan")]]]]]]]], "deeper than"),
        (lambda x: memoryview(x.numpy()), "memoryview"),
    ],
    ids=["generator", "closure", "numpy", "too deep", "memory"],
)
def test_what_cannot_be_looked_into_is_named_and_never_clean(give, why):
    w = watched(Gives(give), torch.ones(2))
    assert w.status == "partly-seen" and not w.clean
    assert any(why in sentence for sentence in w.not_seen())


@pytest.mark.parametrize("harmless", [range(3), slice(2), ..., bytearray(2), torch.float16, None], ids=repr)
def test_what_holds_no_number_is_no_gap(harmless):
    assert watched(Gives(lambda x: (x, harmless)), torch.ones(2)).status == "clean"
