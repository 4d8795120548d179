"""A forward read by its template gives what reading event by event gives."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.workload.generate import generate  # noqa: E402
from tests.rooms.nan.watch.models import prompt, tiny  # noqa: E402
from tests.rooms.nan.watch.test_recorder import NoTemplates  # noqa: E402

NAN = float("nan")


def test_a_forward_read_by_its_template_gives_what_reading_event_by_event_gives():
    model = tiny("auto")
    ids, mask = prompt()
    slow, fast = nan.watch(model), nan.watch(model)
    slow._templates = NoTemplates()
    generate(model, ids, mask, 5, slow)
    generate(model, ids, mask, 5, fast)
    assert fast._templates["decode"] is not None
    assert [step.totals for step in fast.steps] == [step.totals for step in slow.steps]
    sums = [
        [(t.module, t.side, t.leaf, t.phase, t.calls, t.counts.tolist()) for t in w.totals()]
        for w in (slow, fast)
    ]
    assert sums[0] == sums[1]


def test_a_tensor_that_was_one_and_is_two_now_is_not_read_by_the_old_template():
    model = nn.Sequential(nn.Hardtanh(), nn.Dropout(0.5))
    fast, slow = nan.watch(model), nan.watch(model)
    slow._templates = NoTemplates()
    for w in (slow, fast):
        with torch.no_grad(), w:
            for training in (True, False, False, True, True):
                model.train(training)
                torch.manual_seed(0)
                model(torch.full((1, 16), 1e-41))
    assert [step.totals for step in fast.steps] == [step.totals for step in slow.steps]
    assert [step.totals["subnormal"] for step in fast.steps[1:3]] == [16, 16], (
        "one tensor, put out by two modules"
    )


KINDS = {
    "sparse": lambda one: one.to_sparse(),
    "csr": lambda one: one.detach().to_sparse_csr(),
    "conj": lambda one: one.to(torch.complex64).conj(),
    "jagged": lambda one: torch.nested.as_nested_tensor([*one.detach().split(2)], layout=torch.jagged),
    "float8": lambda one: one.to(torch.float8_e5m2),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("observer", ["watch", "guard"])
@pytest.mark.parametrize("bad_at", [None, 5, 6])
def test_a_tensor_of_another_kind_in_the_place_of_a_usual_one_is_counted(kind, observer, bad_at):
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.number = nn.Linear(4, 4), nn.Identity(), 0

        def forward(self, x):
            y = self.first(x) + (NAN if self.number == bad_at else 0)  # an infinity would be absorbed below
            self.second(KINDS[kind](y) if self.number % 4 > 1 else y * 1)
            return torch.nan_to_num(y) * 0

    model = Changes()
    with getattr(nan, observer)(model) as w:
        for model.number in range(8):
            model(torch.linspace(-1, 1, 16).view(4, 4))
    assert w.not_seen() == [] and w.status == ("clean" if bad_at is None else "bad")
    found = w.first.place if bad_at is not None else ""
    assert bad_at is None or "after first, before second" in found, found


def test_a_template_holds_no_tensor_of_its_forward():
    """Not till a garbage collection either, which may never come: of a prefill these are gigabytes."""
    made = []

    class Noted(nn.Linear):
        def forward(self, value):
            found = super().forward(value)
            made.append(weakref.ref(found))
            return found

    model = nn.Sequential(*[Noted(4, 4) for _ in range(5)])
    gc.collect()
    gc.disable()
    try:
        with nan.watch(model, on_bad=lambda step: None) as w, torch.no_grad():
            for _ in range(3):  # the first is counted as it passes, the second makes the template
                model(torch.ones(2, 4))
            assert w._templates["forward"] is not None and len(made) == 15
            assert not any(one() is not None for one in made)
    finally:
        gc.enable()


class Shapes(nn.Module):
    """Gives out what the test says."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.gives = lambda hidden: hidden

    def forward(self, *args, **kwargs):
        return self.gives(self.inner(args[0]))


X = torch.ones(2, 2)
SHARED = torch.ones(2)
# What is called and given out at first, and then something that differs from it in one way only.
DIFFERS = {
    "another length": (lambda h: (h, SHARED), lambda h: (h, SHARED, X * NAN)),
    "another name": (lambda h: {"a": h}, lambda h: {"b": h, "c": X * NAN}),
    "another type": (lambda h: [h, 1.0], lambda h: [h, X * NAN]),
    "a bad number of Python": (lambda h: [h, 1.0], lambda h: [h, NAN]),
    "one tensor for two": (lambda h: [h, h.clone()], lambda h: [h * NAN] * 2),
    "two tensors for one": (lambda h: [h, h], lambda h: [h, h * NAN]),
    "whole numbers no longer": (lambda h: [h, torch.arange(2)], lambda h: [h, X * NAN]),
    "a row no longer empty": (lambda h: (h, []), lambda h: (h, [X * NAN])),
    "a mapping no longer empty": (lambda h: (h, {}), lambda h: (h, {"a": X * NAN})),
    "one row for two": (lambda h: ((h,), (SHARED,)), lambda h: ((h,), (X * NAN,))),
}


@pytest.mark.parametrize("way", DIFFERS)
def test_a_forward_that_differs_from_those_before_is_read_anew(way):
    model, (before, then) = Shapes(), DIFFERS[way]
    for around in (nan.watch, nan.guard):
        with torch.no_grad(), around(model) as found:
            model.gives = before
            for _ in range(4):
                model(X, mask=None, also=(X, [1]))
            model.gives = then
            model(X, mask=None, also=(X, [1]))
            model.gives = before
            model(X, mask=None, also=(X, [1]))
        assert found.status == "bad", (way, around, found.not_seen())
