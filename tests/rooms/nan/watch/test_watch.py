"""The watch names who makes the first bad number, and leaves nothing on the model."""

from __future__ import annotations

import random
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import lab.nan  # noqa: E402
from lab.errors import UsageError  # noqa: E402
from lab.rooms.nan.watch.watch import NonFiniteError  # noqa: E402
from lab.rooms.nan.workload.changes import provoke  # noqa: E402
from lab.rooms.nan.workload.model import generate  # noqa: E402
from tests.rooms.nan.watch.models import Body, prompt, tiny, watched  # noqa: E402


def test_a_clean_forward_has_no_birth_and_every_module_is_counted():
    w = watched(Body(), torch.ones(2, 4))
    assert w.clean and w.first is None
    assert {(t.module, t.side) for t in w.totals()} == {
        (m, s) for m in ("", "first", "second") for s in ("in", "out")
    }


def test_a_birth_between_modules_is_told_as_a_place_in_the_parent():
    w = watched(Body(after=lambda x: x * float("inf")), torch.ones(2, 4))
    assert (w.first.module, w.first.kind) == ("", "between")
    assert w.first.place == "in the model itself, after first, before second"


def test_a_forward_that_is_called_directly_is_named_as_not_seen():
    body = Body(after=lambda x: x)
    top = nn.ModuleDict({"body": body, "other": nn.Sequential(nn.Linear(4, 4))})
    with lab.nan.watch(top) as w:
        top["body"](torch.ones(2, 4))
        top["other"].forward(torch.ones(2, 4))  # has no code of its own
    assert w.status == "clean" and not w.direct
    with lab.nan.watch(top) as w:
        top["body"].forward(torch.ones(2, 4)) / 0
    assert w.status == "partly-seen" and "the forward of body was called directly" in w.not_seen()[0]


def test_a_module_that_swallows_a_nan_is_an_absorber():
    class Swallow(nn.Module):
        def forward(self, x):
            return torch.nan_to_num(x)

    body = Body(after=lambda x: x * float("nan"))
    body.second = Swallow()
    w = watched(body, torch.ones(2, 4))
    assert {r.role for r in w.steps[0].rows if r.module == "second"} == {"absorber"}
    assert w.steps[0].bad_leaves == 1 and not w.steps[0].reached_output


@pytest.mark.parametrize("number", range(20))
def test_the_planted_producer_is_found_in_twenty_of_twenty_random_provocations(number):
    dice = random.Random(number)
    kind = dice.choice(["overflow", "scores", "nan-weight", "masked-softmax"])
    model = tiny(seed=number, layers=dice.randint(2, 6))
    ids, mask = prompt(*["dizzy", "a longer prompt"][: dice.randint(1, 2)])
    planted = provoke(model, kind, dice.randrange(len(model.model.layers)), ids, mask)
    w = lab.nan.watch(model)
    generate(model, ids, mask, dice.randint(1, 3), w)
    assert w.first.module == planted["expected"], (kind, w.first.place)
    assert w.first_step.phase == "prefill" and w.first_step.reached_output


def test_fused_attention_survives_the_scores_that_break_the_eager_one():
    found = {}
    for attn in ("eager", "sdpa"):
        model = tiny(attn)
        ids, mask = prompt()
        provoke(model, "scores", 2, ids, mask)
        w = lab.nan.watch(model)
        generate(model, ids, mask, 3, w)
        found[attn] = w.first
    assert found["eager"].module == "model.layers.2.self_attn" and found["sdpa"] is None


def test_prefill_and_decode_steps_are_told_apart():
    model = tiny("auto")
    w = lab.nan.watch(model)
    generate(model, *prompt(), 4, w)
    assert [step.phase for step in w.steps] == ["prefill", "decode", "decode", "decode"]
    assert {total.phase for total in w.totals()} == {"prefill", "decode"}


def test_the_guard_raises_after_the_forward_and_names_the_producer():
    with (
        pytest.raises(NonFiniteError, match="after first, before second") as caught,
        lab.nan.watch(Body(after=lambda x: x / 0), on_bad="raise") as w,
    ):
        w.model(torch.ones(1, 4))
    assert isinstance(caught.value, FloatingPointError)


def test_the_guard_may_be_a_function():
    seen = []
    with lab.nan.watch(Body(after=lambda x: x / 0), on_bad=seen.append) as w:
        w.model(torch.ones(1, 4))
    assert [step.number for step in seen] == [0]


def test_an_invalid_reaction_is_refused():
    with pytest.raises(UsageError, match="on_bad"):
        lab.nan.watch(Body(), on_bad="stop")


def test_a_watch_that_saw_nothing_is_not_clean():
    with lab.nan.watch(Body()) as w:
        pass
    assert w.status == "nothing-seen" and not w.clean


class Residual(nn.Module):
    """As in Hugging Face's ResNet: the sum goes into the layer's own output."""

    def __init__(self):
        super().__init__()
        self.layer, self.shortcut, self.activation = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        hidden, residual = self.layer(x), self.shortcut(x)
        hidden += residual * float("inf")
        return self.activation(hidden)


def test_an_overflow_of_an_in_place_residual_is_named_in_the_first_forward():
    model = nn.Sequential(Residual(), nn.Linear(4, 4))
    for _ in range(2):
        w = watched(model, torch.ones(1, 4))
        assert w.first.place == "in 0, after shortcut, before activation"


def test_a_sum_in_place_that_begins_late_is_unknown_and_never_accuses_who_took_it():
    class Late(Residual):
        late = False

        def forward(self, x):
            hidden, residual = self.layer(x), self.shortcut(x)
            if self.late:
                hidden += residual.abs() * float("inf")  # of minus infinity alone a ReLU would leave nothing
            return self.activation(hidden)

    model = Late()
    with torch.no_grad(), lab.nan.watch(model) as w:
        for model.late in (False, False, True, True, True):
            model(torch.ones(1, 4))
    assert [len(step.births) > 0 for step in w.steps] == [False, False, True, True, True]
    assert w.steps[2].births[0].kind == "unknown" and "overwritten" in w.steps[2].births[0].unsure
    assert w.first is w.steps[2].births[0]  # what comes later may have another cause
    assert w.steps[3].births[0].place == "in the model itself, after shortcut, before activation"


def test_a_checkpoints_recomputation_is_no_forward_of_its_own():
    class Saves(Body):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    model = Saves()
    with lab.nan.watch(model) as w:
        for _ in range(3):
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert len(w.steps) == 3 and w.recomputed > 0 and w.clean


@pytest.mark.parametrize(
    "observer",
    [lab.nan.watch, lab.nan.guard, partial(lab.nan.guard, on_bad="replay")],
    ids=["watch", "guard", "replay"],
)
def test_a_module_whose_forward_is_called_directly_is_not_passed_over(observer):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.by = nn.Linear(4, 4), 1

        def forward(self, x):
            return self.layer(x) / self.by

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = Inner(), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.inner.forward(x))

    model = Outer()
    with observer(model) as w:
        for number in range(12):
            model.inner.by = 0 if number == 10 else 1
            model(torch.ones(2, 4))
    assert "inner was not called" in w.first.unsure


def test_a_module_that_came_in_unseen_is_not_passed_over_for_the_code_around_it():
    model = Body()
    with torch.no_grad(), lab.nan.watch(model) as w:
        for step in range(4):
            if step == 2:
                model._modules["first"] = nn.Linear(4, 4)
                model.first.bias.fill_(float("nan"))
            model(torch.ones(2, 4))
    assert w.first.kind == "unknown" and "first, which became part of the model unseen" in w.first.unsure
