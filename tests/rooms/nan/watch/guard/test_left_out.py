"""What a scaler leaves out is put on the right step, whatever the loop around it looks like."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
if not hasattr(torch.amp, "GradScaler"):
    pytest.skip("this torch has no GradScaler for a CPU", allow_module_level=True)
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.watch import NonFiniteError  # noqa: E402
from tests.rooms.nan.watch.guard.test_calm_steps import Spoiler  # noqa: E402
from tests.rooms.nan.watch.guard.test_scalers import HIGH, INF, NAN, loss_of, sgd  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402

COUNT, BAD = 20, (0, 10)  # steps, and those whose gradients overflow


def a_scaler(scale=2.0**10, kind=torch.amp.GradScaler, **more):
    return kind("cpu", scale, **more)


def spoiled():
    return nn.Sequential(nn.Linear(4, 4), Spoiler(), nn.Linear(4, 1))


def overflows(model, now, how="backward"):
    model[1].how = how if now else ""


def as_told(g):
    return g.status, g.step, g.skipped_steps, g.training.state.failed


# Whose scaler it is


@pytest.mark.parametrize("on_bad", ["keep", "raise"])
def test_of_two_models_with_a_scaler_each_that_was_not_given_the_own_one_is_met(on_bad):
    pairs = [(model, sgd(model), a_scaler(HIGH)) for model in (small(), small())]
    with nan.guard(pairs[1][0], on_bad=on_bad) as g:
        for _ in range(COUNT):
            for model, optimizer, scaler in pairs:  # the stranger's comes first
                optimizer.zero_grad()
                scaler.scale(loss_of(model)).backward()
                scaler.step(optimizer)
                scaler.update()
    assert g.status == "clean" and g.training.scaling.scaler is pairs[1][2] and g.skipped_steps >= 3, (
        g.sentence()
    )


def a_strangers_step(other, others, scaler):
    others.zero_grad()
    scaler.scale(loss_of(other)).backward()
    scaler.step(others)
    scaler.update()


def test_a_strangers_scaler_leaves_out_nothing_of_a_model_that_has_none():
    model, other = spoiled(), small()
    optimizer, others, scaler = sgd(model), sgd(other), a_scaler()
    with nan.guard(model) as g:
        for number in range(COUNT):
            a_strangers_step(other, others, scaler)
            overflows(model, number == 10)
            optimizer.zero_grad()
            (loss_of(model) * 2.0).backward()
            optimizer.step()
    assert g.training.scaling.scaler is None and g.first.stage == "act_grads", g.sentence()
    assert g.first.step == 10


@pytest.mark.parametrize("how", ["divided", "list"])
def test_a_reaction_waits_for_a_scaler_that_was_not_given_while_gradients_accumulate(how):
    model = spoiled()
    optimizer, scaler = sgd(model), a_scaler()
    changed = {
        "divided": lambda loss: scaler.scale(loss) / 2,
        "list": lambda loss: scaler.scale([loss, loss * 2]),
    }[how]
    with nan.guard(model, on_bad="raise") as g:
        for number in range(COUNT):
            optimizer.zero_grad()
            for part in range(2):
                overflows(model, number in BAD and not part)
                torch.autograd.backward(changed(loss_of(model)))
            scaler.step(optimizer)
            scaler.update()
    assert as_told(g) == ("clean", COUNT, len(BAD), 0), g.sentence()


@pytest.mark.parametrize("order", ["maker first", "judge first"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("given", [True])
def test_what_a_scaler_leaves_out_of_one_model_is_no_fault_of_another_in_the_same_loss(order, shared, given):
    maker, judge = spoiled(), nn.Sequential(nn.Linear(1, 4), Spoiler(), nn.Linear(4, 1))
    by_maker, by_judge, scaler = sgd(maker), sgd(judge), a_scaler()
    own = scaler if shared else a_scaler()

    def make(number, last):
        by_maker.zero_grad()
        overflows(judge, number in (5, 9))
        scaler.scale(judge(maker(x(8, 4))).square().mean()).backward()
        overflows(judge, False)
        scaler.step(by_maker)
        if last or not shared:
            scaler.update()

    def judges(number, last):
        by_judge.zero_grad()
        own.scale(judge(maker(x(8, 4)).detach()).square().mean()).backward()
        own.step(by_judge)
        if last or not shared:
            own.update()

    rest = (by_judge, own) if given else ()
    with nan.guard(maker) as g, nan.guard(judge, *rest) as h:
        for number in range(COUNT):
            for last, part in enumerate((make, judges) if order == "maker first" else (judges, make)):
                part(number, last)
    assert as_told(g) == ("clean", COUNT, 2, 0) and as_told(h) == ("clean", COUNT, 0, 0), h.sentence()


# Which step


@pytest.mark.parametrize("which", [(2,), (0, 2)], ids=str)
@pytest.mark.parametrize("every", ["step", "optimizer"])
@pytest.mark.parametrize("count", [1, 2])
def test_of_two_optimizers_what_is_left_out_is_one_step(which, every, count):
    """With one scaler or two, that are updated after each optimizer or after both."""
    model = small()
    optimizers = sgd(model[0]), sgd(model[2])
    scalers = [a_scaler() for _ in range(count)]
    by = dict(zip(optimizers, (scalers[0], scalers[-1]), strict=True))
    with nan.guard(model) as g:
        for number in range(COUNT):
            model.zero_grad()
            for scaler, part in zip(by.values(), (model[0], model[2]), strict=True):
                scaler.scale(loss_of(model)).backward(inputs=[*part.parameters()])
            for at in which if number in BAD else ():
                model[at].weight.grad[0, 0] = INF
            for optimizer, scaler in by.items():
                scaler.step(optimizer)
                if every == "optimizer":
                    scaler.update()
            for scaler in scalers if every == "step" else ():
                scaler.update()
    assert as_told(g) == ("clean", COUNT, len(BAD), 0), g.sentence()


@pytest.mark.parametrize("part", [0, 2])
@pytest.mark.parametrize("given", [True, False])
def test_what_overflows_in_one_of_several_backwards_is_left_out_with_their_step(part, given):
    model = spoiled()
    optimizer, scaler = sgd(model), a_scaler()
    with nan.guard(model, *((optimizer, scaler) if given else ())) as g:
        for number in range(COUNT):
            optimizer.zero_grad()
            for at in range(3):
                overflows(model, number in BAD and at == part)
                scaler.scale(loss_of(model) / 3).backward()
            scaler.step(optimizer)
            scaler.update()
    assert as_told(g) == ("clean", COUNT, len(BAD), 0), g.sentence()


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("bad_at", [None, 13])
@pytest.mark.parametrize("left_out", [(10, 11, 12), (10, 12)], ids=str)
def test_an_update_that_comes_after_the_next_forward_mixes_no_steps(given, bad_at, left_out):
    model = spoiled()
    optimizer, scaler = sgd(model), a_scaler(2.0**20)
    with nan.guard(model, *((optimizer, scaler) if given else ())) as g:
        for number in range(COUNT):
            overflows(model, number in left_out)
            if number == bad_at:
                model[1].how = "forward"
            loss = loss_of(model)
            if number:
                scaler.update()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
    if bad_at is None:
        assert as_told(g) == ("clean", COUNT, len(left_out), 0), g.sentence()
    else:
        assert (g.first.step, g.first.stage, g.first.module) == (bad_at, "forward", "1"), g.sentence()


def test_what_an_optimizer_takes_past_the_scaler_is_judged_beside_one_that_it_runs():
    model = small()
    optimizers, scaler = (sgd(model[0]), torch.optim.SGD(model[2].parameters(), 1e-9)), a_scaler()
    with nan.guard(model, optimizers, scaler) as g:
        for number in range(COUNT):
            model.zero_grad()
            scaler.scale(loss_of(model)).backward()
            if number == 10:
                model[2].weight.grad[0, 0] = NAN
            scaler.step(optimizers[0])
            optimizers[1].step()
            scaler.update()
    assert (g.first.step, g.first.stage) == (10, "clipped") and "2.weight" in g.first.place


def test_what_a_hook_washes_away_before_the_scaler_looks_is_bad():
    model = spoiled()
    optimizer, scaler = sgd(model), a_scaler()
    for one in model[0].parameters():
        one.register_hook(torch.nan_to_num)
    with nan.guard(model, optimizer, scaler) as g:
        for number in range(COUNT):
            overflows(model, number == COUNT - 1)
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (g.first.step, g.first.stage) == (COUNT - 1, "act_grads"), g.sentence()


# How a block ends


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("loss", [1.0, NAN])
@pytest.mark.parametrize("last", ["backward", "step", "unscale and update"])
def test_what_a_scaler_has_not_decided_is_neither_clean_nor_bad(given, loss, last):
    model = spoiled()
    optimizer, scaler = sgd(model), a_scaler()
    with nan.guard(model, *((optimizer, scaler) if given else ())) as g:
        for number in range(12):
            at_end = number == 11
            overflows(model, at_end)
            optimizer.zero_grad()
            scaler.scale(loss_of(model) * (loss if at_end else 1.0)).backward()
            if not at_end or last == "step":
                scaler.step(optimizer)
            elif last != "backward":
                scaler.unscale_(optimizer)
            if not at_end or last == "unscale and update":
                scaler.update()
        asked = g.status
    if loss != loss:
        assert asked == g.status == "bad" and (g.first.stage, g.first.step) == ("loss", 11)
    elif last == "backward":
        assert asked == g.status == "partly-seen" and g.first is None
        assert "bad gradients in step 11 wait for the scaler" in g.sentence()
        assert any("bad gradients in step 11" in one for one in g.not_seen())
    else:
        assert asked == g.status == "clean" and (g.step, g.skipped_steps) == (12, 1)


# Loops and scalers as people write them


class Calls(torch.amp.GradScaler):
    def step(self, optimizer, *args, **kwargs):
        return super().step(optimizer, *args, **kwargs)


class OfItsOwn:
    """No scaler of torch's."""

    def __init__(self, device, scale):
        self.value, self.bad = scale, False

    def scale(self, loss):
        return loss * self.value

    def step(self, optimizer):
        grads = [one.grad for group in optimizer.param_groups for one in group["params"]]
        self.bad = not all(one.isfinite().all() for one in grads)
        if not self.bad:
            torch._foreach_div_(grads, self.value)
            optimizer.step()

    def update(self):
        self.value /= 2 if self.bad else 1


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", [torch.amp.GradScaler, Calls, OfItsOwn])
def test_every_kind_of_scaler_leaves_out(kind, given):
    model = spoiled()
    optimizer, scaler = sgd(model), a_scaler(kind=kind)
    with nan.guard(model, *((optimizer, scaler) if given else ())) as g:
        for number in range(COUNT):
            overflows(model, number in BAD)
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update()
    if kind is OfItsOwn and not given:  # nothing says that it is one
        assert (g.first.step, g.first.stage) == (0, "act_grads")
    else:
        assert as_told(g) == ("clean", COUNT, len(BAD), 0), g.sentence()
        assert "2 steps left out by the scaler" in g.sentence()


def clips(model, optimizer, scaler, number):
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def steps_if_finite(model, optimizer, scaler, number):
    scaler.unscale_(optimizer)
    if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
        scaler.step(optimizer)
    scaler.update()


def unscales_by_hand(model, optimizer, scaler, number):
    scale = scaler.get_scale()
    if all(one.grad.isfinite().all() for one in model.parameters()):
        for one in model.parameters():
            one.grad /= scale
        optimizer.step()
    else:
        scaler.update(scale / 2)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("on_bad", ["keep", "raise"])
@pytest.mark.parametrize("how", [clips, steps_if_finite, unscales_by_hand])
def test_a_loop_that_leaves_steps_out_is_clean(how, given, on_bad):
    model = spoiled()
    optimizer, scaler = sgd(model), a_scaler()
    with nan.guard(model, *((optimizer, scaler) if given else ()), on_bad=on_bad) as g:
        for number in range(COUNT):
            overflows(model, number in BAD)
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            how(model, optimizer, scaler, number)
    assert as_told(g) == ("clean", COUNT, len(BAD), 0), g.sentence()


class Accelerated(torch.optim.Optimizer):
    """As accelerate wraps an optimizer: its `step` runs the scaler, with the inner one's `step` replaced."""

    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler
        self.param_groups, self.state, self.called = optimizer.param_groups, optimizer.state, False

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        plain = self.optimizer.step

        def counted(*args, **kwargs):
            self.called = True
            return plain(*args, **kwargs)

        self.optimizer.step = counted
        self.scaler.step(self.optimizer, closure)
        self.scaler.update()
        self.optimizer.step = plain


@pytest.mark.parametrize("given", [0, 1, 2])
def test_an_optimizer_that_runs_the_scaler_itself_is_left_out(given):
    model = spoiled()
    scaler = a_scaler()
    optimizer = Accelerated(sgd(model), scaler)
    with nan.guard(model, *(optimizer, scaler)[:given]) as g:
        for number in range(COUNT):
            overflows(model, number in BAD)
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            optimizer.step()
    assert as_told(g) == ("clean", COUNT, len(BAD), 0), g.sentence()


def test_an_exception_in_a_step_leaves_nothing_behind():
    model, now = spoiled(), [0]
    optimizer, scaler = sgd(model), a_scaler()

    def fails(*_):
        if now[0] == 7:
            raise ValueError("no")

    with nan.guard(model, optimizer, scaler) as g:
        handle = optimizer.register_step_pre_hook(fails)
        for now[0] in range(COUNT):
            overflows(model, now[0] in BAD)
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            try:
                scaler.step(optimizer)
            except ValueError:
                assert g.training.scaling.running is None
            scaler.update()
        handle.remove()
    assert as_told(g) == ("clean", COUNT - 1, len(BAD), 0), g.sentence()


@pytest.mark.parametrize("given", [True, False])
def test_a_scaler_that_is_off_leaves_nothing_out(given):
    model = spoiled()
    optimizer, scaler = sgd(model), a_scaler(enabled=False)
    with nan.guard(model, *((optimizer, scaler) if given else ())) as g:
        for number in range(COUNT):
            overflows(model, number == 10)
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (g.first.step, g.first.stage) == (10, "act_grads") and g.skipped_steps == 0


def test_scalers_are_as_before_when_no_guard_is_left():
    plain = {name: getattr(torch.amp.GradScaler, name) for name in ("scale", "step", "update")}
    with nan.guard(small()), nan.guard(small()):
        assert torch.amp.GradScaler.step is not plain["step"]
    assert plain == {name: getattr(torch.amp.GradScaler, name) for name in plain}


@pytest.mark.parametrize("used", [True, False])
def test_what_an_optimizer_takes_past_its_scaler_is_raised_before_the_update(used):
    model = spoiled()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-9), a_scaler()
    with pytest.raises(NonFiniteError), nan.guard(model, optimizer, scaler, on_bad="raise") as g:
        for number in range(COUNT):
            overflows(model, number == 10)
            optimizer.zero_grad()
            (scaler.scale(loss_of(model)) if used else loss_of(model)).backward()
            optimizer.step()
    assert g.step == 10 and all(one.isfinite().all() for one in model.parameters())
