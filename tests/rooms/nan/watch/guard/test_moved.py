"""Modules that leave the model or move in it, and weights that are replaced: told by the names of now."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.shared import before_update, new_module, new_parameter  # noqa: E402
from tests.rooms.nan.watch.guard.test_calm_steps import Spoiler  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402

NAN, CALM = float("nan"), 20
needs_hooks = pytest.mark.skipif(
    not (before_update.exists and new_module.exists and new_parameter.exists),
    reason="torch before 2.0 does not tell of these",
)


def blocks(count):
    return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), Spoiler(), nn.Tanh()) for _ in range(count)])


def leaves(model):
    del model[0]


def moves(model):
    first, second, third = model
    model[0], model[1], model[2] = second, third, first
    del model[2]


def trained(model, change, spoil):
    """The guard of a training in which the model changes, and later one step is spoiled."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with nan.guard(model, optimizer) as g:
        for number in range(2 * CALM):
            if number == CALM:
                change(model)
            optimizer.zero_grad()
            spoil(model, optimizer, number == 2 * CALM - 1)
            optimizer.step()
    return g


def step(model):
    model(x(8, 4)).square().mean().backward()


def in_forward_or_backward(how):
    def spoil(model, optimizer, now):
        model[1][1].how = how if now else ""
        step(model)

    return spoil


def in_a_gradient(model, optimizer, now):
    step(model)
    if now:
        model[1][0].weight.grad[0] = NAN


def in_the_last_update(model, optimizer, now):
    step(model)
    if now:
        optimizer.param_groups[0].update(params=[*model[1].parameters()], lr=NAN)


@needs_hooks
@pytest.mark.parametrize("change", [leaves, moves])
@pytest.mark.parametrize(
    ("spoil", "stage", "module"),
    [
        (in_forward_or_backward("forward"), "forward", "1.1"),
        (in_forward_or_backward("backward"), "act_grads", "1.1"),
        (in_a_gradient, "clipped", "1.0"),
        (in_the_last_update, "weights_after", "1.0"),
    ],
    ids=["forward", "backward", "gradient", "update"],
)
def test_what_is_bad_has_the_name_that_it_has_now(change, spoil, stage, module):
    first = trained(blocks(3), change, spoil).first
    assert first is not None
    assert (first.step, first.stage, first.module) == (2 * CALM - 1, stage, module), first.place


@needs_hooks
def test_a_weight_that_takes_the_place_of_another_in_memory_is_hooked_and_has_its_own_name():
    """Python gives ids again: of weights that are replaced, some have the id that another had before."""
    model, before, again = small(), set(), 0
    with nan.guard(model) as g:
        for _ in range(20):
            for at, name in ((2, "weight"), (0, "weight"), (2, "bias"), (0, "bias")):
                shape = getattr(model[at], name).shape
                setattr(model[at], name, None)
                setattr(model[at], name, nn.Parameter(x(*shape)))
            optimizer = torch.optim.SGD(model.parameters(), 1e-2)
            step(model)
            optimizer.step()
            names = {id(one): name for name, one in model.named_parameters()}
            assert {key: g.training.weights.names[key] for key in names} == names
            again += len(names.keys() & before)
            before |= names.keys()
        assert again and g.training.state.looked_at["param_grads"] == 20 * 4
    assert g.status == "clean"
