"""Losses that a program throws away, losses made outside the model, and the operators that made them bad."""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from lab import nan  # noqa: E402

OPERATORS = hasattr(torch._C, "_current_autograd_node") and hasattr(torch._C._autograd, "_get_sequence_nr")
NAN, INF = float("nan"), float("inf")
ASKS = {
    "isnan": lambda loss: bool(torch.isnan(loss)),
    "method": lambda loss: bool(loss.isnan()),
    "item": lambda loss: math.isnan(loss.item()),
    "float": lambda loss: math.isnan(float(loss)),
    "isfinite": lambda loss: not torch.isfinite(loss),
    "detach": lambda loss: bool((loss.detach() != loss.detach()).any()),
    "text": lambda loss: "nan" in f"{loss:.3f}",
}


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """Operators are not recorded once dynamo has compiled anything, as other tests may have done here."""
    if utils := sys.modules.get("torch._dynamo.utils"):
        monkeypatch.setattr(utils, "counters", defaultdict(Counter))


def train(step_of, *, on_bad="keep", steps=5, fault_step=2, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nan.guard(model, optimizer, on_bad=on_bad, **options) as guard:
        for step in range(steps):
            loss = step_of(model(torch.randn(5, 4)), step == fault_step)
            if loss is None:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return guard


@pytest.mark.parametrize("ask", ASKS)
def test_a_loss_that_is_asked_about_and_thrown_away_is_bad(ask):
    def step_of(y, is_on):
        loss = F.cross_entropy(y, torch.full((5,), -100 if is_on else 0))
        return None if ASKS[ask](loss) else loss

    guard = train(step_of)
    assert guard.status == "bad" and (guard.first.step, guard.first.stage) == (2, "loss"), guard.sentence()
    assert train(step_of, fault_step=None).status == "clean"


def test_a_loss_that_is_thrown_away_unasked_is_said_not_to_be_seen():
    guard = train(lambda y, is_on: None if is_on else y.square().mean())
    assert guard.status == "partly-seen" and "1 forward in training met no backward" in guard.not_seen()[0]


def test_forwards_before_the_first_backward_and_after_the_last_need_none():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nan.guard(model, optimizer) as guard:
        for backs_up in (False, True, True, False):
            value = model(torch.ones(2, 4)).mean()
            if backs_up:
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
    assert guard.status == "clean"


def test_what_torch_had_is_there_again_and_a_script_compiles_meanwhile():
    plain = torch.isnan, torch.Tensor.item, torch.Tensor.detach
    with nan.guard(nn.Linear(2, 2)):
        assert torch.isnan is not plain[0] and bool(torch.isnan(torch.tensor(NAN)))
        script = torch.jit.script(_uses_isnan)
        assert script(torch.tensor([1.0, NAN])).tolist() == [False, True]
    assert (torch.isnan, torch.Tensor.item, torch.Tensor.detach) == plain


def _uses_isnan(x: torch.Tensor) -> torch.Tensor:
    return torch.isnan(x)


LOSSES = {
    "division": (lambda y, is_on: (y / (y - y) if is_on else y).square().mean(), "aten.div.Tensor"),
    "logarithm": (lambda y, is_on: (torch.log(y * 0) if is_on else y).sum(), "aten.log"),
    "number": (lambda y, is_on: y.mean() * (INF if is_on else 1), "aten.mul"),
    "no target": (
        lambda y, is_on: F.cross_entropy(y, torch.full((5,), -100 if is_on else 0)),
        "aten.nll_loss",
    ),
}


@pytest.mark.skipif(not OPERATORS, reason="this torch cannot look at operators")
@pytest.mark.parametrize("kind", LOSSES)
def test_the_operator_of_a_loss_made_outside_the_model_is_named_with_its_line(kind):
    def step_of(y, is_on):
        metric = (y * 0 / (y * 0)).mean()  # bad, and no part of the loss
        assert metric.requires_grad
        return LOSSES[kind][0](y, is_on)

    first = train(step_of, on_bad="replay").first
    assert (first.step, first.stage) == (2, "loss") and first.op.name.startswith(LOSSES[kind][1]), first.op
    assert "test_losses_seen.py" in first.op.line


def test_recording_a_loss_leaves_the_weights_equal_bit_by_bit():
    def run(on_bad):
        guard = train(lambda y, is_on: F.mse_loss(y, torch.ones(5, 3)), on_bad=on_bad)
        return [p.detach().clone() for p in guard.training.state.model.parameters()]

    assert all(map(torch.equal, run("keep"), run("replay")))
