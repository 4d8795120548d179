"""Infinities by value and fate: gone before loss and gradient they are no fault; what reaches them is."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from tests.rooms.nan.watch.guard.families import FAMILIES, INF, NAN, Switch  # noqa: E402

OPERATORS = hasattr(torch._C, "_current_autograd_node") and hasattr(torch._C._autograd, "_get_sequence_nr")


def train(family, fault_step, on_bad="keep"):
    make, loss, _ = FAMILIES[family]
    torch.manual_seed(0)
    switch = Switch()
    model = make(switch)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    is_finite = True
    with nan.guard(model, optimizer, on_bad=on_bad) as guard:
        for step in range(3):
            switch.on = step == fault_step
            optimizer.zero_grad()
            value = loss(model)
            is_finite &= bool(value.detach().isfinite())
            value.backward()
            optimizer.step()
    assert is_finite == (fault_step is None), "the truth, without the guard"
    return guard


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_family_is_clean(family):
    guard = train(family, None)
    assert guard.status == "clean" and guard.first is None, guard.sentence()


@pytest.mark.parametrize("family", FAMILIES)
def test_with_its_fault_a_family_is_bad_at_the_right_step_and_operator(family):
    if dynamo := sys.modules.get("torch._dynamo.utils"):
        dynamo.counters.clear()  # nothing is recorded where the process has compiled, as other tests do
    guard = train(family, 1, "replay")
    assert guard.status == "bad" and guard.first.step == 1, guard.sentence()
    op, missing = guard.first.op, guard.first.op_missing
    assert not OPERATORS or (op is not None and op.name.startswith(FAMILIES[family][2])), (op, missing)


class Overflows(nn.Module):
    def __init__(self, gone):
        super().__init__()
        self.layer, self.gone = nn.Linear(4, 4), gone

    def forward(self, x):
        y = self.layer(x) * INF
        return y.clamp(-1, 1) if self.gone else y


@pytest.mark.parametrize("gone", [True, False])
def test_in_inference_the_output_decides(gone):
    model = Overflows(gone)
    with torch.no_grad(), nan.watch(model) as watch:
        model(torch.ones(2, 4))
    assert watch.status == ("clean" if gone else "bad")


@pytest.mark.parametrize("allow", [("layer",), ("Linear",), ("+inf", "-inf")])
def test_allowed_infinities_are_no_findings_and_nan_is(allow):
    class Infinite(nn.Linear):
        def forward(self, x):
            return super().forward(x) * self.factor

    model = nn.Sequential()
    model.add_module("layer", Infinite(4, 4))
    model.layer.__class__.__name__ = "Linear"
    for factor, status in ((INF, "clean"), (NAN, "bad")):
        model.layer.factor = factor
        with torch.no_grad(), nan.watch(model, allow=(*allow, "Sequential")) as watch:
            model(torch.ones(2, 4))
        assert watch.status == status, watch.sentence()


def test_a_buffer_of_infinities_is_no_bad_weight_whatever_its_name():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("tril", torch.full((4, 4), -INF).triu(1))

        def forward(self, x):
            return (self.layer(x) @ self.layer.weight + self.tril).softmax(-1)

    model = Model()
    with torch.no_grad(), nan.watch(model) as watch:
        model(torch.ones(4, 4))
    assert watch.status == "clean", watch.sentence()
