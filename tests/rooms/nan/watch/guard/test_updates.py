"""Sums of squares below zero, wherever they lie."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.guard.updates import negative_squares  # noqa: E402
from lab.rooms.nan.watch.shared import before_update  # noqa: E402


class Elsewhere(torch.Tensor):
    """A tensor of another device, which torch would put together with none of this one."""

    @property
    def device(self):
        return torch.device("cuda", 1)


def test_state_on_two_devices_is_never_put_together(monkeypatch):
    plain = torch._C._nn.flatten_dense_tensors

    def on_one_device(tensors):
        assert len({one.device for one in tensors}) == 1, "Expected all tensors to be on the same device"
        return plain(tensors)

    monkeypatch.setattr(torch._C._nn, "flatten_dense_tensors", on_one_device)
    named = [((1, "exp_avg_sq"), torch.ones(3)), ((2, "exp_avg_sq"), torch.ones(3).as_subclass(Elsewhere))]
    assert negative_squares(named) == []
    named.append(((3, "exp_avg_sq"), torch.tensor([1.0, -1.0])))
    assert negative_squares(named) == [(3, "exp_avg_sq")]


class Averaging(torch.optim.Optimizer):
    """Keeps the sum of all gradients, as dual averaging does."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for one in self.param_groups[0]["params"]:
            self.state[one]["sum"] = self.state[one].get("sum", 0) + one.grad
            one -= 1e-3 * self.state[one]["sum"]


@pytest.mark.skipif(not before_update.exists, reason="this torch has no hooks around updates")
@pytest.mark.parametrize("kind", [Averaging, torch.optim.Adagrad])
def test_a_sum_of_gradients_may_be_below_zero_and_one_of_squares_may_not(kind):
    model = torch.nn.Linear(4, 4)
    optimizer = kind(model.parameters())
    with nan.guard(model, optimizer) as g:
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.state[model.weight]["sum"].sub_(100)
    assert g.status == ("clean" if kind is Averaging else "bad"), g.sentence()
    assert kind is Averaging or "below zero" in g.first.reason
