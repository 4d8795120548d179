"""What the guard says is so: replays, steps without an optimizer, the printed verdict, a stop."""

from __future__ import annotations

import linecache
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.watch import NonFiniteError  # noqa: E402

OPERATORS = hasattr(torch._C, "_current_autograd_node") and hasattr(torch._C._autograd, "_get_sequence_nr")
operators = pytest.mark.skipif(not OPERATORS, reason="this torch cannot look at operators")
NAN, INF = float("nan"), float("inf")


class Net(nn.Module):
    """Bad by a number, a constant, a state or an operator of its own; `kind` says which."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind, self.calls = nn.Linear(4, 4), kind, 0
        self.state = torch.full((4,), NAN)

    def forward(self, x):
        y = self.layer(x)
        self.calls += 1
        if self.kind == "number":
            return y.masked_fill(x > -9, -INF)
        if self.kind == "constant":
            return y * torch.tensor([1.0, NAN, 1.0, 1.0])
        if self.kind == "state":
            return y + self.state
        if self.kind == "once" and self.calls == 1:
            return y / 0
        if self.kind == "division":
            y = y / 0
        return y


def run(kind, on_bad="replay"):
    torch.manual_seed(0)
    model = Net(kind)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nan.guard(model, optimizer, on_bad=on_bad) as guard:
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return guard


@operators
@pytest.mark.parametrize(
    ("kind", "op", "inputs"),
    [
        ("constant", "aten.mul", "bad already"),
        ("state", "aten.add", "bad already"),
        ("division", "aten.div", "finite"),
    ],
)
def test_what_comes_back_on_replay_names_its_operator_and_what_it_took(kind, op, inputs):
    first = run(kind).first
    assert first.op.name.startswith(op) and first.op.inputs.startswith(inputs) and first.op.times == 2


@operators
def test_an_infinity_of_a_number_that_reaches_the_loss_is_blamed_on_its_operator():
    first = run("number").first
    assert first.stage == "forward" and first.op.name.startswith("aten.masked_fill")
    assert "a number of the program's" in first.op.inputs


@operators
def test_what_does_not_come_back_is_said_not_to():
    assert "it did not come back" in run("once").first.op_missing


@pytest.mark.parametrize("fault_step", [2, 3])
@pytest.mark.parametrize("by", ["weights", "backward"])
def test_steps_without_an_optimizer_are_counted_and_it_is_said_by_what(fault_step, by):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    with nan.guard(model) as guard:
        for step in range(5):
            y = model(torch.randn(5, 4))
            ((y * 0).abs().sqrt().sum() if step == fault_step else y.square().mean()).backward()
            for p in model.parameters():
                if by == "weights":
                    with torch.no_grad():
                        p -= 0.1 * p.grad
                p.grad = None
    assert (
        guard.first.step == fault_step
        and f"counted by {'writes' if by == 'weights' else 'calls'}" in guard.sentence()
    )


def test_the_printed_verdict_has_five_lines_and_a_watch_has_a_sentence():
    guard = run("division", "keep")
    lines = str(guard).splitlines()
    assert len(lines) == 5 and lines[0] == "guard of Net: bad" and lines[1] == guard.sentence()
    with torch.no_grad(), nan.watch(Net("division")) as watch:
        watch.model(torch.ones(2, 4))
    assert watch.sentence().startswith("step 0 (forward): first bad number in") and watch.sentence() in str(
        watch
    )


def test_the_last_magnitudes_before_the_fault_are_told():
    first = run("division", "keep").first
    assert first.extremes and first.extremes[-1].startswith("layer: largest ")


@operators
def test_break_stands_at_the_operator(monkeypatch):
    lines = []

    def stands():
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code is Net.forward.__code__:
                lines.append(frame.f_lineno)
            frame = frame.f_back

    monkeypatch.setattr(sys, "breakpointhook", stands)
    with pytest.raises(NonFiniteError, match=r"aten\.div"):
        run("division", "break")
    assert linecache.getline(__file__, lines[0]).strip() == "y = y / 0"
