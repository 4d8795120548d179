"""What a gradient scaler leaves out on its way to a scale is no fault; what goes on is one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
if not hasattr(torch.amp, "GradScaler"):
    pytest.skip("this torch has no GradScaler for a CPU", allow_module_level=True)
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.guard.scaling import Scaling  # noqa: E402
from tests.rooms.nan.watch.guard.test_calm_steps import Spoiler  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402

NAN, INF = float("nan"), float("inf")
HIGH = 2.0**127  # what the smallest loss overflows under


def sgd(model, **more):
    return torch.optim.SGD(model.parameters(), 1e-3, **more)


def loss_of(model):
    return model(x(8, 4)).square().mean() * 64


FUSED = {
    "adam": lambda model: torch.optim.AdamW(model.parameters(), fused=True),
    "sgd": lambda model: sgd(model, fused=True),
    "plain": sgd,
}


@pytest.mark.parametrize("unscales", [True, False])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", FUSED)
def test_a_fused_optimizer_runs_and_leaves_its_update_out(kind, given, unscales):
    model = small()
    optimizer, scaler = FUSED[kind](model), torch.amp.GradScaler("cpu", HIGH)
    with nan.guard(model, *((optimizer, scaler) if given else ())) as g:
        for _ in range(20):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert g.status == "clean", g.sentence()
    assert (
        g.status == "clean" and g.step == 20 and g.skipped_steps >= 3 and g.training.scaling.scaler is scaler
    )


@pytest.mark.parametrize("first", [0, 2])
def test_one_of_two_optimizers_may_be_left_out(first):
    model = small()
    optimizers = sgd(model[first]), sgd(model[2 - first])
    scaler = torch.amp.GradScaler("cpu", 2.0**10)
    with nan.guard(model, optimizers, scaler) as g:
        for number in range(30):
            model.zero_grad()
            scaler.scale(loss_of(model)).backward()
            if number in (10, 20):
                model[2].weight.grad[0, 0] = INF
            for one in optimizers:
                scaler.step(one)
            scaler.update()
    assert g.status == "clean" and g.skipped_steps == 2, g.sentence()


def test_one_of_two_optimizers_that_is_left_out_again_and_again_is_an_alarm():
    model = small()
    optimizers, now = (sgd(model[0]), sgd(model[2])), [0]
    model[2].weight.register_hook(lambda grad: grad * NAN if now[0] >= 10 else grad)
    scaler = torch.amp.GradScaler("cpu", 2.0**30)
    with nan.guard(model, optimizers, scaler) as g:
        for now[0] in range(30):
            model.zero_grad()
            scaler.scale(loss_of(model)).backward()
            for one in optimizers:
                scaler.step(one)
            scaler.update()
    assert g.status == "bad" and (g.first.step, g.first.stage, g.first.module) == (10, "param_grads", "2")


@pytest.mark.parametrize("given", [True, False])
def test_a_scaler_that_two_models_share_leaves_out_nothing_of_the_one_that_waits(given):
    maker, judge = small(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    by_maker, by_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    scaler = torch.amp.GradScaler("cpu", 2.0**10)
    rest = ((by_maker, scaler), (by_judge, scaler)) if given else ((), ())
    with nan.guard(maker, *rest[0]) as g, nan.guard(judge, *rest[1]) as h:
        for number in range(240):
            with torch.no_grad():
                made = maker(x(8, 4))
            for optimizer in (by_judge, by_maker)[: 2 if number % 8 == 7 else 1]:
                maker.zero_grad(), judge.zero_grad()
                judged = judge(maker(x(8, 4))) if optimizer is by_maker else judge(x(8, 4)) - judge(made)
                scaler.scale(judged.mean()).backward()
                scaler.step(optimizer)
                scaler.update()
    assert g.status == "clean" and h.status == "clean", (g.sentence(), h.sentence())
    assert (g.step, h.step, g.skipped_steps, h.skipped_steps) == (30, 240, 0, 0)


def test_the_first_step_of_a_row_that_is_an_alarm_is_the_first_that_was_bad():
    model = nn.Sequential(nn.Linear(4, 4), Spoiler(), nn.Linear(4, 1))
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", 2.0**30)
    with nan.guard(model, optimizer, scaler) as g:
        for number in range(40):
            model[1].how = "backward" if number == 15 or number >= 20 else ""
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (g.first.step, g.first.stage, g.first.module) == (20, "act_grads", "1"), g.sentence()


def test_an_update_past_the_scaler_is_judged_at_once():
    model = small()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", 2.0**10)
    with nan.guard(model, optimizer, scaler) as g:
        for number in range(22):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            if number < 21:
                scaler.step(optimizer)
                scaler.update()
        model[0].weight.grad[0, 0] = INF
        optimizer.param_groups[0]["lr"] = 0.0
        model[0].weight.requires_grad_(False)
        optimizer.step()
        assert [step.number for step in g.steps] == [21] and g.first.stage == "clipped"


@pytest.mark.parametrize(
    ("steps", "left_out", "alarmed"), [(200, 11, True), (200, 10, False), (199, 99, False)]
)
def test_a_scaler_that_leaves_out_more_than_a_twentieth_of_200_steps_is_named(steps, left_out, alarmed):
    model = small()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", 2.0**10, growth_interval=2000)
    scaling = Scaling(scaler)
    for step in range(steps):
        scaling.enter(scaler, optimizer, step)
        if step % 2 and step // 2 < left_out:
            scaling.left_out(id(optimizer), scaler, step)
        else:
            scaling.update_was_made(optimizer)
            scaling.leave(scaler, optimizer)
    assert scaling.alarm() == (f"the scaler left out {left_out} of {steps} steps" if alarmed else "")
