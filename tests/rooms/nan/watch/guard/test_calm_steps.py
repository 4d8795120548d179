"""What goes wrong after many calm steps is found, and calm steps hold nothing."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

import lab  # noqa: E402
from lab import nan  # noqa: E402
from lab.rooms.nan.watch import leaves as plain  # noqa: E402
from lab.rooms.nan.watch import recorder  # noqa: E402
from lab.rooms.nan.watch.watch import NonFiniteError  # noqa: E402

OLD = not hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
NAN, LAB = float("nan"), str(Path(lab.__file__).parent)
CALM = 37  # steps, after the first in which a guard looks closer; 40 is one that it reads weights after


class Spoils(torch.autograd.Function):
    """Its input; one column of its output, or one number of its gradient, is NaN, or its backward raises."""

    @staticmethod
    def forward(ctx, given, how):
        ctx.how = how
        return given * torch.tensor([NAN, 1, 1, 1]) if how == "forward" else given.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.how == "raises":
            raise KeyError("the program's own")
        grad = grad.clone()
        if ctx.how == "backward":
            grad.view(-1)[0] = NAN
        return grad, None


class Spoiler(nn.Module):
    how = ""

    def forward(self, x):
        return Spoils.apply(x, self.how)


class Wipes(nn.Module):
    def forward(self, x):
        return x.nan_to_num()


class Program:
    """A small training, of which one step is run by the test."""

    def __init__(self):
        torch.manual_seed(0)
        self.spoiler, self.other = Spoiler(), Spoiler()
        layers = (
            nn.Linear(4, 4),
            self.spoiler,
            Wipes(),
            nn.BatchNorm1d(4),
            nn.ReLU(),
            self.other,
            nn.Linear(4, 1),
        )
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.x = torch.randn(8, 4)

    def backward(self, scale=1.0, **kwargs):
        loss = self.model(self.x).square().mean() * scale
        loss.backward(**kwargs)
        return loss

    def step(self):
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()

    def spoilt(self, spoiler, how):
        """A forward and a backward in which one of the spoilers is at work."""
        spoiler.how = how
        try:
            self.backward()
        finally:
            spoiler.how = ""


def wiped_before_the_update(p):
    p.spoilt(p.spoiler, "backward")
    for one in p.model.parameters():
        one.grad.nan_to_num_()
    p.optimizer.step()


def wiped_in_the_forward(p):
    p.spoilt(p.spoiler, "forward")
    p.optimizer.step()


def replaced(p):
    p.backward()
    p.model[0].weight.grad = torch.full((4, 4), NAN)
    p.optimizer.step()


def written_in_between(p):
    p.backward()
    p.model[0].weight.grad.mul_(NAN)
    p.optimizer.step()


def raised_in_backward(p):
    """The gradient is NaN when it leaves one spoiler, and the other raises."""
    p.spoiler.how = "raises"
    with pytest.raises(KeyError):
        p.spoilt(p.other, "backward")
    p.spoiler.how = ""


def in_the_second_backward(p):
    p.backward()
    p.spoilt(p.spoiler, "backward")
    p.optimizer.step()


def in_a_graph_that_is_kept(p):
    loss = p.backward(retain_graph=True)
    loss.register_hook(lambda grad: grad * NAN)
    loss.backward()
    p.optimizer.step()


def no_optimizer(p):
    p.spoilt(p.spoiler, "backward")
    with torch.no_grad():
        for one in p.model.parameters():
            one.sub_(one.grad.nan_to_num() * 1e-3)


def in_another_thread(p):
    thread = threading.Thread(target=lambda: (p.spoilt(p.spoiler, "backward"), p.optimizer.step()))
    thread.start()
    thread.join()


def a_weight_written_before(p):
    p.backward()
    with torch.no_grad():
        p.model[6].bias[0] = NAN
    p.optimizer.step()


def a_learning_rate(p):
    p.backward()
    p.optimizer.param_groups[0]["lr"] = NAN
    p.optimizer.step()


def a_buffer(p):
    p.backward()
    p.model[3].running_var[0] = NAN
    p.optimizer.step()


def a_batch(p):
    p.x[0, 0] = NAN
    p.backward()
    p.optimizer.step()
    p.x = torch.randn(8, 4)


def another_batch(p):
    p.x, before = torch.full((8, 4), NAN), p.x
    p.backward()
    p.optimizer.step()
    p.x = before


def a_loss(p):
    p.backward(scale=NAN)
    p.optimizer.step()


def a_new_group(p):
    p.model.append(nn.Linear(1, 1))
    p.optimizer.add_param_group({"params": [*p.model[7].parameters()]})
    p.backward()
    p.model[7].weight.grad.fill_(NAN)
    p.optimizer.step()


def without_gradients(p):
    with torch.no_grad():
        p.other.how = "forward"
        p.model(p.x)
        p.other.how = ""


def raised_in_the_forward(p):
    with pytest.raises(RuntimeError):
        p.model(torch.randn(8, 5))
    p.spoilt(p.other, "forward")


def by_a_hook_on_a_module(p):
    p.model[0].register_forward_hook(lambda module, args, output: output * NAN)
    p.backward()


def by_a_hook_on_the_model(p):
    p.model.register_forward_pre_hook(lambda module, args: (args[0] / 0,))
    p.backward()


def by_a_new_module(p):
    p.model.append(Spoiler())
    p.model[7].how = "forward"
    p.model(p.x.repeat(1, 1))


def in_a_closure(p):
    p.optimizer.step(lambda: p.spoilt(p.spoiler, "backward"))


def by_a_second_optimizer(p):
    p.backward()
    p.optimizer.step()
    torch.optim.SGD(p.model.parameters(), lr=NAN).step()


def in_a_second_step_without_a_forward(p):
    p.backward()
    p.optimizer.step()
    p.model[0].weight.grad[0, 0] = NAN
    p.optimizer.step()


def clipped(p):
    p.spoilt(p.spoiler, "backward")
    nn.utils.clip_grad_norm_(p.model.parameters(), 1.0)
    p.optimizer.step()


def dropped_before_the_update(p):
    p.spoilt(p.spoiler, "backward")
    p.optimizer.zero_grad(set_to_none=True)
    p.backward()
    p.optimizer.step()


def zeroed_before_the_update(p):
    p.spoilt(p.spoiler, "backward")
    p.optimizer.zero_grad(set_to_none=False)
    p.backward()
    p.optimizer.step()


def of_a_weight_that_nobody_updates(p):
    p.optimizer = torch.optim.SGD(p.model[6].parameters(), lr=0.1)
    p.model[0].weight.register_hook(lambda grad: grad * NAN)
    p.backward()
    p.optimizer.step()


def washed_by_a_hook_of_a_weight(p):
    for one in p.model[0].parameters():
        one.register_hook(torch.nan_to_num)
    p.spoilt(p.spoiler, "backward")
    p.optimizer.step()


def in_an_update_inside_of_backward(p):
    own = {one: torch.optim.SGD([one], lr=0.1) for one in p.model[6].parameters()}

    def update(parameter):
        parameter.grad.mul_(NAN)
        own[parameter].step()
        parameter.grad = None

    for one in own:
        one.register_post_accumulate_grad_hook(update)
    p.backward()


def after_many_more(p):
    for _ in range(30):
        p.step()
    p.spoilt(p.spoiler, "backward")
    p.optimizer.step()


def in_a_state_that_is_read_every_eighth_time(p):
    for _ in range(5):
        p.step()
    p.optimizer.state[p.model[0].weight]["exp_avg"][0, 0] = NAN
    for _ in range(4):
        p.model.zero_grad()
        p.optimizer.step()


# What goes wrong, and the stage in which that is first.
WAYS = {
    wiped_before_the_update: "act_grads",
    wiped_in_the_forward: "forward",
    replaced: "clipped",
    written_in_between: "clipped",
    raised_in_backward: "act_grads",
    in_the_second_backward: "act_grads",
    in_a_graph_that_is_kept: "loss",
    no_optimizer: "act_grads",
    in_another_thread: "act_grads",
    a_weight_written_before: "weights_before",
    a_learning_rate: "weights_after",
    a_buffer: "weights_before",
    a_batch: "batch",
    another_batch: "batch",
    a_loss: "loss",
    a_new_group: "clipped",
    without_gradients: "forward",
    raised_in_the_forward: "forward",
    by_a_hook_on_a_module: "forward",
    by_a_hook_on_the_model: "forward",
    by_a_new_module: "forward",
    in_a_closure: "act_grads",
    by_a_second_optimizer: "weights_after",
    in_a_second_step_without_a_forward: "clipped",
    clipped: "act_grads",
    dropped_before_the_update: "act_grads",
    zeroed_before_the_update: "act_grads",
    of_a_weight_that_nobody_updates: "param_grads",
    washed_by_a_hook_of_a_weight: "act_grads",
    in_an_update_inside_of_backward: "clipped",
    after_many_more: "act_grads",
    in_a_state_that_is_read_every_eighth_time: "opt_state",
}


def verdict(way):
    p = Program()
    with nan.guard(p.model, p.optimizer) as g:
        for _ in range(CALM):
            p.step()
        assert g.status == "clean", (g.not_seen(), g.notes)
        p.optimizer.zero_grad()
        way(p)
    first = g.first
    assert first is not None, (g.sentence(), g.not_seen())
    return (
        first.step,
        first.stage,
        first.module,
        first.place,
        first.unsure,
        first.reason,
        g.training.state.failed,
        g.notes,
    )


@pytest.mark.skipif(OLD, reason="this torch has no such hooks")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_goes_wrong_after_calm_steps_is_found_at_its_stage(way):
    step, stage, *_, failed, _ = verdict(way)
    assert stage == WAYS[way] and step >= CALM and not failed


def test_calm_steps_count_what_they_see():
    p = Program()
    with nan.guard(p.model, p.optimizer) as g:
        for _ in range(CALM):
            p.step()
        seen, forwards = g.training.state.looked_at.copy(), g.training.watch.forwards
        for _ in range(8):
            p.step()
        assert g.step == CALM + 8 and g.training.watch.forwards == forwards + 8
        grown = {stage: g.training.state.looked_at[stage] - count for stage, count in seen.items()}
        assert grown["param_grads"] == 8 * 6 and grown["loss"] == 8
        # With what BatchNorm has of its own
        assert grown["weights_after"] == 6 + 2 and grown["opt_state"] == 3 * 6
    assert g.status == "clean"


def test_a_forward_that_raises_leaves_everything_as_it_was():
    p = Program()
    with nan.guard(p.model, p.optimizer) as g:
        for _ in range(CALM):
            p.step()
        for switch, collects in ((gc.enable, True), (gc.disable, False)):
            switch()
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                p.model(torch.randn(8, 5))
            assert gc.isenabled() is collects
            p.step()
            assert gc.isenabled() is collects
        gc.enable()
    assert g.status == "clean" and g.step == CALM + 2 and not g.training.state.failed


def test_a_guard_may_end_inside_of_a_forward():
    p = Program()
    expected = p.model(p.x)
    g = nan.guard(p.model, p.optimizer).__enter__()
    for _ in range(CALM):
        p.step()
    p.model.eval()
    expected = p.model(p.x)
    hook = p.model[4].register_forward_hook(lambda *_: g.__exit__())
    assert torch.equal(p.model(p.x), expected) and g.training.state.ended
    hook.remove()
    p.model.train()
    p.step()
    assert g.status == "clean" and g.step == CALM


@pytest.mark.parametrize("calm", [0, CALM])
def test_a_forward_in_which_the_guard_ended_is_part_of_its_verdict(calm):
    p = Program()
    g = nan.guard(p.model, p.optimizer).__enter__()
    for _ in range(calm):
        p.step()
    hook = p.model[4].register_forward_hook(lambda *_: g.__exit__())
    p.spoilt(p.spoiler, "forward")
    hook.remove()
    assert g.training.state.ended and g.status == "bad"
    assert (g.first.step, g.first.stage, g.first.module) == (calm, "forward", "1")


@pytest.mark.parametrize("way", ["_absorb", "ends", "settle"])
def test_what_comes_after_an_interruption_is_seen(way):
    """Ctrl-C while a forward is counted, in a program that goes on: a notebook."""
    p = Program()

    def interrupt(*_):
        raise KeyboardInterrupt

    with nan.guard(p.model, p.optimizer) as g:
        for _ in range(CALM):
            p.step()
        setattr(g.training.watch, way, interrupt)
        with pytest.raises(KeyboardInterrupt):
            p.spoilt(p.spoiler, "forward")
        delattr(g.training.watch, way)
        assert gc.isenabled() and not g.training.watch._lanes.lane.inside
        p.step()
        p.x[0] = NAN
        p.backward()
    stages = [one.stage for step in g.steps for one in step.events]
    assert "batch" in stages
    assert "1 forward not seen: it was interrupted while it was counted" in g.not_seen()


def interrupted_at(event, number):
    """A tracer that raises KeyboardInterrupt once, before the model's own code runs or after it."""
    state = {"left": number, "inside": False}
    opening = {recorder.Recorder._outermost.__code__, recorder.Recorder._open.__code__}
    finish = recorder.Recorder._finish
    ending = {finish.__code__, getattr(finish, "__wrapped__", finish).__code__}

    def trace(frame, kind, _):
        code = frame.f_code
        state["inside"] |= code is nn.Sequential.forward.__code__
        at = code in opening and not state["inside"] if event == "line" else code in ending
        if kind == event and at:
            state["left"] -= 1
            if state["left"] == -1:
                raise KeyboardInterrupt
        return trace if code in opening else None

    return trace, state


@pytest.mark.long
@pytest.mark.parametrize("event", ["line", "call"])
def test_an_interruption_at_any_line_around_a_forward_leaves_no_lane_open(event):
    p, number = Program(), 0
    with nan.guard(p.model, p.optimizer) as g:
        for _ in range(CALM):
            p.step()
        before = sys.gettrace()
        while True:
            trace, state = interrupted_at(event, number)
            sys.settrace(trace)
            try:
                p.model(p.x)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            assert (
                gc.isenabled()
                and not g.training.watch._lanes.lane.inside
                and not g.training.watch._lanes.lane.values
            ), number
            if state["left"] >= 0:
                break
            number += 1
        assert number >= (20 if event == "line" else 1) and not g.steps
        p.x[0] = NAN
        p.backward()
    assert g.first is not None and g.first.stage == "batch"


def test_a_reaction_raises_when_the_forward_has_ended():
    p = Program()
    with pytest.raises(NonFiniteError, match="forward of 5"), nan.guard(p.model, p.optimizer, on_bad="raise"):
        for _ in range(CALM):
            p.step()
        p.other.how = "forward"
        p.model(p.x)
        pytest.fail("the forward went on")


@pytest.mark.long
@pytest.mark.parametrize("headroom", (0, 16))
def test_calm_steps_hold_nothing_but_magnitudes(headroom):
    p = Program()
    with nan.guard(p.model, p.optimizer, headroom=headroom) as g:
        for _ in range(CALM):
            p.step()
        held = (
            g,
            g.training.state,
            g.training.weights,
            p.model,
            p.optimizer,
            p.x,
            p.model[0].weight,
            g.training.parameters.counted,
        )
        gc.collect()
        before, grown = [*map(sys.getrefcount, held)], []
        for _ in range(3):  # in one of which nothing else of this process may have grown
            blocks = sys.getallocatedblocks()
            for _ in range(320):
                p.step()
            gc.collect()
            grown.append(sys.getallocatedblocks() - blocks)
        assert [*map(sys.getrefcount, held)] == before
        assert min(grown) < 160


@pytest.mark.skipif(plain.in_transform is plain._by_stack, reason="this torch tells it by the stack alone")
def test_no_thread_gets_a_stack_of_transforms_that_its_backwards_would_copy(monkeypatch):
    asked = []
    monkeypatch.setattr(plain, "_STACK", lambda: asked.append(1))
    p = Program()
    with nan.guard(p.model, p.optimizer) as g, nan.watch(p.model) as w:
        for _ in range(3):
            p.step()
    assert g.status == w.status == "clean" and not asked


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch before 2.0")
def test_transforms_are_told_wherever_they_run():
    found = []

    def asks(x):
        found.append(plain.in_transform())
        return x.sum()

    asks(torch.ones(3))
    torch.func.grad(asks)(torch.ones(3))
    torch.vmap(asks)(torch.ones(2, 3))
    torch.func.grad(lambda x: torch.vmap(asks)(x).sum())(torch.ones(2, 3))
    asks(torch.ones(3))
    assert found == [False, True, True, True, False]
