"""What is counted after a forward is what passed in it, and nothing stays on the model."""

from __future__ import annotations

import copy
import gc

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import lab.nan  # noqa: E402
from lab.rooms.nan.watch import seam  # noqa: E402
from lab.rooms.nan.workload.changes import provoke  # noqa: E402
from lab.rooms.nan.workload.model import generate  # noqa: E402
from tests.rooms.nan.watch.models import Body, prompt, tiny, watched  # noqa: E402


class Scripted(nn.Module):
    """Calls the same modules in every forward; the script names what happens after each of them."""

    OPS = ("anew", "same", "written before", "written after", "pair")

    def __init__(self, length, deep=False):
        super().__init__()
        self.deep = deep
        self.children_ = nn.ModuleList([nn.Hardtanh(-1e6, 1e6) if n % 2 else Inner() for n in range(length)])
        self.script = ()

    def forward(self, x):
        for child, op in zip(self.children_, self.script, strict=True):
            y = child((x, x) if op == "pair" and isinstance(child, Inner) else x)
            if op == "written after":
                y += float("nan")
            x = y.clone().add_(1) if op == "written before" else y + 1 if op == "anew" else y
        return {"last": x, "all": [(x, x * 2)]} if self.deep else {"last": x, "twice": x * 2}


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Identity()

    def forward(self, x):
        return self.inside(x[0] + x[1] if isinstance(x, tuple) else x + 1)


def leaf_counts(model, scripts, **states):
    """The watch, and for each forward its (label, counts) in order; None for overwritten tensors."""
    w = lab.nan.watch(model, counter="plain")
    for name, value in states.items():
        setattr(w, name, value)
    counted, real = [], w._sum_up

    def spied(step, forward, bad):
        known = [forward.rows[u].tolist() if u >= 0 else None for u in forward.leaf_rows]
        counted.append(list(zip(forward.labels, known, strict=True)))
        return real(step, forward, bad)

    w._sum_up = spied
    with torch.no_grad(), w:
        for model.script in scripts:
            model(torch.tensor([1.0, 2.0]))
    return w, counted


def scripts_of(length):
    one = st.one_of(st.just(("anew",) * length), st.tuples(*[st.sampled_from(Scripted.OPS)] * length))
    return st.lists(one, min_size=1, max_size=7)


@settings(max_examples=60)
@given(st.integers(1, 4).flatmap(scripts_of), st.booleans())
def test_what_is_counted_after_a_forward_is_what_passed_in_it_whatever_was_written_in_place(scripts, deep):
    model = Scripted(len(scripts[0]), deep)
    _, at_once = leaf_counts(model, scripts, _at_once=True)
    usual, together = leaf_counts(model, scripts)
    for script, truth, found in zip(scripts, at_once, together, strict=True):
        assert [label for label, _ in found] == [label for label, _ in truth]
        assert all(b is None or str(b) == str(a) for (_, a), (_, b) in zip(truth, found, strict=True))
        if "written after" not in script:
            assert None not in [counts for _, counts in found]
    if not any("written after" in script for script in scripts):
        assert usual.notes == []


def test_each_tensor_is_counted_at_once_after_one_was_overwritten():
    scripts = [("anew", "anew")] * 2 + [("written before", "anew")] * 2 + [("written after", "anew")] * 2
    usual, counted = leaf_counts(Scripted(2), scripts)
    unknown = [sum(counts is None for _, counts in forward) for forward in counted]
    assert [n > 0 for n in unknown] == [False] * 4 + [True, False]
    assert "overwritten in place before the end of a forward" in usual.notes[0] and usual._at_once
    assert usual.steps[5].bad_leaves > 0 and usual.status == "bad"


class Shy(dict):
    """Its first readers are refused."""

    refusals = 0

    def items(self):
        if Shy.refusals:
            Shy.refusals -= 1
            raise RuntimeError("not now")
        return super().items()


class Gives(nn.Module):
    bad = False

    def forward(self, x):
        y = x.clone().add_(0)  # written before it passes
        return Shy(y=y.fill_(float("nan")) if self.bad else y)


class Wipes(nn.Module):
    def forward(self, given):
        return given["y"].zero_() + 1


@pytest.mark.parametrize("refusals", [0, 1, 2, 3])
def test_where_an_output_could_not_be_read_nobody_is_accused_for_certain(refusals):
    model = nn.Sequential(Gives(), Wipes())
    with torch.no_grad(), lab.nan.watch(model) as w:
        for number in range(4):
            model[0].bad = number == 3
            Shy.refusals = refusals if model[0].bad else 0
            model(torch.ones(2, 4))
    Shy.refusals = 0
    assert w.status == ("bad" if refusals < 2 else "partly-seen"), w.not_seen()
    if refusals == 0:
        assert (w.first.module, w.first.kind) == ("0", "output")
    if refusals == 1:  # what module 0 gave was not read, what module 1 took was
        assert w.first.kind == "unknown" and "RuntimeError: not now" in w.first.unsure


def test_what_came_out_of_a_generator_is_not_the_fault_of_the_code_that_took_it():
    class Gives(nn.Module):
        def forward(self, x):
            return (part for part in [x / 0 - x / 0])

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.gives, self.last = Gives(), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(next(self.gives(x)))

    w = watched(Takes(), torch.ones(2, 4))
    assert (w.first.kind, w.first.before) == ("unknown", "last"), w.first.place
    assert "output of gives (a generator) was not looked into" in w.first.place


@pytest.mark.parametrize("begins", [0, 3])
def test_a_part_that_runs_in_inference_mode_is_counted_from_its_second_forward_on(begins):
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.step = nn.Linear(4, 4), nn.Linear(4, 4), -1

        def forward(self, x):
            self.step += 1
            with torch.inference_mode(self.step >= begins):
                hidden = self.first(x * float("nan") if self.step == 5 else x)
                out = torch.nan_to_num(self.second(hidden))
                hidden.zero_() if self.step >= begins else None  # which no version tells
            return out.clone()

    model = Partly()
    with torch.no_grad(), lab.nan.watch(model) as w:
        for _ in range(7):
            model(torch.ones(1, 4))
    assert [step.number for step in w.steps if step.bad_leaves] == [5]
    assert (w.first.module, w.first.kind, w.first.before) == ("", "between", "first")
    assert not w.failed and (w.unknown > 0) == (begins > 0)


def test_letting_go_of_references_midway_changes_no_finding():
    model = tiny(layers=6)
    ids, mask = prompt()
    provoke(model, "scores", 3, ids, mask)
    whole, pieces = lab.nan.watch(model), lab.nan.watch(model, budget_bytes=1)
    generate(model, ids, mask, 2, whole)
    generate(model, ids, mask, 2, pieces)
    assert pieces.first == whole.first
    assert [row.role for row in pieces.steps[0].rows] == [row.role for row in whole.steps[0].rows]


def test_tensors_overwritten_in_place_are_counted_at_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].bias.fill_(-float("inf"))
    w = watched(model, torch.ones(1, 4))
    # After the ReLU nothing of the linear layer's infinities is left; only counting at once sees them.
    assert (w.first.module, w.first.kind) == ("0", "weights")
    assert w.status == "bad" and w.weights[0]["name"] == "0.bias"


def test_inference_mode_is_watched_too():
    with torch.inference_mode(), lab.nan.watch(Body(after=lambda x: x / 0)) as w:
        w.model(torch.ones(1, 4))
    assert w.first.kind == "between"


def test_a_count_that_fails_leaves_neither_references_nor_a_stopped_gc():
    def fails(tensors):
        raise MemoryError("no room to count in")

    body = Body()
    with torch.no_grad(), lab.nan.watch(body) as w:
        w._begin_count, right = fails, w._begin_count
        body(torch.ones(1, 4))
        assert gc.isenabled() and not w._lanes.lane.values
        w._begin_count = right
        body(torch.ones(1, 4))
    assert "no room to count in" in w.notes[0]
    assert w.failed == 1 and w.status == "partly-seen" and not w.clean


def test_watches_left_out_of_order_leave_nothing():
    plain, body = nn.Module.__call__, Body()
    outer, inner = lab.nan.watch(body), lab.nan.watch(body)
    outer.__enter__()
    inner.__enter__()
    body(torch.ones(1, 4))
    outer.__exit__()
    body(torch.ones(1, 4))
    inner.__exit__()
    body(torch.ones(1, 4))
    assert (len(outer.steps), len(inner.steps)) == (1, 2)
    assert nn.Module.__call__ is plain and not seam._table and not seam._direct and not seam._directs


def test_a_patch_that_was_made_meanwhile_stays_and_works():
    plain = nn.Module.__call__
    try:
        with lab.nan.watch(Body()) as w:
            ours = nn.Module.__call__
            nn.Module.__call__ = lambda self, *args, **kwargs: ours(self, *args, **kwargs)
            w.model(torch.ones(1, 4))
        assert nn.Module.__call__ is not plain and w.model(torch.ones(1, 4)).shape == (1, 4)
        assert len(w.steps) == 1
    finally:
        nn.Module.__call__ = plain


class Routed(nn.Module):
    """A layer; in one of two its router writes in place to what it gives then."""

    def __init__(self, writes):
        super().__init__()
        self.router, self.out = (Router() if writes else nn.Identity()), nn.Linear(4, 4)

    def forward(self, x):
        return self.out(x * self.router(x))


class Router(nn.Module):
    def forward(self, x):
        weights = x * x
        weights /= weights.sum(-1, keepdim=True)
        return weights


def test_what_a_checkpoint_repeats_of_one_layer_says_nothing_of_another_one():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Routed(True), Routed(False)])

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    assert_training_is_clean(copy.deepcopy(Model()))


@pytest.mark.skipif(not hasattr(nn.utils, "parametrizations"), reason="this torch has no parametrizations")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_weights_that_a_module_takes_are_written_by_updates(kind):
    parametrize = getattr(nn.utils.parametrizations, kind)
    assert_training_is_clean(copy.deepcopy(nn.Sequential(parametrize(nn.Linear(4, 4)), nn.Linear(4, 4))))


def assert_training_is_clean(model):
    """A copy's weights were never written, as those that were loaded."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with lab.nan.guard(model, optimizer) as g:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()).square().sum().backward()
            optimizer.step()
    assert (g.status, g.not_seen(), g.training.watch.notes) == ("clean", [], [])
