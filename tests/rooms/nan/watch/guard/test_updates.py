"""Sums of squares below zero, wherever they lie."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.nan.watch.guard.updates import negative_squares  # noqa: E402


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
