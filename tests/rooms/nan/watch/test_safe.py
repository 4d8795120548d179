"""A watched program computes what it computes without the watch, bit by bit, and meets none of its errors."""

from __future__ import annotations

import contextlib
import os
import warnings

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import PROGRAMS, same_bits, small  # noqa: E402


def run(program, guarded, around):
    torch.manual_seed(0)
    torch._dynamo.reset() if hasattr(torch, "_dynamo") else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program(around if guarded else None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_clean_program_gives_the_same_bits_and_no_alarm(name):
    plain = run(PROGRAMS[name], False, None)
    for observe in (nan.watch, nan.guard):
        seen = []

        def around(model, observe=observe, seen=seen):
            seen.append(observe(model))
            return seen[-1]

        assert same_bits(plain, run(PROGRAMS[name], True, around))
        for one in seen:
            gaps = one.not_seen()
            assert one.first is None and not any("failed" in gap for gap in gaps), gaps
            if name in NOT_WHOLLY_SEEN:
                # Before torch 2.5, the parts of a model that is compiled elsewhere are called one by one.
                assert one.status in (NOT_WHOLLY_SEEN[name], "partly-seen") and gaps
            else:
                assert one.status == "clean", gaps


NOT_WHOLLY_SEEN = {
    "compiled before": "partly-seen",
    "module.compile": "partly-seen",
    "compile inside the block": "partly-seen",
    "meta": "partly-seen",
    "jit.trace": "partly-seen",
    "fake tensors": "partly-seen",
    "compiled elsewhere": "nothing-seen",
    "scripted": "partly-seen",
    "numpy inside": "partly-seen",
}


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this torch has no compile")
@pytest.mark.parametrize("observer", ["watch", "guard"])
def test_a_compiled_model_becomes_the_same_graphs_without_a_break(observer):
    from torch._dynamo.utils import counters

    class User(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, x):
            return self.inner(x) + 1

    def graphs(around):
        torch._dynamo.reset()
        counters.clear()
        model = User()
        compiled = torch.compile(model, backend="eager")
        with torch.no_grad(), around(model, compiled):
            for _ in range(3):
                compiled(torch.ones(2, 4))
        return dict(counters["stats"]), dict(counters["graph_break"])

    observe = getattr(nan, observer)
    plain = graphs(lambda model, compiled: contextlib.nullcontext())
    assert plain[0]["unique_graphs"] == 1 and plain[1] == {}
    assert graphs(lambda model, compiled: observe(model)) == plain
    assert graphs(lambda model, compiled: observe(compiled)) == plain


def test_nothing_is_left_on_modules_classes_or_tensors_after_an_exception():
    model, plain = small(), nn.Module.__call__
    before = [dict(module.__dict__) for module in model.modules()]
    with pytest.raises(ZeroDivisionError), nan.guard(model):
        model(torch.ones(2, 4)).sum().backward()
        raise ZeroDivisionError
    assert nn.Module.__call__ is plain
    for module, old in zip(model.modules(), before, strict=True):
        assert module.__dict__.keys() == old.keys()
    for weight in model.parameters():
        assert not weight._backward_hooks and not getattr(weight, "_post_accumulate_grad_hooks", None)


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this torch has no compile")
@pytest.mark.parametrize("observer", [nan.watch, nan.guard])
def test_a_compiled_model_with_an_eager_part_is_never_clean(observer):
    class Breaks(nn.Module):
        def forward(self, given):
            torch._dynamo.graph_break()
            return given + 1

    class Top(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.breaks = nn.Linear(4, 4), Breaks()

        def forward(self, given):
            return self.breaks(self.first(given)) / 0

    torch._dynamo.reset()
    model = Top()
    compiled = torch.compile(model, backend="eager")
    with observer(model) as w, torch.no_grad():
        compiled(torch.ones(2, 4))
    assert w.status in ("partly-seen", "nothing-seen", "bad") and (w.status == "bad" or w.not_seen())


def test_a_process_that_a_forward_forks_leaves_its_parents_verdict_alone():
    """As workers that load data do: what is bad in the child is not in the parent."""

    class Forks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            child = os.fork()
            if not child:
                self.inner(x * float("nan"))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            return self.inner(x)

    model = nn.Sequential(Forks(), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nan.guard(model, optimizer) as guard:
        for _ in range(12):  # beyond the first steps, which look closer
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    notes = [one for one in guard.notes if "has no hooks around updates" not in one]
    assert (guard.status, notes, guard.not_seen()) == ("clean", [], [])
    with nan.watch(model) as watch:
        for scale in (1.0, 1.0, 1.0, float("nan")):
            model(torch.ones(3, 4) * scale)
    assert watch.forwards == 4 and watch.first.kind == "given" and watch.first.module == ""
