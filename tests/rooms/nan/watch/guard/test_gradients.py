"""What waits for a count holds little memory; what stays in memory anyway waits until backward has ended."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.guard import gradients as collecting  # noqa: E402

pytestmark = pytest.mark.torch
KB, NAN = 1 << 10, float("nan")


def test_a_gpu_may_hold_a_small_part_of_what_is_free(monkeypatch):
    free = {"driver": 8 << 30}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free["driver"], 24 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 << 30)
    gpu = torch.device("cuda", 0)
    assert collecting._budget(gpu) == (16 << 30) // 64
    free["driver"] = 1 << 50
    assert collecting._budget(gpu) == 1 << 30
    free["driver"] = -(8 << 30)
    assert collecting._budget(gpu) == 64 << 20
    assert collecting._budget(torch.device("cpu")) == 64 << 20


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), reason="torch without such hooks"
)
def test_gradients_that_the_program_frees_inside_of_backward_are_let_go_of(monkeypatch):
    monkeypatch.setattr(collecting, "LEAST_BUDGET", KB)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    alive: list[weakref.ref] = []
    most = 0

    def update(parameter):
        nonlocal most
        alive.append(weakref.ref(parameter.grad))
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.01)
        parameter.grad = None
        most = max(most, sum(one() is not None for one in alive))

    with nan.guard(model) as guard:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        for _ in range(2):
            model(torch.ones(2, 64)).sum().backward()
    assert guard.status == "clean" and guard.training.state.looked_at["param_grads"] == 32
    assert most <= 3, "16 gradients of 16 KiB each, and room for one KiB"


def by_hand(weight):
    """Another gradient in place of the counted one, as a rule with its id, at its address, of its version."""
    weight.grad = None
    weight.grad = torch.full_like(weight, NAN)


def by_data(weight):
    weight.grad.data = torch.full_like(weight, NAN)


@pytest.mark.parametrize("spoil", [by_hand, by_data])
def test_a_gradient_put_in_place_of_the_counted_one_is_counted_before_the_update(spoil):
    for bad_step in (2, 3, 14):  # weights are read after each of the first updates, then after some
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with nan.guard(model, optimizer) as g:
            for number in range(bad_step + 1):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().mean().backward()
                if number == bad_step:
                    spoil(model[0].weight)
                optimizer.step()
        first = g.first
        assert (first.step, first.stage) == (bad_step, "clipped"), first
        assert first.place.endswith("0.weight") and first.reason.startswith("finite when backward ended")


class Spoils(torch.autograd.Function):
    """Its input, with a gradient of which the first number is NaN."""

    @staticmethod
    def forward(ctx, given, bad):
        ctx.bad = bad
        return given.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if ctx.bad:
            grad.view(-1)[0] = NAN
        return grad, None


class Scaled(torch.nn.Module):
    """One weight, whose gradient is sparse, or of complex numbers: nothing that C reads."""

    def __init__(self, kind):
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.randn(10, 4, dtype=torch.complex64 if kind == "complex" else None)
        )
        self.look = {
            "sparse": lambda weight: torch.nn.functional.embedding(torch.arange(3), weight, sparse=True),
            "complex": lambda weight: weight[:3] * 2,
        }[kind]

    def forward(self, bad):
        return Spoils.apply(self.look(self.weight), bad).abs().sum()


@pytest.mark.parametrize("bad_at", [None, 2])
@pytest.mark.parametrize("kind", ["sparse", "complex"])
def test_nan_in_gradients_that_the_short_cuts_cannot_read_is_seen(kind, bad_at):
    model = Scaled(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nan.guard(model, optimizer) as g:
        for number in range(4):
            optimizer.zero_grad()
            model(number == bad_at).backward()
            optimizer.step()
    assert (g.status, g.first and g.first.step) == (("bad", 2) if bad_at else ("clean", None))
