"""A program runs as without the patch around every call, whatever it does to calls itself."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch import seam  # noqa: E402
from lab.rooms.nan.watch.count import Counted, plain_counts  # noqa: E402

NAN, ERRORS = float("nan"), (ArithmeticError, TypeError)


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 3)


def x():
    return torch.arange(6.0).reshape(2, 3)


class Own(nn.Module):
    """`forward` runs a function of (module, arguments); `inner` is its only child."""

    def __init__(self, function, inner=None):
        super().__init__()
        self.function, self.inner = function, inner if inner is not None else linear()

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


class Bare(nn.Module):
    def forward(self, value=None, *more, scale=1):
        return None if value is None else value * scale


class Fails(nn.Module):
    def forward(self, value):
        raise ArithmeticError("of the model")


class ByCall(nn.Linear):
    def __call__(self, value):
        return super().__call__(value + 1)


class ByImpl(nn.Linear):
    def _call_impl(self, value):
        return super()._call_impl(value - 1)


class Static(nn.Module):
    @staticmethod
    def forward(value):
        return value * 2


class Looked(nn.Module):
    def __getattribute__(self, name):
        return super().__getattribute__(name)

    def forward(self, value):
        return value + 3


class Hiding(nn.Module):
    """A class may say by itself what its hooks are."""

    @property
    def _forward_hooks(self):
        return OrderedDict({0: lambda module, args, output: output + 1})

    @_forward_hooks.setter
    def _forward_hooks(self, value):
        pass

    def forward(self, value):
        return value


def catches(module, value):
    try:
        module.inner(value)
    except ArithmeticError:
        return value + 1


def again(module, value, depth=0):
    return module.inner(value) if depth == 2 else module(value, depth=depth + 1)


def hooked_meanwhile(module, value):
    handle = module.inner.register_forward_hook(lambda _, args, output: output * 10)
    out = module.inner(value)
    handle.remove()
    return out + module.inner(value)


def hooked_everywhere(module, value):
    handle = nn.modules.module.register_module_forward_hook(lambda _, args, output: output + 10)
    out = module.inner(value)
    handle.remove()
    return out + module.inner(value)


def own_forward_meanwhile(module, value):
    module.inner.forward = lambda given: given * 7
    out = module.inner(value)
    del module.inner.forward
    return out + module.inner(value)


def own_impl_meanwhile(module, value):
    module.inner.__dict__["_call_impl"] = lambda given: given * 5
    out = module.inner(value)
    del module.inner.__dict__["_call_impl"]
    return out + module.inner(value)


def class_changed_meanwhile(module, value):
    before = nn.Linear.forward
    nn.Linear.forward = lambda self, given: given * 11
    try:
        return module.inner(value)
    finally:
        nn.Linear.forward = before


def impl_of_all_changed_meanwhile(module, value):
    before = nn.Module._call_impl
    nn.Module._call_impl = lambda self, *args, **kwargs: before(self, *args, **kwargs) * 2
    try:
        return module.inner(value)
    finally:
        nn.Module._call_impl = before


def gives_a_generator(module, value):
    out = module.inner(value)
    return (out for _ in range(2))


def replaces(module, value):
    module.inner = linear() if module.training else nn.Identity()
    return module.inner(value)


def with_profile(module, value):
    sys.setprofile(lambda *_: None)
    try:
        return module.inner(value)
    finally:
        sys.setprofile(None)


def hidden_child(leaf):
    """A leaf that calls a module which is no child of it, but watched."""
    parent = nn.Sequential(OrderedDict(leaf=leaf, other=linear()))
    leaf.__dict__["other"] = parent.other
    return parent


class CallsAnother(nn.Module):
    def forward(self, value):
        return self.other(value)


PROGRAMS = {
    "by keyword": lambda: Own(lambda m, value: m.inner(input=value)),
    "keywords too": lambda: Own(lambda m, value: m.inner(value, scale=3), Bare()),
    "no arguments": lambda: Own(lambda m, value: (m.inner(), value)[1], Bare()),
    "several arguments": lambda: Own(lambda m, value: m.inner(value, 1, value, scale=2), Bare()),
    "an exception": lambda: Own(lambda m, value: m.inner(value), Fails()),
    "an exception deeper": lambda: Own(catches, Own(lambda m, value: m.inner(value), Fails())),
    "wrong arguments": lambda: Own(lambda m, value: m.inner(value, value, value)),
    "inside itself": lambda: Own(again),
    "a hook": lambda: Own(hooked_meanwhile),
    "a hook on all": lambda: Own(hooked_everywhere),
    "a forward of its own": lambda: Own(own_forward_meanwhile),
    "a call of its own": lambda: Own(own_impl_meanwhile),
    "another class' forward": lambda: Own(class_changed_meanwhile),
    "another call of all": lambda: Own(impl_of_all_changed_meanwhile),
    "__call__ of a subclass": lambda: Own(lambda m, value: m.inner(value), ByCall(3, 3)),
    "_call_impl of a subclass": lambda: Own(lambda m, value: m.inner(value), ByImpl(3, 3)),
    "static": lambda: Own(lambda m, value: m.inner(value), Static()),
    "attributes asked for": lambda: Own(lambda m, value: m.inner(value), Looked()),
    "hooks of a class": lambda: Own(lambda m, value: m.inner(value), Hiding()),
    "lazy": lambda: Own(lambda m, value: m.inner(value), nn.LazyLinear(3)),
    "a generator": lambda: Own(gives_a_generator),
    "replaced": lambda: Own(replaces),
    "profiled": lambda: Own(with_profile),
    "a child that is hidden": lambda: hidden_child(CallsAnother()),
    "containers": lambda: Own(
        lambda m, value: m.inner([value], k={"v": [value]})[0].pop(), Own(lambda m, a, k: (a, k))
    ),
}


def shown(value, met):
    """A value of an event: what it is, and which earlier one it is."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), met.setdefault(id(value), len(met)), value.detach().flatten().tolist()
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [shown(one, met) for one in value]
    if isinstance(value, dict):
        return {name: shown(one, met) for name, one in value.items()}
    return type(value).__name__


def outputs_of(name, watched):
    torch.manual_seed(1)
    model, outputs = PROGRAMS[name](), []
    with nan.watch(model, counter="plain") if watched else contextlib.nullcontext() as w:
        for step in range(6):
            try:
                given = x() * (NAN if step == 4 else 1)
                outputs.append(repr(shown(model(given.requires_grad_()), {})))
            except ERRORS as error:
                outputs.append(f"{type(error).__name__}: {error}")
    assert not seam.is_open() and (w is None or w.status in ("bad", "partly-seen", "nothing-seen"))
    return outputs


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_gives_what_it_gives_unwatched(name):
    assert outputs_of(name, True) == outputs_of(name, False)


def test_a_watch_may_end_inside_a_forward():
    def work(module, value):
        out = module.inner(value)
        if module.ends:
            watch.__exit__(None, None, None)
        return out + module.inner(value)

    model = Own(work)
    model.ends = False
    watch = nan.watch(model).__enter__()
    model(x()), model(x())
    model.ends = True
    model(x())
    assert not seam.is_open() and watch.status == "clean"
    model.ends = False
    assert model(x()).shape == (2, 3)


def test_a_patch_of_the_program_below_is_called(monkeypatch):
    real, calls = nn.Module.__call__, []

    def own(self, *args, **kwargs):
        calls.append(type(self).__name__)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", own)
    model = Own(lambda m, value: m.inner(value))
    with nan.watch(model) as w:
        for _ in range(4):
            model(x())
    assert calls == ["Own", "Linear"] * 4 and w.forwards == 4 and nn.Module.__call__ is own


def test_many_lanes_at_once_see_their_own_forwards():
    count = 40
    barrier = threading.Barrier(count)

    def work(module, value):
        if len(module.waits) > 3:
            barrier.wait(600)
        return module.inner(value)

    model = Own(work)
    model.waits = []
    with nan.watch(model) as w:
        for _ in range(4):
            model(x())
            model.waits.append(1)
        threads = [threading.Thread(target=model, args=(x(),)) for _ in range(count)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert w.forwards == 4 + count and w.status == "clean"
    assert {total.calls for total in w.totals()} == {4 + count}


def test_nothing_is_held_after_a_forward_whether_it_failed_or_not():
    for inner in (Fails(), linear()):
        model, held = Own(lambda m, value: m.inner(value), inner), []
        with nan.watch(model, counter=on_gpu, on_bad="raise") as w:
            for _ in range(6):
                value = x()
                held.append(weakref.ref(value))
                with contextlib.suppress(ArithmeticError):
                    model(value)
                del value
            assert w.waits and not any(one() is not None for one in held[2:])


class OnGpu(Counted):
    """Counts as a GPU's would be: known only when asked for."""

    by_gpu = True

    def __init__(self, tensors):
        self._rows = plain_counts(tensors)

    def bad(self):
        return bool((self._rows[:, :3] > 0).any())

    def known_clean(self):
        return False

    def rows(self):
        return self._rows


def on_gpu(tensors):
    return plain_counts(tensors)


on_gpu.begin = OnGpu


def test_a_clean_forward_on_a_gpu_is_taken_later_and_a_bad_one_at_once():
    model, stopped = nn.Sequential(linear(), nn.ReLU()), []
    with nan.watch(model, counter=on_gpu, on_bad=stopped.append) as w:
        waited = []
        for step in range(7):
            model(x() * (NAN if step == 5 else 1))
            waited.append(w.waits)
        held = [one.tensors for one in w._waiting]
    assert waited == [True] * 5 + [False, True] and not any(held)
    assert [step.number for step in w.steps] == [*range(7)] and [step.number for step in stopped] == [5]
    assert w.first_step.number == 5 and w.forwards == 7
