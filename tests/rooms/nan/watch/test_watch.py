"""The watch names who makes the first bad number, and leaves nothing on the model."""

from __future__ import annotations

import gc
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

import lab.nan  # noqa: E402
from lab.errors import UsageError  # noqa: E402
from lab.rooms.nan.config import NanConfig  # noqa: E402
from lab.rooms.nan.watch import totals  # noqa: E402
from lab.rooms.nan.watch.watch import NonFiniteError  # noqa: E402
from lab.rooms.nan.workload.cell import choose_cell  # noqa: E402
from lab.rooms.nan.workload.generate import forward, generate  # noqa: E402
from lab.rooms.nan.workload.model import load  # noqa: E402
from lab.rooms.nan.workload.provoke import provoke  # noqa: E402
from lab.rooms.nan.workload.tokenizers import ByteTokenizer  # noqa: E402


def tiny(attn="eager", seed=0, layers=4):
    config = NanConfig(experiments=("baseline",), attn=attn, device="cpu", seed=seed, layers=layers)
    return load(config, choose_cell(config, "baseline")).model


def prompt(*texts):
    return ByteTokenizer()(texts or ("dizzy",))


class Body(nn.Module):
    """x + first(x), then second; one of the two, or the sum, may be made to overflow."""

    def __init__(self, after=lambda x: x):
        super().__init__()
        self.first, self.second, self.after = nn.Linear(4, 4), nn.Linear(4, 4), after

    def forward(self, x):
        return self.second(self.after(x + self.first(x)))


def watched(model, *args, **kwargs):
    with torch.no_grad(), lab.nan.watch(model, counter="plain") as w:
        model(*args, **kwargs)
    return w


def test_a_clean_forward_has_no_birth_and_every_module_is_counted():
    w = watched(Body(), torch.ones(2, 4))
    assert w.clean and w.first is None
    assert {(t.module, t.side) for t in w.totals()} == {
        (m, s) for m in ("", "first", "second") for s in ("in", "out")
    }


def test_a_birth_between_modules_is_told_as_a_place_in_the_parent():
    w = watched(Body(after=lambda x: x * float("inf")), torch.ones(2, 4))
    assert (w.first.module, w.first.how) == ("", "between")
    assert w.first.place == "in the model itself, after first, before second"


def test_a_modules_own_output_is_told_as_its_birth():
    body = Body()
    body.first.forward = lambda x: x / 0
    w = watched(body, torch.ones(2, 4))
    assert (w.first.module, w.first.how) == ("first", "output")
    assert {row.module: row.role for row in w.steps[0].rows} == {
        "": "contains",
        "first": "producer",
        "second": "propagator",
    }


def test_a_bad_weight_is_found_before_any_forward_and_named_as_the_birth():
    body = Body()
    with torch.no_grad():
        body.second.weight[0, 0] = float("nan")
    w = watched(body, torch.ones(2, 4))
    assert [one["name"] for one in w.weights] == ["second.weight"]
    assert (w.first.module, w.first.how) == ("second", "weights")


def test_bad_inputs_are_nobodys_birth_but_given():
    w = watched(Body(), torch.full((2, 4), float("inf")))
    assert w.first.how == "given" and "inputs" in w.first.place


def test_a_module_that_swallows_a_nan_is_an_absorber():
    class Swallow(nn.Module):
        def forward(self, x):
            return torch.nan_to_num(x, posinf=0.0)

    body = Body(after=lambda x: x * float("inf"))
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


def test_a_bad_cache_is_told_as_the_cache_and_not_as_a_new_birth():
    model = tiny()
    ids, mask = prompt()
    with torch.no_grad(), lab.nan.watch(model) as w:
        state = forward(model, ids, mask).past_key_values
        state.layers[1].values[..., 0, :] = float("nan")
        longer = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        forward(model, ids[:, :1], longer, state)
    assert w.steps[0].births == [] and w.first_step.phase == "decode"
    assert (w.first.module, w.first.how) == ("model.layers.1.self_attn", "cache")


def test_prefill_and_decode_steps_are_told_apart():
    model = tiny("auto")
    w = lab.nan.watch(model)
    generate(model, *prompt(), 4, w)
    assert [step.phase for step in w.steps] == ["prefill", "decode", "decode", "decode"]
    assert {total.phase for total in w.totals()} == {"prefill", "decode"}


def test_a_forward_read_by_its_template_gives_what_reading_event_by_event_gives():
    model = tiny("auto")
    ids, mask = prompt()
    slow, fast = lab.nan.watch(model), lab.nan.watch(model)
    slow._templates = NoTemplates()
    generate(model, ids, mask, 5, slow)
    generate(model, ids, mask, 5, fast)
    assert fast._templates["decode"] is not None
    assert [step.totals for step in fast.steps] == [step.totals for step in slow.steps]
    told = [
        [(t.module, t.side, t.leaf, t.phase, t.calls, t.counts.tolist()) for t in w.totals()]
        for w in (slow, fast)
    ]
    assert told[0] == told[1]


class NoTemplates(dict):
    def __setitem__(self, key, value):
        pass


class Scripted(nn.Module):
    """Calls the same modules in every forward; what happens between them is the script of that forward, an op a module."""

    OPS = ("anew", "same", "written before", "written after", "pair")

    def __init__(self, length, deep=False):
        super().__init__()
        self.deep = deep  # deeper than templates look
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
    """The watch, and for each forward its (label, counts) in order; counts are None where a tensor was overwritten."""
    w = lab.nan.watch(model, counter="plain")
    for name, value in states.items():
        setattr(w, name, value)
    told, real = [], w._sum_up

    def spied(step, seen, bad):
        known = [seen.counts[u].tolist() if u >= 0 else None for u in seen.index]
        told.append(list(zip(seen.labels, known, strict=True)))
        return real(step, seen, bad)

    w._sum_up = spied
    with torch.no_grad(), w:
        for model.script in scripts:
            model(torch.tensor([1.0, 2.0]))
    return w, told


def scripts_of(length):
    one = st.one_of(st.just(("anew",) * length), st.tuples(*[st.sampled_from(Scripted.OPS)] * length))
    return st.lists(one, min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4).flatmap(scripts_of), st.booleans())
def test_what_is_counted_after_a_forward_is_what_passed_in_it_whatever_was_written_in_place(scripts, deep):
    model = Scripted(len(scripts[0]), deep)
    _, at_once = leaf_counts(model, scripts, _at_once=True)
    noting, slow = leaf_counts(model, scripts, _never_written={"forward": False}, _templates=NoTemplates())
    usual, fast = leaf_counts(model, scripts)
    for script, truth, *told in zip(scripts, at_once, slow, fast, strict=True):
        for found in told:
            assert [label for label, _ in found] == [label for label, _ in truth]
            assert all(b is None or str(b) == str(a) for (_, a), (_, b) in zip(truth, found, strict=True))
            if not {"written before", "written after"} & {*script}:
                assert None not in [counts for _, counts in found]
    if not any("written after" in script for script in scripts):
        assert noting.notes == [] and all(None not in [c for _, c in found] for found in slow)
        if usual.notes == []:
            assert [step.totals for step in usual.steps] == [step.totals for step in noting.steps]


def test_versions_are_noted_again_once_a_tensor_was_written_unexpectedly():
    usual, told = leaf_counts(
        Scripted(2), [("anew", "anew")] * 2 + [("written before", "anew")] * 2 + [("written after", "anew")]
    )
    unknown = [sum(counts is None for _, counts in forward) for forward in told]
    # The third forward cannot tell before from after, the fourth noted it, and the fifth knows that it was after.
    assert [n > 0 for n in unknown] == [False, False, True, False, True]
    assert "forward 2 written in place, for the first time" in usual.notes[0]
    assert "overwritten in place before the end of forward 4" in usual.notes[1]
    assert usual.steps[4].bad_leaves > 0 and usual._at_once


def test_a_tensor_that_was_one_and_is_two_now_is_not_read_by_the_old_template():
    model = nn.Sequential(nn.Hardtanh(), nn.Dropout(0.5))
    fast, slow = lab.nan.watch(model), lab.nan.watch(model)
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


def test_a_forward_with_another_structure_is_read_one_by_one_and_becomes_the_next_template():
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.more = nn.Linear(2, 2), False

        def forward(self, x, extra=None):
            y = self.first(x)
            return (y, self.first(y)) if self.more else (y,)

    model = Grows()
    with torch.no_grad(), lab.nan.watch(model, counter="plain") as w:
        for model.more, extra in [
            (False, None),
            (False, None),
            (True, None),
            (True, torch.ones(2)),
            (False, (torch.ones(2), 1)),
        ]:
            model(torch.ones(1, 2), extra=extra)
        one, whole = torch.ones(2), torch.ones(2, dtype=torch.long)
        for extra in [(one,), (one,), (one, torch.ones(2)), whole, whole, one]:
            model(torch.ones(1, 2), extra=extra)
    leaves = {(t.module, t.side, t.leaf): t.calls for t in w.totals()}
    given = [leaves["", "in", leaf] for leaf in ("extra", "extra[0]", "extra[1]")]
    assert given == [2, 4, 1]
    assert leaves["first", "in", "args[0]"] == 13


def test_inputs_made_in_inference_mode_are_watched_outside_of_it():
    with torch.inference_mode():
        x = torch.ones(1, 4)
    assert watched(Body(after=lambda x: x / 0), x).first.how == "between"


def test_totals_of_many_forwards_are_those_of_each(monkeypatch):
    def run(most):
        monkeypatch.setattr(totals, "MOST_WAITING", most)
        torch.manual_seed(0)
        body = Body()
        with torch.no_grad(), lab.nan.watch(body, counter="plain") as w:
            for n in range(7):
                body(torch.full((1, 4), float("inf") if n == 4 else n * 1e-41))
        return [step.totals for step in w.steps], [
            (t.counts.tolist(), t.calls, t.first_bad_step) for t in w.totals()
        ]

    assert run(1) == run(3) == run(100)


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
    assert (w.first.module, w.first.how) == ("0", "weights")
    assert {row.module: row.role for row in w.steps[0].rows}["1"] == "absorber"


def test_an_overwritten_tensor_is_unknown_first_and_counted_from_then_on():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            y = self.inner(x)
            y += float("inf")
            return y

    model = Adds()
    with torch.no_grad(), lab.nan.watch(model) as w:
        model(torch.ones(1, 4))
        model(torch.ones(1, 4))
    assert "overwritten in place" in w.notes[0]
    assert w.steps[1].births[0].module == "" and w.steps[1].births[0].how == "between"


def test_inference_mode_is_watched_too():
    with torch.inference_mode(), lab.nan.watch(Body(after=lambda x: x / 0)) as w:
        w.model(torch.ones(1, 4))
    assert w.first.how == "between"


def test_nothing_stays_on_the_model_even_after_an_exception():
    model = tiny()
    before = [dict(module.__dict__) for module in model.modules()]
    with pytest.raises(RuntimeError), lab.nan.watch(model):
        model(input_ids=torch.ones(1, 3, dtype=torch.long), attention_mask=torch.ones(1, 7, 9))
    for module, old in zip(model.modules(), before, strict=True):
        assert module.__dict__.keys() == old.keys()
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert gc.isenabled()


def test_a_count_that_fails_leaves_neither_references_nor_a_stopped_gc():
    def fails(tensors):
        raise MemoryError("no room to count in")

    body = Body()
    with torch.no_grad(), lab.nan.watch(body) as w:
        w._begin_count, right = fails, w._begin_count
        with pytest.raises(MemoryError):
            body(torch.ones(1, 4))
        assert gc.isenabled() and not w._events
        w._begin_count = right
        body(torch.ones(1, 4))
    assert len(w.steps) == 1 and w.clean


def test_a_forward_that_a_library_wrapped_is_put_back_as_it_was():
    body = Body()
    mine = body.first.forward
    body.first.forward = wrapper = lambda x: mine(x)
    watched(body, torch.ones(1, 4))
    assert body.first.forward is wrapper and "forward" not in body.second.__dict__


def test_a_watch_that_was_wrapped_over_only_passes_on_when_it_has_ended():
    body = Body()
    with lab.nan.watch(body) as w:
        inner = body.first.forward
        body.first.forward = lambda x: inner(x)
    seen = len(w.steps)
    body(torch.ones(1, 4))
    assert len(w.steps) == seen


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


def test_nested_outputs_and_keyword_inputs_are_watched_and_masks_are_not():
    class Nested(nn.Module):
        def forward(self, *, states, attention_mask):
            return {"hidden": (states, [states * float("inf")]), "past_key_values": states * float("nan")}

    w = watched(Nested(), states=torch.ones(2), attention_mask=torch.full((2,), -float("inf")))
    leaves = {(t.side, t.leaf): t.counts[:3].sum() for t in w.totals()}
    assert leaves == {("in", "states"): 0, ("out", "hidden[0]"): 0, ("out", "hidden[1][0]"): 2}


def test_gradients_still_flow_through_a_watched_model():
    body = Body()
    with lab.nan.watch(body):
        body(torch.ones(2, 4)).sum().backward()
    assert body.first.weight.grad is not None


def test_what_cannot_be_watched_is_refused_in_words():
    with pytest.raises(UsageError, match="copies the model"):
        lab.nan.watch(nn.DataParallel(Body()))
    with pytest.raises(UsageError, match="compiled model"):
        lab.nan.watch(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)))
    with pytest.raises(UsageError, match="on_bad"):
        lab.nan.watch(Body(), on_bad="stop")
