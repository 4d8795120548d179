"""Hooks that all watches of a process share: no table changes while another thread goes through it."""

from __future__ import annotations

import sys
import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.shared import Backwards, Shared, before_update  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402


@pytest.fixture
def alone(monkeypatch):
    """Threads that the test runner or tests before left do not count."""
    others = {*threading.enumerate()} - {threading.current_thread()}
    monkeypatch.setattr(threading, "active_count", lambda: len({*threading.enumerate()} - others))


@pytest.mark.usefixtures("alone")
def test_a_hook_stays_without_effect_while_other_threads_run():
    removed, go = [], threading.Event()
    shared = Shared(lambda call: type("Handle", (), {"remove": lambda self: removed.append(1)})())
    other = threading.Thread(target=go.wait)
    other.start()
    shared.add(print)
    shared.remove(print)
    assert removed == []
    go.set()
    other.join()
    shared.add(print)
    shared.remove(print)
    assert removed == [1]


def test_backward_is_given_back_after_the_last_whatever_the_order():
    plain, backwards, seen = torch.autograd.backward, Backwards(), []
    pairs = [
        (lambda tensors, n=n: seen.append(n) or n, lambda tensors, one: seen.append(-one)) for n in (1, 2)
    ]
    backwards.add(*pairs[0])
    backwards.add(*pairs[1])
    torch.ones(1, requires_grad=True).sum().backward()
    assert seen == [1, 2, -2, -1]  # who began last ends first
    backwards.remove(*pairs[0])
    assert torch.autograd.backward is not plain
    backwards.remove(*pairs[1])
    assert torch.autograd.backward is plain


@pytest.mark.skipif(not before_update.exists, reason="this torch has no hooks around updates")
def test_guards_of_four_threads_come_and_go_while_the_others_train():
    errors, statuses = [], []

    def work(number):
        try:
            for _ in range(4):
                model = small()
                optimizer = torch.optim.SGD(model.parameters(), 1e-2)
                with nan.guard(model, optimizer) as g:
                    for _ in range(5 + number):
                        optimizer.zero_grad()
                        loss = model(x(8, 4)).square().mean() * (float("nan") if number == 3 else 1)
                        loss.backward()
                        optimizer.step()
                statuses.append((number, g.status, g.step))
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    # A loss of another thread's model is not this model's.
    assert sorted(set(statuses)) == [(n, "bad" if n == 3 else "clean", 5 + n) for n in range(4)]


@pytest.mark.skipif(not before_update.exists, reason="this torch has no hooks around updates")
def test_updates_are_seen_after_dynamo_took_torchs_hooks_off_an_optimizer(monkeypatch):
    """As that of torch 2.2 does when it first compiles."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    bare = torch.optim.SGD.step.__wrapped__
    bare.hooked = True
    monkeypatch.setattr(torch.optim.SGD, "step", bare)
    monkeypatch.setitem(sys.modules, "torch._dynamo", sys.modules.get("torch._dynamo", threading))
    with nan.guard(model, optimizer) as g:
        for number in range(4):
            optimizer.zero_grad()
            model(x(8, 4)).square().mean().backward()
            optimizer.param_groups[0]["lr"] = float("nan") if number == 3 else 1e-2
            optimizer.step()
    assert g.step == 4 and (g.first.stage, g.first.step) == ("weights_after", 3), g.sentence()
    assert torch.optim.SGD.step is bare


@pytest.mark.skipif(not before_update.exists or not hasattr(torch, "compile"), reason="an old torch")
def test_an_update_that_dynamo_surrounds_is_counted_once():
    """As it does LBFGS's when it first compiles."""
    model = small()
    torch.optim.LBFGS(model.parameters())
    torch.compile(lambda value: value + 1, backend="eager")(torch.ones(2))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(x(8, 4)).square().mean()
        loss.backward()
        return loss

    with nan.guard(model, optimizer) as g:
        for _ in range(4):
            optimizer.step(closure)
    assert (g.step, g.status) == (4, "clean")
