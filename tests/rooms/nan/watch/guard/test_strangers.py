"""Training loops as strangers write them: never clean when they are not, never another's fault."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.guard import weights  # noqa: E402
from lab.rooms.nan.watch.shared import before_update  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402

NAN, INF = float("nan"), float("inf")
needs_hooks = pytest.mark.skipif(not before_update.exists, reason="this torch has no hooks around updates")


class Divides(nn.Module):
    on = False

    def forward(self, given):
        return given / 0 if self.on else given


def steps(model, optimizer, guard, count=6, *, spoil=None, make=lambda number: x(8, 4)):
    """A loop whose gradients `spoil(step)` may change before the update."""
    with guard as g:
        for number in range(count):
            optimizer.zero_grad()
            model(make(number)).square().mean().backward()
            if spoil is not None:
                spoil(number)
            optimizer.step()
    return g


def sgd(model, rate=1e-2):
    return torch.optim.SGD(model.parameters(), rate)


@needs_hooks
def test_an_optimizer_that_was_not_given_is_seen_beside_one_that_was():
    model, other = small(), small()
    g = steps(model, sgd(model, NAN), nan.guard(model, sgd(other)), 1)
    assert g.status == "bad" and g.first.stage == "weights_after" and g.step == 1


@needs_hooks
@pytest.mark.parametrize("bad_at, is_given", [(None, True), (6, True), (None, False)])
def test_weights_of_a_module_in_a_list_are_named_as_not_looked_at(bad_at, is_given):
    class Hides(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = [nn.Linear(4, 4)], nn.Linear(4, 2)

        def forward(self, given):
            return self.last(torch.nan_to_num(self.inner[0](given)))

    model = Hides()
    optimizer = torch.optim.SGD([*model.parameters(), *model.inner[0].parameters()], 1e-2)

    def spoil(number):
        if number == bad_at:
            model.inner[0].weight.data[0, 0] = NAN

    g = steps(model, optimizer, nan.guard(model, optimizer if is_given else None), 12, spoil=spoil)
    assert g.status == "partly-seen"
    assert g.not_seen() == ["2 tensors of the optimizer not looked at: of no module of this model"]


@needs_hooks
def test_a_frozen_model_whose_gradients_go_on_to_a_tensor_outside_is_not_all():
    model, given = small().requires_grad_(False), torch.zeros(2, 4, requires_grad=True)
    with nan.guard(model) as g:
        for number in range(3):
            optimizer = torch.optim.SGD([given], NAN if number == 2 else 1e-2)
            model(given).square().mean().backward()
            optimizer.step()
    assert g.status == "partly-seen" and "1 tensor of the optimizer not looked at" in g.not_seen()[0]


@needs_hooks
def test_an_optimizer_of_two_guarded_models_has_no_strangers():
    model, head = small(), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 1e-2)
    with nan.guard(model) as g, nan.guard(head) as h:
        for _ in range(3):
            optimizer.zero_grad()
            head(model(x(8, 4))).square().mean().backward()
            optimizer.step()
    assert g.status == h.status == "clean", (g.not_seen(), h.not_seen())


@needs_hooks
def test_the_status_inside_the_block_knows_the_last_update():
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    with nan.guard(model, optimizer) as g:
        for number in range(60):
            optimizer.zero_grad()
            model(x(8, 4)).square().mean().backward()
            if number == 59:
                optimizer.param_groups[0]["lr"] = NAN
            optimizer.step()
        assert g.status == "bad" and g.first.stage == "weights_after" and g.first.step == 59


@needs_hooks
def test_two_optimizers_after_one_forward_are_one_step():
    model = small()
    one, other = sgd(model[0]), torch.optim.AdamW(model[2].parameters())
    with nan.guard(model, [one, other]) as g:
        for number in range(5):
            one.zero_grad(), other.zero_grad()
            model(x(8, 4)).square().mean().backward()
            if number == 3:
                model[2].weight.grad.fill_(NAN)
            one.step()
            other.step()
    assert g.step == 5 and g.first.step == 3 and "2.weight" in g.first.place


@needs_hooks
def test_two_updates_with_a_forward_between_are_two_steps():
    model = small()
    one, other = sgd(model[0]), sgd(model[2])
    with nan.guard(model, [one, other]) as g:
        for _ in range(3):
            for optimizer in (one, other):
                model.zero_grad()
                model(x(8, 4)).square().mean().backward()
                optimizer.step()
    assert g.step == 6 and g.status == "clean"


@needs_hooks
@pytest.mark.parametrize("bad_at", [None, 4])
def test_lbfgs_runs_forwards_inside_its_step(bad_at):
    model, calls = small(), [0]
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure():
        optimizer.zero_grad()
        calls[0] += 1
        loss = model(x(8, 4) * (NAN if calls[0] == bad_at else 1)).square().mean()
        loss.backward()
        return loss

    with nan.guard(model, optimizer) as g:
        for _ in range(4):
            optimizer.step(closure)
    assert g.step == 4 and g.status == ("clean" if bad_at is None else "bad")
    assert g.first is None or (g.first.stage == "batch" and g.first.step == 1)


@needs_hooks
def test_a_module_that_takes_anothers_place_inside_the_block_is_seen():
    model = small()
    optimizer = sgd(model)

    def spoil(number):
        if number == 1:
            model[1] = Divides()
        if number >= 2:
            model[1].on = number == 3

    g = steps(model, optimizer, nan.guard(model, optimizer), spoil=spoil)
    assert g.first.stage == "forward" and g.first.module == "1" and g.first.step == 4


@needs_hooks
def test_gradients_of_a_layer_that_was_added_are_seen():
    model = small()
    optimizer = sgd(model)

    def spoil(number):
        if number == 1:
            model.append(nn.Linear(4, 4))
            optimizer.add_param_group({"params": [*model[3].parameters()]})
        if number == 3:
            model[3].weight.grad.fill_(NAN)

    g = steps(model, optimizer, nan.guard(model, optimizer), spoil=spoil)
    assert g.first.stage == "clipped" and "3.weight" in g.first.place and g.first.step == 3
    assert g.training.watch.not_seen() == []


@needs_hooks
def test_weights_that_begin_to_need_gradients_are_seen():
    model = small()
    model[0].requires_grad_(False)
    optimizer = sgd(model)

    def spoil(number):
        if number == 1:
            model[0].requires_grad_(True)
        if number in (2, 4):
            model[0].weight.grad[0, 0] = NAN if number == 4 else 0

    g = steps(model, optimizer, nan.guard(model, optimizer), spoil=spoil)
    assert g.first.stage == "clipped" and "0.weight" in g.first.place and g.first.step == 4


@needs_hooks
@pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), reason="this torch has no such hook"
)
def test_an_optimizer_inside_backward_takes_gradients_that_nobody_saw():
    model, now = small(), [0]
    optimizers = {weight: torch.optim.SGD([weight], 1e-2) for weight in model.parameters()}

    def update(weight):
        if now[0] == 3 and weight is model[2].weight:
            weight.grad[0, 0] = NAN
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)
    with nan.guard(model) as g:
        for now[0] in range(6):
            model(x(8, 4)).square().mean().backward()
    assert g.step == 6 and g.first.step == 3 and "2.weight" in g.first.place
    assert g.first.stage == "param_grads" and "not seen as it accumulated" in g.first.unsure


def test_statistics_that_go_bad_are_no_clean_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    optimizer = sgd(model)
    g = steps(
        model,
        optimizer,
        nan.guard(model, optimizer),
        spoil=lambda n: model[1].running_var.fill_(NAN) if n == 4 else None,
    )  # training never reads them, and they stay bad: weights and buffers are not read after every update
    assert g.status == "bad" and "1.running_var" in g.first.place and g.first.unsure


@pytest.fixture(params=[(0, 1), (8, 8), (0, 10**9)], ids=["each", "as ever", "never"])
def reading(request, monkeypatch):
    """How often weights are read."""
    monkeypatch.setattr(weights, "READ_FIRST", request.param[0])
    monkeypatch.setattr(weights, "READ_EVERY", request.param[1])


@needs_hooks
@pytest.mark.parametrize("fault", ["state", "rate", "poked", "gradient", "batch"])
def test_how_often_weights_are_read_changes_no_verdict(reading, fault):
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def spoil(number):
        if number == 9 and fault == "state":
            optimizer.state[model[2].weight]["exp_avg_sq"][0, 0] = INF  # this weight never moves again
        if number == 12 and fault == "rate":
            optimizer.param_groups[0]["lr"] = NAN
        if number == 12 and fault == "gradient":
            model[0].weight.grad[0] = NAN

    def make(number):
        if number == 12 and fault == "poked":
            with torch.no_grad():
                model[2].weight[0, 0] = NAN
        return x(8, 4) * (NAN if number in (12, 14) and fault in ("batch", "state") else 1)

    g = steps(model, optimizer, nan.guard(model, optimizer), 20, spoil=spoil, make=make)
    where = {
        "state": ("opt_state", "2.weight"),
        "rate": ("weights_after", "0.weight"),
        "poked": ("weights_before", "2.weight"),
        "gradient": ("clipped", "0.weight"),
        "batch": ("batch", "args[0]"),
    }[fault]
    assert g.first.stage == where[0] and where[1] in g.first.place, g.sentence()
    assert g.first.step == 12 or (fault == "state" and 9 <= g.first.step <= 11), g.sentence()


@needs_hooks
def test_statistics_that_a_bad_batch_spoiled_are_not_its_cause(reading):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    optimizer = sgd(model)
    g = steps(
        model, optimizer, nan.guard(model, optimizer), 14, make=lambda n: x(8, 4) * (NAN if n == 10 else 1)
    )
    assert (g.first.stage, g.first.step) == ("batch", 10), g.sentence()


@needs_hooks
@pytest.mark.parametrize("count", [8, 20])
def test_what_was_overwritten_between_two_readings_is_said_not_to_have_been_read(count):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    optimizer = sgd(model)

    def spoil(number):  # training never reads these statistics, and they are whole again one step later
        model[1].running_var.fill_(NAN if number == 10 else 1)

    g = steps(model, optimizer, nan.guard(model, optimizer), count, spoil=spoil)
    assert g.status == "clean" and (g.training.weights.updates, g.training.weights.unread) == (
        count,
        9 if count > 8 else 0,
    )
    said = "20 updates; weights, buffers and state read after 11 of them"
    assert (said in g.sentence()) == (count > 8), g.sentence()


def test_an_observer_that_begins_at_infinity_is_no_fault():
    class Observer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("least", torch.tensor(INF))
            self.register_buffer("most", torch.tensor(-INF))

        def forward(self, given):
            if given.requires_grad:
                self.least = torch.minimum(self.least, given.detach().amin())
                self.most = torch.maximum(self.most, given.detach().amax())
            return given

    model = nn.Sequential(nn.Linear(4, 4), Observer(), nn.Linear(4, 4))
    with nan.guard(model) as g:
        pass
    assert g.first is None and any("1.least" in note for note in g.training.watch.notes)
    optimizer = sgd(model)
    assert steps(model, optimizer, nan.guard(model, optimizer)).status == "clean"


def test_a_loss_belongs_to_the_model_whose_gradients_it_made():
    model, other = small(), small()
    with nan.guard(model) as g, nan.guard(other) as h:
        for number in range(3):
            model(x(8, 4)).square().mean().backward()
            (other(x(8, 4)).square().mean() * (NAN if number == 1 else 1)).backward()
    assert g.status == "clean" and g.training.state.looked_at["loss"] == 3
    assert h.first.stage == "loss" and h.first.step == 1  # of the backwards: no optimizer steps


def test_a_loss_without_a_forward_is_not_called_the_loss_fault_for_certain():
    model = small()
    with nan.guard(model) as g:
        (nn.functional.linear(x(8, 4), model[0].weight) / 0).sum().backward()
    assert g.first.stage == "loss" and "no forward of this model was seen" in g.sentence()


class Adapted(nn.Module):
    """A frozen layer and a low-rank one beside it, as PEFT makes them."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.low, self.high = nn.Parameter(x(4, 2)), nn.Parameter(torch.zeros(2, 4))
        self.on = False

    def forward(self, given):
        more = given @ self.low @ self.high
        return self.base(given) + (more / 0 if self.on else more)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, packed):
        _, (hidden, _) = self.cells(packed)
        return self.head(hidden[-1])


def packed(number, bad_at):
    given = x(3, 5, 4)
    if number == bad_at:
        given[1, 0, 0] = NAN
    return nn.utils.rnn.pack_padded_sequence(given, [5, 3, 2], batch_first=True)


class Penalty(nn.Module):
    """The loss of a program with gradients of gradients: a penalty on the gradient by the input."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def loss(self, bad):
        given = x(8, 4).requires_grad_()
        (slope,) = torch.autograd.grad(self.model(given).square().sum(), given, create_graph=True)
        return ((slope * 0).abs().sqrt() if bad else slope.square()).sum()


@pytest.mark.parametrize("bad_at", [None, 3])
@pytest.mark.parametrize("kind", ["adapters", "packed", "sparse", "penalty", "labels", "where", "raises"])
def test_training_of_many_kinds(kind, bad_at):
    model, loss, now = small(), lambda out: out.square().mean(), [0]
    make = lambda number: x(8, 4)  # noqa: E731
    if kind == "adapters":
        model = nn.Sequential(Adapted(), nn.ReLU(), Adapted())
    elif kind == "packed":
        model, make = Recurrent(), lambda number: packed(number, bad_at)
    elif kind == "sparse":
        model = nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Linear(4, 2))
        make = lambda number: torch.randint(0, 50, (8,))  # noqa: E731
        loss = lambda out: (out * (INF if now[0] == bad_at else 1)).square().sum()  # noqa: E731
    elif kind == "labels":
        loss = lambda out: (out - (NAN if now[0] == bad_at else 1)).square().mean()  # noqa: E731
    elif kind == "where":  # the forward is finite: NaN comes with the gradient of what was not chosen
        loss = lambda out: torch.where(  # noqa: E731
            out * (now[0] != bad_at) != 0, 1 / (out * (now[0] != bad_at)), out * 0
        ).mean()
    elif kind == "raises":
        model.append(Divides()) if hasattr(model, "append") else model.add_module("3", Divides())
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 1e-3)
    penalty = Penalty(model)
    with nan.guard(model, optimizer) as g:
        for now[0] in range(6):
            optimizer.zero_grad()
            if kind == "adapters":
                model[2].on = now[0] == bad_at
            if kind == "raises":
                with pytest.raises(RuntimeError):
                    model(x(8, 5))
                model[3].on = now[0] == bad_at
            if kind == "penalty":
                penalty.loss(now[0] == bad_at).backward()
            else:
                loss(model(make(now[0]))).backward()
            optimizer.step()
    assert g.training.state.failed == 0 and g.status == ("clean" if bad_at is None else "bad"), (
        g.status,
        g.not_seen(),
    )
    if bad_at is not None:
        stage = {"adapters": "forward", "packed": "batch", "raises": "forward"}.get(kind, "loss")
        stages = (stage, "act_grads") if kind == "penalty" else (stage,)
        assert g.first.stage in stages and g.first.step == 3, g.sentence()


@needs_hooks
@pytest.mark.parametrize("bad", [False, True])
def test_two_models_against_each_other_have_verdicts_of_their_own(bad):
    maker, judge = small(), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    by_maker, by_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    with nan.guard(maker, by_maker) as g, nan.guard(judge, by_judge) as h:
        for number in range(10):
            by_judge.zero_grad()
            (judge(x(8, 4)).mean() - judge(maker(x(8, 4)).detach()).mean()).backward()
            by_judge.step()
            if bad and number == 6:
                with torch.no_grad():
                    judge[2].weight[0, 0] = NAN
            by_maker.zero_grad()
            (-judge(maker(x(8, 4))).mean()).backward()
            by_maker.step()
    if not bad:
        assert g.status == "clean" and h.status == "clean"
        return
    assert (g.first.stage, g.first.step) == ("loss", 6)
    assert (h.first.stage, h.first.name) == ("weights_before", "2.weight")


@pytest.mark.parametrize("bad", [False, True])
def test_an_interrupt_passes_and_what_was_found_stays(bad):
    model = small()
    optimizer = sgd(model, NAN if bad else 1e-2)

    def spoil(number):
        if number == 3:
            raise KeyboardInterrupt

    g = nan.guard(model, optimizer)
    with pytest.raises(KeyboardInterrupt):
        steps(model, optimizer, g, spoil=spoil)
    assert g.status == ("bad" if bad else "clean") and g.training.state.ended
    assert not bad or (g.first.stage, g.first.step) == ("weights_after", 0)


@pytest.mark.long
def test_a_guarded_step_frees_what_it_made():
    import gc
    import weakref

    model = small()
    optimizer = sgd(model)
    with nan.guard(model, optimizer):
        for _ in range(4):
            optimizer.zero_grad()
            out = model(x(8, 4))
            seen = weakref.ref(out)
            out.sum().backward()
            del out
            optimizer.step()
        gc.collect()
        assert seen() is None
    kept = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert kept() is None


class Wraps(torch.optim.Optimizer):
    """An optimizer around another one, as ZeRO and Lookahead are."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner, self.spoils = inner, None

    def step(self, closure=None):
        self.inner.step()
        if self.spoils is not None:
            with torch.no_grad():
                self.spoils.fill_(NAN)


@pytest.mark.skipif(not before_update.exists, reason="this torch has no hooks around updates")
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("who", [None, "inner", "outer"])
def test_an_optimizer_around_another_one_makes_one_step_with_it(given, who):
    model = small()
    inner = sgd(model)
    outer = Wraps(inner)

    def spoil(number):
        inner.param_groups[0]["lr"] = NAN if (number, who) == (13, "inner") else 1e-2
        outer.spoils = model[0].weight if (number, who) == (13, "outer") else None

    with nan.guard(model, outer if given else None) as g:
        for number in range(16):
            spoil(number)
            outer.zero_grad()
            model(x(8, 4)).square().mean().backward()
            outer.step()
    assert g.step == 16 and g.training.state.failed == 0
    if who is None:
        assert g.sentence() == "clean: 16 updates; weights, buffers and state read after 10 of them"
    else:
        assert (g.first.stage, g.first.step) == ("weights_after", 13)
