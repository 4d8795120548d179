"""Whose part of backward made a bad gradient: one module for certain, or several that it may have been."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not hasattr(torch._C, "_current_autograd_node"), reason="this torch does not tell of graphs"
    ),
]
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from tests.rooms.nan.watch.guard.zoo_faults import BadBackward  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import x  # noqa: E402


class Norm(nn.Module):
    bad = False

    def forward(self, given):
        return BadBackward.apply(given, self.bad)


class Attention(nn.Module):
    """Gives its weights out too, as eager attention does; `bad` is what it does with them itself."""

    def __init__(self):
        super().__init__()
        self.query, self.out, self.drop, self.bad = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.0), False

    def forward(self, given):
        weights = self.drop(torch.softmax(self.query(given), dim=-1))
        return self.out(BadBackward.apply(weights, self.bad)), weights


class Mixer(nn.Module):
    """Uses the weights of a module that it does not call, as Mamba does its convolution's."""

    def __init__(self):
        super().__init__()
        self.inner, self.bad = nn.Linear(4, 4), False

    def forward(self, given):
        return nn.functional.linear(given, BadBackward.apply(self.inner.weight, self.bad), self.inner.bias)


class Gated(nn.Module):
    """Weights of its own, and a module inside."""

    def __init__(self):
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.ones(4)), Norm()

    def forward(self, given):
        return self.norm(given.detach() * self.scale) * given


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm, self.mixer, self.gated = Attention(), Norm(), Mixer(), Gated()
        self.last, self.bad = nn.Linear(4, 4), False

    def forward(self, given):
        hidden = given + self.attention(given)[0]
        hidden = self.gated(self.mixer(self.norm(hidden * 2)))
        return given + BadBackward.apply(self.last(hidden), self.bad)


def spoiled(name, at, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Layer(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with nan.guard(model, optimizer, **options) as g:
        for step in range(at + 2):
            model.get_submodule(name).bad = step == at
            optimizer.zero_grad()
            model(x(8, 4)).square().mean().backward()
            optimizer.step()
    assert g.status == "bad" and g.first.step == at, g.sentence()
    return g.first


PLACES = ("1.attention", "1.norm", "1.mixer", "1.gated.norm", "1")


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("name", PLACES)
def test_no_other_module_is_named_for_certain(name, at):
    first = spoiled(name, at)
    assert first.module == name or first.unsure, first.place
    assert not first.unsure or len(first.unsure) > 20


@pytest.mark.parametrize("name", PLACES)
def test_a_replay_names_the_module(name):
    first = spoiled(name, 3, on_bad="replay")
    assert (first.module, first.unsure) == (name, "") and first.op is not None, first


def test_a_module_is_named_for_certain_where_no_other_code_lies_between():
    """Code after the last call; a module that takes the tensor and calls none."""
    assert (spoiled("1", 4).module, spoiled("1", 4).unsure) == ("1", "")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), Norm(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with nan.guard(model, optimizer) as g:
        for step in range(6):
            model[2].bad = step == 4
            optimizer.zero_grad()
            model(x(8, 4)).square().mean().backward()
            optimizer.step()
    assert (g.first.module, g.first.unsure) == ("2", ""), g.sentence()
