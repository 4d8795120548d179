"""What passed in a list, dict or object is what was in it then, whatever the program puts there later."""

from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402
from transformers.modeling_outputs import BaseModelOutput  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.leaves import arguments_as_passed  # noqa: E402

NAN, BAD_STEP = float("nan"), 4


class Gives(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.wrap, self.factor = wrap, 1.0

    def forward(self, x):
        return self.wrap(x * self.factor)


class Takes(nn.Module):
    """Uses what `first` gives without its NaN."""

    def __init__(self, wrap, take):
        super().__init__()
        self.first, self.last, self.take = Gives(wrap), nn.Linear(4, 4), take

    def forward(self, x):
        return self.last(torch.nan_to_num(self.take(self.first(x))))


@dataclasses.dataclass
class Fields:
    h: object


def replaced(held):
    h = held.h
    held.h = torch.zeros_like(h)
    return h


def replaced_in(held, key):
    h = held[key]
    held[key] = torch.zeros_like(h)
    return h


CONTAINERS = {
    "dict, replaced": (lambda h: {"h": h}, lambda held: replaced_in(held, "h")),
    "list, popped": (lambda h: [h], lambda held: held.pop()),
    "list, replaced": (lambda h: [h], lambda held: replaced_in(held, 0)),
    "list in a dict in a tuple": (lambda h: (h * 0, {"k": [h]}), lambda held: held[1]["k"].pop()),
    "dataclass": (Fields, replaced),
    "ModelOutput": (
        lambda h: BaseModelOutput(last_hidden_state=h),
        lambda held: replaced_in(held, "last_hidden_state"),
    ),
}


@pytest.mark.parametrize("on_bad", ["keep", lambda step: None], ids=["together", "each"])
@pytest.mark.parametrize("name", CONTAINERS)
def test_what_is_taken_out_after_it_passed_was_in_it(name, on_bad):
    model = Takes(*CONTAINERS[name])
    with torch.no_grad(), nan.watch(model, on_bad=on_bad) as w:
        for step in range(6):
            model.first.factor = NAN if step == BAD_STEP else 1.0
            model(torch.ones(2, 4))
    assert [one.number for one in w.steps if one.bad_leaves] == [BAD_STEP]
    assert (w.first.module, w.first.kind) == ("first", "output")


class Adds(nn.Module):
    """Puts its result into the dict that it takes and gives."""

    def __init__(self, source, to):
        super().__init__()
        self.source, self.to, self.factor = source, to, 1.0

    def forward(self, held):
        held[self.to] = held[self.source] * self.factor
        return held


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_dict_that_all_modules_share_names_the_one_that_put_a_nan_into_it(culprit):
    model = nn.Sequential(Adds("x", "a"), Adds("a", "b"), Adds("x", "c"))
    with torch.no_grad(), nan.watch(model) as w:
        for step in range(6):
            model[culprit].factor = NAN if step == BAD_STEP else 1.0
            model({"x": torch.ones(2, 4)})
    assert [one.number for one in w.steps if one.bad_leaves] == [BAD_STEP]
    assert (w.first.module, w.first.kind) == (str(culprit), "output")


def test_the_program_gets_its_own_containers():
    met = []

    class Keeps(nn.Module):
        def forward(self, held, more=None):
            met.append((held, more))
            return held

    model = nn.Sequential(Keeps())
    with nan.watch(model):
        for _ in range(4):
            given = {"x": [torch.ones(2)]}
            assert model(given) is given and met[-1][0] is given
            assert model[0](given, more=given) is given and met[-1][1] is given


def test_a_cache_stays_itself_for_it_is_looked_into_after_the_forward():
    cache, others = [(torch.ones(1), torch.ones(1))], [torch.ones(1)]
    of_cache, of_others = arguments_as_passed((), {"past_key_values": cache, "others": others})
    assert of_cache.cache is cache and of_others.cache is None
    assert [leaf for leaf, *_ in of_others.leaves] == ["others[0]"] and of_others.leaves[0][1] is others[0]
