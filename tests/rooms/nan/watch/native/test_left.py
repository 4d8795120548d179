"""Tensors of a clean forward on a GPU go one by one while the next makes such again, and never stay longer.

The GPU is a stand-in on a CPU.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch import recorder  # noqa: E402
from lab.rooms.nan.watch.native.calls import reading  # noqa: E402
from tests.rooms.nan.watch.native.test_calls import on_gpu  # noqa: E402

if reading() is None:
    pytest.skip("no C compiler here, or another Python", allow_module_level=True)
LAYERS = 30


class Layer(nn.Linear):
    """Notes what it puts out, and how many of what was noted before were alive when it was called."""

    def __init__(self, made, seen):
        super().__init__(4, 4)
        self.made, self.seen, self.fails = made, seen, False

    def forward(self, value):
        self.seen.append(alive(self.made))
        if self.fails:
            raise ArithmeticError("of the model")
        found = super().forward(value)
        self.made.append(weakref.ref(found))
        return found


@pytest.fixture(autouse=True)
def nothing_waits_for_the_garbage_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def model():
    torch.manual_seed(0)
    made, seen = [], []
    found = nn.Sequential(*[Layer(made, seen) for _ in range(LAYERS)])
    found.made, found.seen = made, seen
    return found


def watched(model, **more):
    return nan.watch(model, counter=on_gpu, **{"on_bad": lambda step: None, **more})


def run(model, value=None, mode=torch.no_grad):
    """(alive at each call, of those that it made alive at its end) of a forward, without its output."""
    model.made[:], model.seen[:] = [one for one in model.made if one() is not None], []
    before = len(model.made)
    with mode():
        model(torch.ones(2, 4) if value is None else value)
    return model.seen[:], alive(model.made[before:])


def alive(made):
    return sum(one() is not None for one in made)


def test_what_a_forward_left_goes_as_the_next_one_comes_along(model):
    with watched(model) as w:
        for _ in range(2):  # the first is counted as it passes, the second makes the template
            assert run(model)[1] == 0
        assert run(model)[1] == LAYERS
        for _ in range(3):
            seen, left = run(model)
            assert left == LAYERS
            # At each call what was made before the last of the forward before is there, or made anew.
            assert all(LAYERS - 2 <= count <= LAYERS + 1 for count in seen)
            assert alive(model.made) == LAYERS
        assert w.status == "clean" and w.forwards == 6
    assert not alive(model.made)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_what_autograd_may_hold_and_what_is_large_goes_at_once(model, mode, monkeypatch):
    if mode is torch.no_grad:
        monkeypatch.setattr(recorder, "MOST_LEFT_BYTES", 8)
    with watched(model) as w:
        for _ in range(5):
            run(model, mode=mode)
            model.zero_grad()
            assert not alive(model.made)
        assert w.status == "clean"


def test_a_bad_forward_leaves_nothing(model):
    with watched(model) as w:
        for _ in range(4):
            run(model)
        _, left = run(model, torch.full((2, 4), float("nan")))
        assert left == 0 and not alive(model.made)
        assert w.first_step.number == 4


def test_a_forward_that_breaks_off_lets_go_of_all(model):
    with watched(model) as w:
        for _ in range(4):
            run(model)
        model[5].fails = True
        with contextlib.suppress(ArithmeticError):
            run(model)
        model[5].fails = False
        assert not alive(model.made)
        for _ in range(3):
            run(model)
        assert w.status == "clean" and w.forwards == 8


def test_another_forward_than_the_one_before_lets_go_of_all_by_its_end(model):
    with watched(model) as w:
        for _ in range(4):
            run(model)
        before = model.made[:]
        with torch.no_grad():
            model(torch.ones(3, 4))  # of other shapes: the same calls
            assert not alive(before)
            model[0](torch.ones(2, 4))  # a part of it
        assert w.status == "clean"


def test_each_thread_has_what_its_own_forward_left(model):
    def work():
        for _ in range(5):
            run(model)

    with watched(model) as w:
        work()
        one = threading.Thread(target=work)
        one.start()
        one.join()
        run(model)
        assert w.status == "clean" and w.forwards == 11
    assert not alive(model.made)


def test_a_watch_that_ends_while_a_tensor_goes_ends_well(model):
    stack = contextlib.ExitStack()
    w = stack.enter_context(watched(model))
    for _ in range(4):
        run(model)
    weakref.finalize(model.made[-LAYERS // 2](), stack.close)
    run(model)
    assert w.forwards >= 4 and nn.Module.__call__.__name__ == "_wrapped_call_impl"
    assert not alive(model.made)


def test_what_it_puts_out_is_what_it_puts_out_without(model):
    inputs = [torch.randn(2, 4, generator=torch.Generator().manual_seed(n)) for n in range(6)]
    with torch.no_grad():
        expected = [model(one) for one in inputs]
        with watched(model):
            found = [model(one) for one in inputs]
    assert all(map(torch.equal, found, expected))
