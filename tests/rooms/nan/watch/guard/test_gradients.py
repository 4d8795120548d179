"""What waits for a count holds little memory; what stays in memory anyway waits until backward has ended."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.count import Counted, plain_counts  # noqa: E402
from lab.rooms.nan.watch.guard import gradients  # noqa: E402
from lab.rooms.nan.watch.guard.gradients import Collector  # noqa: E402
from lab.rooms.nan.watch.guard.journal import Journal  # noqa: E402

pytestmark = pytest.mark.torch
KB = 1 << 10


@pytest.fixture
def counted(monkeypatch):
    """(a collector with room for one KiB, the number of tensors of each count that it begins)"""
    monkeypatch.setattr(gradients, "LEAST_BUDGET", KB)
    counts: list[int] = []

    def begin(tensors):
        counts.append(len(tensors))
        return Counted(plain_counts(tensors))

    return Collector(begin, Journal()), counts


def test_gradients_that_would_be_freed_are_counted_once_they_fill_the_budget(counted):
    collector, counts = counted
    for at in range(6):
        collector.take("act_grads", at, torch.ones(KB // 8))  # half of the room
    assert counts == [3, 3]


def test_gradients_that_stay_wait_for_the_end_of_backward(counted):
    collector, counts = counted
    for at in range(6):
        collector.take("param_grads", at, torch.ones(KB), stays=True)
    assert counts == []
    [(taken, _)] = collector.settled()
    assert counts == [6] and [one.key for one in taken] == [*range(6)]


def test_a_gpu_may_hold_a_small_part_of_what_is_free(monkeypatch):
    free = {"driver": 8 << 30}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free["driver"], 24 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 << 30)
    gpu = torch.device("cuda", 0)
    assert gradients._budget(gpu) == (16 << 30) // 64
    free["driver"] = 1 << 50
    assert gradients._budget(gpu) == 1 << 30
    free["driver"] = -(8 << 30)
    assert gradients._budget(gpu) == 64 << 20
    assert gradients._budget(torch.device("cpu")) == 64 << 20


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), reason="torch without such hooks"
)
def test_gradients_that_the_program_frees_inside_of_backward_are_let_go_of(monkeypatch):
    monkeypatch.setattr(gradients, "LEAST_BUDGET", KB)
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
    assert guard.status == "clean" and guard.seen["param_grads"] == 32
    assert most <= 3, "16 gradients of 16 KiB each, and room for one KiB"
