"""What a person gets from the guard: reactions, a scaler's expected steps, statuses, nothing left."""

from __future__ import annotations

import gc
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.errors import UsageError  # noqa: E402
from lab.rooms.nan.watch.count import Counted, plain_counts  # noqa: E402
from lab.rooms.nan.watch.guard import step as state_module  # noqa: E402
from lab.rooms.nan.watch.shared import before_update  # noqa: E402
from lab.rooms.nan.watch.watch import NonFiniteError  # noqa: E402
from tests.rooms.nan.watch.guard.zoo_faults import Switch, loop, stacked  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402

NAN, INF = float("nan"), float("inf")


def steps_of(model, g, spoil=None, steps=4):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    g.training.weights.optimizers.append(optimizer)
    with g:
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(x(8, 4)).square().mean()
            loss.backward()
            if spoil is not None and step == 2:
                spoil(model)
            optimizer.step()
    return g


needs_operators = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_get_sequence_nr"), reason="this torch cannot look at operators"
)


def bad_gradient(model):
    model[0].weight.grad.fill_(NAN)


def test_raise_comes_before_the_update_and_leaves_the_weights_finite():
    model = small()
    with pytest.raises(NonFiniteError, match=r"0\.weight") as caught:
        steps_of(model, nan.guard(model, on_bad="raise"), bad_gradient)
    assert "step 2" in str(caught.value.location) and isinstance(caught.value, FloatingPointError)
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


def test_raise_comes_at_the_end_of_a_bad_forward():
    switch = Switch()
    with pytest.raises(NonFiniteError, match="in forward of 1"):
        loop(stacked(lambda y: y / 0 if switch.on else y), switch, lambda *a: nan.guard(*a, on_bad="raise"))


def test_a_function_is_called_once_per_bad_step_before_its_update():
    calls, model = [], small()
    g = nan.guard(
        model, on_bad=lambda step: calls.append((step.number, bool(torch.isfinite(model[0].weight).all())))
    )
    steps_of(model, g, bad_gradient)
    assert calls[0] == (2, True) and [number for number, _ in calls] == [2, 3]


class OnGpu(Counted):
    """Counts as a GPU's would be: of the numbers as they were when the count began."""

    by_gpu, looked = True, staticmethod(lambda: None)

    def __init__(self, tensors):
        super().__init__(plain_counts(tensors))

    def bad(self):
        self.looked()
        return super().bad()


def counted_as_on_a_gpu(monkeypatch, looked=lambda: None):
    """`counter="plain"` from now on counts so."""
    plain_counts_later = partial(plain_counts)
    plain_counts_later.begin = type("Looked", (OnGpu,), {"looked": staticmethod(looked)})
    monkeypatch.setattr(state_module, "counter_named", lambda name: plain_counts_later)


def guard_as_on_a_gpu(model, *args, **more):
    g = nan.guard(model, *args, counter="plain", **more)
    g.training.state.on_gpu, g.training.watch._device = True, torch.device("cuda", 0)
    return g


def test_a_clean_forward_on_a_gpu_is_taken_at_the_update(monkeypatch):
    counted_as_on_a_gpu(monkeypatch)
    model, waited = small(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with nan.guard(model, optimizer, counter="plain") as g:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(x(8, 4)).square().mean()
            waited.append(g.training.watch.waits)
            loss.backward()
            optimizer.step()
            waited.append(g.training.watch.waits)
        model(x(8, 4))
    assert waited == [True, False] * 4 and g.training.watch.forwards == 5
    assert (
        g.status == "clean" and not g.training.state.failed and ("activation", "float32") in g.headroom.peaks
    )


def test_weights_that_backward_ruins_are_no_cause_of_the_bad_forward_before_it(monkeypatch):
    """As an optimizer of the program's own does, which updates inside of backward."""
    counted_as_on_a_gpu(monkeypatch)
    model = small()

    def ruin(_):
        for weight in model.parameters():
            weight.data.fill_(NAN)

    with nan.guard(model, counter="plain") as g:
        model(x(8, 4)).square().mean().backward()
        model[0].weight.register_hook(ruin)
        model[0].weight.data.fill_(1e20)
        model(1e30 * x(8, 4)).square().mean().backward()
    assert g.first.place == "in forward of 0" and not g.first.unsure, g.sentence()


@pytest.mark.parametrize("on", [True, False])
def test_objects_of_a_forward_are_collected_before_the_wait_for_a_gpu_if_at_all(monkeypatch, on):
    events = []
    counted_as_on_a_gpu(monkeypatch, looked=lambda: events.append("looked"))
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(200)))
    with nan.guard(model, counter="plain"):
        model(x(8, 4))
        was_on, noted = gc.isenabled(), gc.callbacks.append
        (gc.enable if on else gc.disable)()
        noted(lambda phase, _: events.append("collected"))
        try:
            events.clear()
            out = model(x(8, 4))
            seen = [*events]
        finally:
            gc.callbacks.pop()
            (gc.enable if was_on else gc.disable)()
    assert out.requires_grad and seen[-1] == "looked" and ("collected" in seen) == on


def test_a_forward_may_hold_more_once_it_is_known_what_memory_stays_free(monkeypatch):
    counted_as_on_a_gpu(monkeypatch)
    free = {"bytes": 40 << 30}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free["bytes"], 80 << 30))
    model = small()
    optimizer, budgets = torch.optim.SGD(model.parameters(), lr=1e-3), []
    with guard_as_on_a_gpu(model, optimizer) as g:
        least = g.training.watch.budget_bytes
        for _ in range(70):
            model(x(8, 4)).square().mean().backward()
            optimizer.step()
            budgets.append(g.training.watch.budget_bytes)
            free["bytes"] = 40 << 30 if len(budgets) < 5 else 1 << 20
    assert g.status == "clean" and not g.training.state.failed
    assert budgets[:2] == [least] * 2 and budgets[69] == least < budgets[10]


def test_clean_gradients_on_a_gpu_are_taken_before_weights_are_read_and_bad_ones_after(monkeypatch):
    counted_as_on_a_gpu(monkeypatch)
    model, waited = small(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = guard_as_on_a_gpu(model, optimizer)
    read = g.training.weights.look
    monkeypatch.setattr(
        g.training.weights, "look", lambda **more: (waited.append(g.training.collector.waits), read(**more))
    )
    with g:
        for number in range(3):
            optimizer.zero_grad()
            (model(x(8, 4)).square().mean() * (NAN if number == 2 else 1)).backward()
            optimizer.step()
    assert waited[:3] == [False, False, True]
    assert g.first.stage == "loss" and g.first.step == 2, g.sentence()


def test_a_reaction_on_a_gpu_comes_before_the_update(monkeypatch):
    counted_as_on_a_gpu(monkeypatch)
    model = small()
    with pytest.raises(NonFiniteError, match=r"0\.weight") as caught:
        steps_of(model, guard_as_on_a_gpu(model, on_bad="raise"), bad_gradient)
    assert "step 2" in str(caught.value.location)
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


def test_an_invalid_reaction_and_a_second_use_are_refused():
    with pytest.raises(UsageError, match="on_bad"):
        nan.guard(small(), on_bad="stop")
    model = small()
    g = steps_of(model, nan.guard(model))
    with pytest.raises(UsageError, match="already been used"):
        g.__enter__()


def test_a_guard_that_saw_nothing_is_not_clean():
    with nan.guard(small()) as g:
        pass
    assert g.status == "nothing-seen" and g.status != "clean"


def test_a_model_that_is_called_behind_the_guards_back_is_partly_seen():
    model = small()
    with nan.guard(model) as g:
        nn.functional.linear(x(8, 4), model[0].weight, model[0].bias).sum().backward()
    assert g.status == "partly-seen" and "no forward of this model" in g.not_seen()[0]


def test_twenty_steps_are_the_same_bits_with_every_reaction():
    def run(guard):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 4))
        if guard is not None:
            steps_of(model, guard(model), steps=20)
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            for _ in range(20):
                optimizer.zero_grad()
                model(x(8, 4)).square().mean().backward()
                optimizer.step()
        return [value.clone() for value in model.state_dict().values()]

    plain = run(None)
    for on_bad in ("keep", "raise", "replay", lambda step: None):
        assert all(map(torch.equal, plain, run(lambda model, how=on_bad: nan.guard(model, on_bad=how))))


@needs_operators
def test_a_replay_gives_back_buffers_gradients_and_random_numbers():
    torch.manual_seed(0)
    switch = Switch()
    block = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))

    def code(y):
        y = block(y)
        return y + (y * 0).abs().sqrt() if switch.on else y

    model = stacked(code)
    seen = {}

    def note(model, optimizer):
        seen["before"] = (torch.get_rng_state(), [one.clone() for one in model.buffers()])

    def spied(*args):
        guard = nan.guard(*args, on_bad="replay")
        replay = guard.training.reactions._replay

        def spy(step):
            replay(step)
            seen.setdefault("after", (torch.get_rng_state(), [one.clone() for one in model.buffers()]))

        guard.training.reactions._replay = spy
        return guard

    g = loop(model, switch, spied, between=note)
    assert g.first.op is not None and g.first.module == "1"
    assert torch.equal(seen["before"][0], seen["after"][0])
    assert all(map(torch.equal, seen["before"][1], seen["after"][1]))


def test_a_failure_inside_the_guard_is_a_note_and_never_clean():
    model = small()
    g = nan.guard(model)
    g.training.borders.enter = lambda *_: 1 / 0
    steps_of(model, g)
    assert (
        g.status == "partly-seen"
        and g.training.state.failed > 0
        and any("ZeroDivisionError" in note for note in g.notes)
    )


def test_a_dispatch_mode_of_the_program_sees_no_operator_of_the_guards():
    modes = pytest.importorskip("torch.utils._python_dispatch")

    class Counts(getattr(modes, "TorchDispatchMode", object)):
        def __init__(self):
            super().__init__()
            self.operators = []

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            self.operators.append(str(operator))
            return operator(*args, **(kwargs or {}))

    def seen_by_the_program(guarded):
        torch.manual_seed(0)
        model, mode = small(), Counts()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        with mode:
            if not guarded:
                loop_of(model, optimizer)
                return mode.operators
            with nan.guard(model, optimizer) as g:
                loop_of(model, optimizer)
                assert g.status == "clean" and not g.training.state.failed
        return mode.operators

    def loop_of(model, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            model(x(8, 4)).square().mean().backward()
            optimizer.step()

    if not hasattr(torch._C, "_len_torch_dispatch_stack"):
        pytest.skip("this torch has dispatch modes of another shape")
    assert seen_by_the_program(True) == seen_by_the_program(False)


class Stops(Exception):
    pass


def stops(step):
    raise Stops


@pytest.mark.parametrize(("on_bad", "kind"), [("raise", NonFiniteError), (stops, Stops)])
@pytest.mark.parametrize("own", [False, True], ids=["none", "own"])
def test_a_reaction_at_the_end_of_the_block_passes_and_leaves_nothing(on_bad, kind, own):
    plain, model = (nn.Module.__call__, torch.autograd.backward), nn.Linear(4, 4)
    with pytest.raises(KeyError if own else kind), nan.guard(model, on_bad=on_bad) as g:
        model(torch.ones(2, 4)).mean().backward()
        nn.init.constant_(model.weight, float("nan"))
        if own:
            raise KeyError("the program's")
    assert (
        (nn.Module.__call__, torch.autograd.backward) == plain
        and g.training.state.ended
        and g.training.state.failed == 0
    )
    assert g.first.stage == ("weights_before" if before_update.exists else "weights_after")


@pytest.mark.skipif(not before_update.exists, reason="this torch has no hooks around updates")
def test_what_a_reaction_raises_after_an_update_passes():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=float("nan"))
    with pytest.raises(Stops), nan.guard(model, optimizer, on_bad=stops) as g:
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    assert g.training.state.failed == 0 and g.first.stage == "weights_after"


@pytest.mark.skipif(not before_update.exists, reason="this torch has no hooks around updates")
def test_steps_after_a_reaction_that_the_program_caught_have_their_own_numbers():
    model, caught = small(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with nan.guard(model, optimizer, on_bad="raise") as g:
        for number in range(8):
            optimizer.param_groups[0]["lr"] = NAN if number == 2 else 1e-2
            optimizer.zero_grad()
            try:
                loss = model(x(8, 4) * (NAN if number == 5 else 1)).square().mean()
                loss.backward()
                optimizer.step()
            except NonFiniteError:
                caught.append(number)
                with torch.no_grad():
                    for one in model.parameters():
                        one.copy_(torch.randn_like(one))
        assert g.step == 7  # the forward of one was stopped
    assert caught == [2, 5] and [step.number for step in g.steps] == [2, 5]
