"""Where the first place is not certain, the verdict says so and accuses nobody who did nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from lab import nan  # noqa: E402
from tests.rooms.nan.watch.guard.zoo_faults import FAULT_STEP, OLD, Switch, loop, stacked  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402

INF, NAN = float("inf"), float("nan")
SEES_OPERATORS = hasattr(torch._C._autograd, "_get_sequence_nr")


def guarded(model, switch, **more):
    """Four steps with the fault in the third."""
    on_bad = more.pop("on_bad", "keep")
    g = loop(model, switch, lambda *args: nan.guard(*args, on_bad=on_bad), **more)
    assert g.status == "bad" and g.failed == 0, (g.sentence(), g.notes)
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


def test_the_same_method_inside_a_module_is_that_modules_own_code():
    switch = Switch()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.coder, self.head = Coder(switch), nn.Linear(4, 4)

        def forward(self, given):
            return self.head(self.coder.encode(given))

    first = guarded(Outer(), switch)
    assert (first.stage, first.module, first.unsure) == ("forward", "", "")
    assert "after enc, before head" in first.place


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


class Slots:
    """Something that cannot be looked into."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def test_what_could_not_be_looked_into_is_not_explained_by_what_spread_from_it():
    switch = Switch()

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, given):
            return self.inner(given.value)

    first = guarded(Takes(), switch, make=lambda: Slots(x(8, 4) * (NAN if switch.on else 1)))
    assert first.step == FAULT_STEP and "of the model itself (an object of class Slots)" in first.unsure


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


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has no GradScaler for a CPU")
@pytest.mark.parametrize("parts", [1, 3])
def test_a_scaler_that_the_guard_was_not_given_is_found_by_the_loss_it_scaled(parts):
    model = small()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-4), torch.amp.GradScaler("cpu", 2.0**24)
    other = torch.amp.GradScaler("cpu", 2.0**24)
    other.scale(torch.ones(1))
    with nan.guard(model, optimizer) as g:
        for _ in range(14):
            optimizer.zero_grad()
            for _ in range(parts):
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = model(x(8, 4) * 10).square().mean()
                scaler.scale(loss / parts).backward()
            scaler.step(optimizer)
            scaler.update()
    assert g.clean and g.scaling.scaler is scaler and g.skipped_steps >= 6, (g.sentence(), g.skipped_steps)
    assert g.step == 14


def test_lbfgs_is_one_step_per_update_under_every_torch():
    model, closures = small(), [0]
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    with nan.guard(model, optimizer) as g:
        for number in range(3):

            def closure(number=number):
                closures[0] += 1
                optimizer.zero_grad()
                loss = model(x(8, 4)).square().mean() * (NAN if number == 1 else 1)
                loss.backward()
                return loss

            optimizer.step(closure)
    assert closures[0] > 3 == g.step and (g.first.stage, g.first.step) == ("loss", 1)


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
    assert "other than the optimizer" in g.first.why


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


def test_complex_state_is_read():
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    model.forward = lambda given: (given * model.weight).abs()
    optimizer = torch.optim.Adam(model.parameters())
    with nan.guard(model, optimizer) as g:
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.ones(3)).sum().backward()
            optimizer.step()
        optimizer.state[model.weight]["exp_avg"].fill_(NAN)
    assert g.failed == 0 and g.first.name == "weight: exp_avg", g.notes
