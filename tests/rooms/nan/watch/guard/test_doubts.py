"""Where the first place is not certain, the verdict says so and accuses nobody who did nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.shared import before_update  # noqa: E402
from tests.rooms.nan.watch.guard.zoo_faults import FAULT_STEP, OLD, Switch, loop, stacked  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402

INF, NAN = float("inf"), float("nan")
SEES_OPERATORS = hasattr(torch._C._autograd, "_get_sequence_nr")


def guarded(model, switch, **more):
    """Four steps with the fault in the third."""
    on_bad = more.pop("on_bad", "keep")
    g = loop(model, switch, lambda *args: nan.guard(*args, on_bad=on_bad), **more)
    assert g.status == "bad" and g.training.state.failed == 0, (g.sentence(), g.notes)
    return g.first


class Coder(nn.Module):
    def __init__(self, switch):
        super().__init__()
        self.enc, self.dec, self.switch = nn.Linear(4, 4), nn.Linear(4, 4), switch

    def encode(self, given):
        hidden = self.enc(given)
        return hidden / 0 if self.switch.on else hidden.tanh()

    def decode(self, hidden):
        return self.dec(hidden)

    def forward(self, given):
        return self.decode(self.encode(given))


def test_code_of_a_method_that_the_program_calls_is_not_called_the_batch():
    switch = Switch()
    model = Coder(switch)
    with nan.guard(model) as g:
        for number in range(4):
            switch.on = number == FAULT_STEP
            model.decode(model.encode(x(8, 4))).square().mean().backward()
    assert g.first.stage == "forward" and "code between the model's modules" in g.first.unsure
    assert "before forward of dec" in g.sentence()


def test_the_same_method_inside_a_module_may_have_made_it():
    switch = Switch()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.coder, self.head = Coder(switch), nn.Linear(4, 4)

        def forward(self, given):
            return self.head(self.coder.encode(given))

    first = guarded(Outer(), switch)
    assert (first.stage, first.module) == ("forward", "") and "first seen in args[0] of head" in first.place
    assert "coder was not called, though coder.enc was" in first.unsure


def test_a_hook_on_a_tensor_is_not_the_fault_of_the_module_behind_it():
    switch = Switch()

    def code(hidden):
        if switch.on:
            hidden.register_hook(lambda grad: grad / 0)
        return hidden

    first = guarded(stacked(code), switch)
    assert first.stage == "act_grads" and first.step == FAULT_STEP
    assert OLD or "hook on that tensor" in first.unsure


@pytest.mark.skipif(not SEES_OPERATORS, reason="this torch cannot look at operators")
def test_a_replay_names_the_hooks_line_and_no_module_for_it():
    switch = Switch()

    def code(hidden):
        if switch.on:
            hidden.register_hook(lambda grad: grad / 0)  # this line
        return hidden

    first = guarded(stacked(code), switch, on_bad="replay")
    assert first.op.name == "aten.div.Tensor" and first.op.node == "a hook"
    file, _, line = first.op.line.rpartition(":")
    with open(file) as text:
        assert "# this line" in text.readlines()[int(line) - 1]
    assert first.unsure and first.module != "1.first"


def test_a_hook_on_a_weight_may_have_made_its_gradient():
    model, switch = small(), Switch()
    model[2].weight.register_hook(lambda grad: grad * NAN if switch.on else grad)
    first = guarded(model, switch)
    assert (first.stage, first.module) == ("param_grads", "2") and "hook on 2.weight" in first.unsure


@pytest.mark.skipif(OLD, reason="this torch does not tell a recomputation apart")
def test_a_fault_in_a_checkpoints_recomputation_alone_is_in_forward():
    switch, calls = Switch(), [0]

    def code(hidden):
        calls[0] += 1
        return hidden / 0 if switch.on and not calls[0] % 2 else hidden

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = stacked(code)[1]

        def forward(self, given):
            return checkpoint(self.inner, given, use_reentrant=False)

    first = guarded(nn.Sequential(nn.Linear(4, 4), Again(), nn.Linear(4, 4)), switch)
    assert (first.stage, first.module, first.unsure) == ("forward", "1.inner", "")
    assert "in the recomputation of a checkpoint" in first.place


def test_what_a_module_took_is_seen_though_it_raised():
    switch = Switch()

    class Refuses(nn.Module):
        def forward(self, given):
            if switch.on:
                raise RuntimeError("refused")
            return given

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.refuses = nn.Linear(4, 4), Refuses()

        def forward(self, given):
            hidden = self.first(given)
            return self.refuses(hidden / 0 if switch.on else hidden)

    model = Outer()
    with nan.guard(model) as g:
        for number in range(6):
            switch.on = number == 4
            try:
                model(x(8, 4)).sum().backward()
            except RuntimeError:
                continue
    assert (g.first.stage, g.first.module) == ("forward", "") and "before refuses" in g.first.place


@pytest.mark.skipif(OLD, reason="this torch has no hooks on nodes that come after those on tensors")
def test_a_hook_put_on_the_output_after_the_forward_is_no_fault_of_a_module():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nan.guard(model, optimizer) as g:
        for number in range(12):
            optimizer.zero_grad()
            out = model(x(8, 4))
            out.register_hook(lambda grad, at=number: grad * NAN if at == 9 else grad)
            out.square().mean().backward()
            optimizer.step()
    assert (g.first.stage, g.first.module, g.first.step) == ("loss", "", 9)


def a_new_weight(model):
    model[1] = nn.Linear(3, 2)
    nn.init.constant_(model[1].weight, float("nan"))


def a_frozen_weight(model):
    model.ema.data.fill_(float("nan"))  # torch does not count that


@pytest.mark.parametrize(
    ("write", "name"), [(a_new_weight, "1.weight"), (a_frozen_weight, "ema")], ids=["new", "frozen"]
)
def test_a_weight_that_no_optimizer_has_is_no_optimizers_fault(write, name):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model.register_parameter("ema", nn.Parameter(torch.zeros(4), requires_grad=False))
    trained = [*model[0].parameters(), *model[1].parameters()]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    with nan.guard(model, optimizer) as g:
        for at in range(20):
            if at == 12:
                write(model)
            optimizer.zero_grad()
            model(torch.ones(2, 3)).pow(2).mean().backward()
            optimizer.step()
    assert (g.status, g.first.stage, g.first.name) == ("bad", "weights_before", name)
    assert "other than the optimizer" in g.first.reason


class BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given, switch):
        ctx.switch = switch
        return given.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * NAN if ctx.switch.on else grad, None


class Spoils(nn.Module):
    on = False

    def forward(self, given):
        return BadGradient.apply(given, self)


def test_borders_of_what_was_frozen_in_the_first_steps_are_seen_later():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), Spoils(), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nan.guard(model, optimizer) as g:
        for at in range(10):
            model[0].requires_grad_(at > 5)
            model[2].on = at == 8
            optimizer.zero_grad()
            model(torch.ones(2, 3)).pow(2).mean().backward()
            optimizer.step()
    assert (g.first.stage, g.first.module, g.first.step) == ("act_grads", "2", 8), g.first


@pytest.mark.skipif(OLD, reason="this torch has no hooks around updates")
def test_what_an_optimizer_hides_in_its_state_is_named():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with nan.guard(model, optimizer) as g:
        for _ in range(3):
            optimizer.zero_grad()
            model(x(8, 4)).square().mean().backward()
            optimizer.state[model[0].weight]["history"] = {"inner": (part for part in ())}
            optimizer.step()
    assert g.status == "partly-seen"
    assert g.not_seen() == ["history.inner in an optimizer's state not looked into: a generator"]


class UsesAnothersWeight(nn.Module):
    """Its code takes the weight of a module that it does not call for that."""

    def __init__(self):
        super().__init__()
        self.embed, self.layer, self.last = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(10, 4)

    def forward(self, ids):
        return self.last(self.layer(self.embed(ids)) @ self.embed.weight.t())


WRITES = {
    "counted": lambda weight: nn.init.constant_(weight[-1], NAN),
    "data": lambda weight: weight.data[-1].fill_(NAN),
    "swapped": lambda weight: setattr(weight, "data", torch.full_like(weight, NAN)),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("at", [3, 11, 13])
def test_a_weight_that_code_outside_its_module_uses_is_named(how, at):
    model = UsesAnothersWeight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with nan.guard(model, optimizer) as g:
        for number in range(15):
            if number == at:
                with torch.no_grad():
                    WRITES[how](model.embed.weight)
            optimizer.zero_grad()
            model(torch.arange(8).view(2, 4)).square().mean().backward()
            optimizer.step()
    first = g.first
    assert (first.stage, first.name) == ("weights_before", "embed.weight") or first.unsure, g.sentence()
    assert "embed.weight" in first.place and first.module == "embed" and at - 1 <= first.step <= at


def test_a_watch_never_names_code_that_may_have_taken_bad_weights_of_another_module():
    model = UsesAnothersWeight()
    with nan.watch(model) as w:
        for number in range(4):
            if number == 2:
                nn.init.constant_(model.embed.weight[-1].detach(), NAN)
            model(torch.arange(8).view(2, 4))
    assert w.first.kind == "unknown" and "embed.weight are bad" in w.first.unsure


def a_penalty_on_gradients(model, given, switch):
    given = given.clone().requires_grad_()
    (grad,) = torch.autograd.grad(model(given).sum(), given, create_graph=True)
    return ((grad * (0 if switch.on else 1)).square().sum(1).sqrt() - 1).square().mean()


def a_penalty_on_weights(model, given, switch):
    weight = model[2].weight * (0 if switch.on else 1)
    return model(given).square().mean() + weight.square().sum().sqrt()


def a_loss_on_an_inner_output(model, given, switch):
    kept = []
    handle = model[2].register_forward_hook(lambda module, args, output: kept.append(output))
    loss = model(given).square().mean()
    handle.remove()
    return loss + (kept[0] * (0 if switch.on else 1)).square().sum().sqrt()


@pytest.mark.skipif(OLD, reason="this torch cannot tell which nodes a backward passed")
@pytest.mark.parametrize("step", [a_penalty_on_gradients, a_penalty_on_weights, a_loss_on_an_inner_output])
@pytest.mark.parametrize("spoilt", [False, True])
def test_code_that_uses_the_inside_of_a_model_is_no_fault_of_its_modules(step, spoilt):
    model, switch = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()), Switch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with nan.guard(model, optimizer) as g:
        for number in range(12):
            switch.on = spoilt and number == 10
            optimizer.zero_grad()
            step(model, x(8, 4), switch).backward()
            optimizer.step()
    assert g.status == ("bad" if spoilt else "clean") and g.training.state.failed == 0, g.notes
    if spoilt:
        assert g.first.step == 10 and (g.first.stage == "loss" or "use" in g.first.unsure), g.sentence()


class Scales(nn.Module):
    """No module inside, so a forward that is called directly leaves no trace."""

    def __init__(self):
        super().__init__()
        self.weight, self.by = nn.Parameter(torch.ones(4)), 1

    def forward(self, given):
        return given * self.weight / self.by


def test_a_forward_that_was_not_seen_may_have_made_a_bad_loss():
    model = Scales()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with nan.guard(model, optimizer) as g:
        for number in range(6):
            model.by = 0 if number == 4 else 1
            optimizer.zero_grad()
            (model.forward if number == 4 else model)(x(8, 4)).square().mean().backward()
            optimizer.step()
    assert (g.first.stage, g.first.step) == ("loss", 4) and "no forward" in g.first.unsure


@pytest.mark.skipif(OLD, reason="this torch has no hooks around updates")
def test_an_update_that_runs_forwards_is_named_for_what_it_wrote():
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(x(8, 4)).square().mean()
        loss.backward()
        return loss

    with nan.guard(model, optimizer) as g:
        for number in range(4):
            optimizer.param_groups[0]["lr"] = NAN if number == 2 else 1e-2
            optimizer.step(closure)
    assert (g.first.stage, g.first.step) == ("weights_after", 2) and "learning rate" in g.first.reason


@pytest.mark.skipif(not hasattr(torch, "compile") or not before_update.exists, reason="an old torch")
@pytest.mark.parametrize("times", [0, 1, 10])
def test_steps_whose_forward_was_compiled_later_are_not_called_clean(times):
    model = small()
    optimizer, forward = torch.optim.SGD(model.parameters(), 1e-2), model
    compiled = torch.compile(model, backend="eager")
    with nan.guard(model, optimizer) as g:
        for number in range(30):
            forward = model if number < 30 - times else compiled
            optimizer.zero_grad()
            forward(x(8, 4)).square().mean().backward()
            optimizer.step()
    assert g.status == ("partly-seen" if times else "clean") and g.step == 30
    assert not times or f"{times} update" in g.not_seen()[0], g.not_seen()


@pytest.mark.skipif(not before_update.exists, reason="this torch has no hooks around updates")
def test_a_loss_after_a_forward_that_lost_what_it_overwrote_is_not_certain():
    class Wipes(nn.Module):
        on = False

        def forward(self, given):
            hidden = given * 1.0
            made = self.inner(hidden)
            return made.nan_to_num_() if self.on else made

        def __init__(self):
            super().__init__()
            self.inner = Divides()

    class Divides(nn.Module):
        on = False

        def forward(self, given):
            return given / 0 if self.on else given * 1.0

    model = nn.Sequential(nn.Linear(4, 4), Wipes(), nn.Linear(4, 2))
    model[2].weight.data.mul_(0.01)  # what is wiped does not overflow there
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with nan.guard(model, optimizer) as g:
        for number in range(30):
            model[1].on = model[1].inner.on = number == 25
            optimizer.zero_grad()
            model(x(8, 4)).square().mean().backward()
            optimizer.step()
    assert g.first.step == 25 and "overwritten in place before being counted" in g.sentence()
