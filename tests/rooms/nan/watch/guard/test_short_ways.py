"""After calm steps a guard on a CPU takes short ways; what then goes wrong is found as on the long ones."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch import plain  # noqa: E402
from lab.rooms.nan.watch.native.passing import looks  # noqa: E402

OLD = not hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
NAN = float("nan")
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


def a_square_below_zero(p):
    p.step()
    for _ in range(3):  # and the update after which state is read
        p.optimizer.state[p.model[0].bias]["exp_avg_sq"].fill_(-1e-12)
        p.model.zero_grad()
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
    a_square_below_zero: "opt_state",
    a_buffer: "weights_before",
    a_batch: "batch",
    another_batch: "batch",
    a_loss: "loss",
    a_new_group: "clipped",
    without_gradients: "forward",
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
    return first.step, first.stage, first.module, first.place, first.unsure, first.why, g.failed, g.notes


@pytest.mark.skipif(OLD, reason="this torch has no such hooks, and no short ways")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_goes_wrong_after_calm_steps_is_found_as_on_the_long_way(way, monkeypatch):
    short = verdict(way)
    for module in ("guard.guard", "recorder"):
        monkeypatch.setattr(f"lab.rooms.nan.watch.{module}.looks", lambda: None)
    assert short == verdict(way)
    assert short[1] == WAYS[way]


@pytest.mark.skipif(looks() is None or OLD, reason="no short ways here")
def test_calm_steps_take_the_short_ways_and_count_what_they_see(monkeypatch):
    p, taken = Program(), []
    with nan.guard(p.model, p.optimizer) as g:
        for _ in range(CALM):
            p.step()
        seen, forwards = g.seen.copy(), g.watch.forwards
        for name, of in (("_finish_in_full", g.watch), ("_way_of", g.watch), ("_before_another", g)):
            monkeypatch.setattr(of, name, lambda *_, name=name: taken.append(name))
        monkeypatch.setattr(g.weights, "_read", lambda *_: taken.append("read"))
        for _ in range(8):
            p.step()
        assert g.step == CALM + 8 and g.watch.forwards == forwards + 8
        assert not taken
        more = {stage: g.seen[stage] - before for stage, before in seen.items()}
        assert more["param_grads"] == 8 * 6 and more["loss"] == 8
        assert (
            more["weights_after"] == 6 + 2 and more["opt_state"] == 3 * 6
        )  # with what BatchNorm has of its own
    assert g.status == "clean"


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
