"""Forty programs, most of them training, with one planted fault each, and what made the first bad number.

Each returns the guard. `op` is the operator that a replay must name where there is one.
`unknown_allowed`: without a replay the place may be unknown, with its reason.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.rooms.nan.watch.zoo_clean import Tied, _has, small, x

INF, NAN = float("inf"), float("nan")
FAULT_STEP, STEPS = 2, 4
OLD = not hasattr(torch._C, "_current_autograd_node")  # before 2.0: graphs and updates show less


@dataclass(frozen=True)
class Fault:
    run: Any
    stage: str
    module: str
    op: str = ""
    step: int | None = FAULT_STEP
    unknown_allowed: bool = False
    name: str = ""  # of the tensor, where the place is a tensor


FAULTS: dict[str, Fault] = {}


def fault(title, stage, module, *, needs=(), **more):
    def register(function):
        if all(_has(path) for path in (needs if isinstance(needs, tuple) else (needs,))):
            FAULTS[title] = Fault(function, stage, module, **more)
        return function

    return register


class Switch:
    """Whether the fault is on now; shared by the model and the loop."""

    on = False


def loop(
    model,
    switch,
    guard,
    *,
    make=lambda: x(8, 4),
    loss=None,
    optimizer=None,
    before=None,
    between=None,
    after=None,
):
    """STEPS steps; the fault is on in FAULT_STEP only."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    with guard(model, optimizer) as g:
        for step in range(STEPS):
            switch.on = step == FAULT_STEP
            if before is not None and switch.on:
                before(model, optimizer)
            optimizer.zero_grad()
            out = model(make())
            value = (loss or (lambda out: out.square().mean()))(out)
            value.backward()
            if between is not None and switch.on:
                between(model, optimizer)
            optimizer.step()
            if after is not None and switch.on:
                after(model, optimizer)
    return g


class Code(nn.Module):
    """A layer, code of its own, a layer."""

    def __init__(self, code):
        super().__init__()
        self.first, self.second, self.code = nn.Linear(4, 4), nn.Linear(4, 4), code

    def forward(self, x):
        return self.second(self.code(self.first(x)))


def stacked(code):
    """The code lies in block 1 of three."""
    return nn.Sequential(Code(lambda y: y), Code(code), Code(lambda y: y))


def with_code(code):
    def run(guard):
        switch = Switch()
        return loop(stacked(lambda y: code(y) if switch.on else y), switch, guard)

    return run


# Forward

FORWARD = {
    "division by zero": (lambda y: y / 0, "aten.div"),
    "exp overflows": (lambda y: torch.exp(y * 0 + 1000), "aten.exp"),
    "all masked softmax": (lambda y: y + torch.softmax(y.masked_fill(y == y, -INF), -1), "aten._softmax"),
    "inf minus inf": (lambda y: y.exp() + (y * 3e38 * 1e5 - y * 3e38 * 1e5), "aten.mul"),
    "norm by a zero variance": (
        lambda y: (y - y) / (y - y).std(-1, keepdim=True, unbiased=False),
        "aten.div",
    ),
    "half overflows": (lambda y: (y * 0 + 7e4).half().float() + y, "aten._to_copy"),
}
for _name, (_code, _op) in FORWARD.items():
    FAULTS[_name] = Fault(with_code(_code), "forward", "1", _op)


@fault("in place after a layer", "forward", "1", op="aten.add_", unknown_allowed=True)
def _in_place(guard):
    switch = Switch()

    def code(y):
        if switch.on:
            y += torch.full_like(y, 3e38)
            y += torch.full_like(y, 3e38)
        return y

    return loop(stacked(code), switch, guard)


@fault("in place residual", "forward", "1", unknown_allowed=True)
def _residual(guard):
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

        def forward(self, x):
            hidden, residual = self.a(x), self.b(x)
            hidden += residual * (3e38 if switch.on else 1) * (3e38 if switch.on else 1)
            return self.act(hidden)

    switch = Switch()
    return loop(nn.Sequential(nn.Linear(4, 4), Residual(), nn.Linear(4, 4)), switch, guard)


@fault("a shared layer's second use", "forward", "2")
def _shared(guard):
    switch, one = Switch(), nn.Linear(4, 4)

    class Between(nn.Module):
        def forward(self, x):
            return x / 0 if switch.on else x

    return loop(nn.Sequential(one, nn.Tanh(), Between(), one), switch, guard)


@fault("a NaN that is swallowed before the loss", "forward", "1")
def _swallowed(guard):
    switch = Switch()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.Linear(4, 4), nn.Identity()

        def forward(self, x):
            y = self.out(self.inner(x) * (NAN if switch.on else 1))
            return torch.nan_to_num(y, nan=0.0, posinf=0.0, neginf=0.0)

    return loop(nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 4)), switch, guard)


@fault("checkpointed block", "forward", "1.inner.1")
def _checkpointed(guard):
    switch = Switch()

    class Bad(nn.Module):
        def forward(self, x):
            return x / 0 if switch.on else x

    class Saves(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), Bad())

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    return loop(nn.Sequential(nn.Linear(4, 4), Saves(), nn.Linear(4, 4)), switch, guard)


class BadForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given, bad):
        return given / 0 if bad else given * 1

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given, bad):
        ctx.bad = bad
        return given * 1

    @staticmethod
    def backward(ctx, grad):
        return (grad / 0 if ctx.bad else grad), None


@fault("custom function, forward", "forward", "1", op="aten.div")
def _custom_forward(guard):
    switch = Switch()
    return loop(stacked(lambda y: BadForward.apply(y, switch.on)), switch, guard)


@fault("key/value cache", "forward", "attention", step=0)
def _cache(guard):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(4, 4)
            self.keys = []

        def forward(self, x):
            self.keys.append(x * (NAN if len(self.keys) == 1 else 1))
            return (self.q(x) @ torch.cat(self.keys).t()).softmax(-1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.attention = nn.Linear(4, 4), Attention()

        def forward(self, x):
            return self.attention(self.embed(x))

    model = Model()
    with torch.no_grad(), guard(model) as g:
        for _ in range(3):
            model(x(2, 4))
    return g


@fault("a mask that holds NaN", "batch", "", step=0)
def _nan_mask(guard):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x, attention_mask):
            return (self.inner(x) + attention_mask).softmax(-1)

    model = Model()
    with torch.no_grad(), guard(model) as g:
        model(x(2, 4), attention_mask=torch.tensor([0.0, NAN, -INF, 0.0]))
    return g


# Loss


@fault("loss takes the log of zero", "loss", "")
def _loss(guard):
    switch = Switch()

    def loss(out):
        return out.square().mean() + (torch.log(out.mean() * 0) if switch.on else 0)

    return loop(small(), switch, guard, loss=loss)


@fault("clean loss with a bad gradient", "loss", "")
def _loss_gradient(guard):
    switch = Switch()
    return loop(
        small(), switch, guard, loss=lambda out: out.mean() + ((out * 0).sqrt().sum() * 0 if switch.on else 0)
    )


# Backward

BACKWARD = {
    "square root at zero": (lambda y: y + (y * 0).abs().sqrt(), "aten."),
    "where with a division": (lambda y: y + torch.where(y > 1e9, 1 / (y - y), y * 0), "aten."),
    "arccosine at one": (lambda y: y + (y * 0 + 1).acos(), "aten."),
}
for _name, (_code, _op) in BACKWARD.items():
    FAULTS[f"backward: {_name}"] = Fault(with_code(_code), "act_grads", "1", _op, unknown_allowed=True)


@fault("custom function, backward", "act_grads", "1", op="aten.div", unknown_allowed=True)
def _custom_backward(guard):
    switch = Switch()
    return loop(stacked(lambda y: BadBackward.apply(y, switch.on)), switch, guard)


@fault("backward through a module's only use", "act_grads", "1", unknown_allowed=OLD)
def _sole(guard):
    switch = Switch()

    class Root(nn.Module):
        def forward(self, x):
            return BadBackward.apply(x, switch.on)

    return loop(nn.Sequential(nn.Linear(4, 4), Root(), nn.Linear(4, 4)), switch, guard)


@fault("gradient of a weight alone", "param_grads", "1", name="1.scale")
def _weight_gradient(guard):
    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * BadBackward.apply(self.scale, switch.on)

    switch = Switch()
    return loop(nn.Sequential(nn.Linear(4, 4), Scales(), nn.Linear(4, 4)), switch, guard)


@fault("tied embeddings", "param_grads", "embed", unknown_allowed=True)
def _tied(guard):
    class Bad(Tied):
        def forward(self, ids):
            return F.linear(self.embed(ids), BadBackward.apply(self.head.weight, switch.on))

    switch = Switch()
    return loop(Bad(), switch, guard, make=lambda: torch.arange(8).view(2, 4))


@fault("backward in a checkpoint", "act_grads", "1", unknown_allowed=True)
def _checkpoint_backward(guard):
    class Saves(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def run(self, x):
            return BadBackward.apply(self.inner(x), switch.on)

        def forward(self, x):
            return checkpoint(self.run, x, use_reentrant=False)

    switch = Switch()
    return loop(nn.Sequential(nn.Linear(4, 4), Saves(), nn.Linear(4, 4)), switch, guard)


@fault("second micro-batch", "forward", "1", op="aten.div")
def _micro(guard):
    switch = Switch()
    model = stacked(lambda y: y / 0 if switch.on else y)
    optimizer = torch.optim.Adam(model.parameters())
    with guard(model, optimizer) as g:
        for step in range(STEPS):
            for micro in range(3):
                switch.on = step == FAULT_STEP and micro == 1
                model(x(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return g


# Between backward and the update


@fault("an infinity that only backward shows", "forward", "1", op="aten.div", unknown_allowed=True)
def _swallowed_inside(guard):
    switch = Switch()
    return loop(stacked(lambda y: torch.tanh(y / (0 if switch.on else 1))), switch, guard)


@fault("clipping an infinite gradient", "param_grads", "0", name="0.weight", unknown_allowed=True)
def _clip(guard):
    switch, model = Switch(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    handle = model[0].weight.register_hook(lambda grad: grad * (INF if switch.on else 1))
    found = loop(model, switch, guard, between=lambda m, o: nn.utils.clip_grad_norm_(m.parameters(), 1.0))
    handle.remove()
    return found


# The update


@fault("eps is zero and so is the gradient", "weights_after", "0", step=0)
def _eps(guard):
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=0.0)
    return loop(model, Switch(), guard, optimizer=optimizer, loss=lambda out: (out * 0).sum())


@fault("negative second moment", "weights_after", "0", step=None, unknown_allowed=True)
def _moment(guard):
    def spoil(model, optimizer):
        optimizer.state[model[0].weight]["exp_avg_sq"].fill_(-1e3)

    # Seen after the update of step 2: what was poked stands there already.
    switch = Switch()
    return loop(small(), switch, guard, after=spoil)


@fault("infinite second moment", "opt_state", "0", step=None)
def _infinite_moment(guard):
    model = small().half() if hasattr(torch, "float8_e5m2") else small()
    big = 3e4 if model[0].weight.dtype is torch.float16 else 3e38

    def spoil(model, optimizer):
        for weight in model.parameters():
            weight.grad.fill_(big)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, eps=1e-3, foreach=False)
    make = lambda: x(8, 4).to(model[0].weight.dtype)  # noqa: E731
    return loop(model, Switch(), guard, optimizer=optimizer, make=make, between=spoil)


@fault("weights poked between steps", "weights_before", "2", step=3, name="2.weight", unknown_allowed=OLD)
def _poke(guard):
    def spoil(model, optimizer):
        with torch.no_grad():
            model[2].weight[0, 0] = NAN

    switch = Switch()
    return loop(small(), switch, guard, after=spoil)


@fault("weights poked behind torch's back", "weights_before", "2", step=None, unknown_allowed=True)
def _poke_data(guard):
    def spoil(model, optimizer):
        model[2].weight.data[0, 0] = NAN

    return loop(small(), Switch(), guard, between=spoil)


@fault("bad weights from the start", "weights_before", "2", step=0, name="2.bias")
def _start(guard):
    model = small()
    with torch.no_grad():
        model[2].bias[0] = INF
    return loop(model, Switch(), guard)


@fault("a bad buffer", "weights_before", "1", step=0, name="1.running_var")
def _buffer(guard):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).eval()
    model[1].running_var[0] = NAN
    return loop(model, Switch(), guard)


# Compiled


@fault("compiled before", "batch", "", needs="compile", step=None)
def _compiled(guard):
    model = torch.compile(stacked(lambda y: y), backend="eager")
    with torch.no_grad(), guard(model) as g:
        model(x(8, 4))
        with contextlib.suppress(Exception):
            model(x(8, 4) * 3e38 * 3e38)
    return g


@fault("inside a compiled submodule", "forward", "inner", needs="nn.Module.compile", op="aten.div")
def _compiled_submodule(guard):
    class Divides(nn.Module):
        def forward(self, x, by):
            return x / by

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(4, 4), Divides(), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.inner(self.first(x), torch.tensor(0.0 if switch.on else 1.0)))

    switch, model = Switch(), Model()
    model.inner.compile(backend="eager")
    return loop(model, switch, guard)


# Saturation and other formats


@fault("inf from a float64 cast", "forward", "1", op="aten._to_copy")
def _cast(guard):
    switch = Switch()
    return loop(stacked(lambda y: (y.double() * (1e300 if switch.on else 1)).float()), switch, guard)


@fault("a NaN in an object", "forward", "1")
def _object(guard):
    class Box:
        def __init__(self, value):
            self.value = value

    class Makes(nn.Module):
        def forward(self, x):
            return Box(x / 0 if switch.on else x)

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, box):
            return self.inner(box.value)

    switch = Switch()
    return loop(nn.Sequential(nn.Linear(4, 4), Makes(), Takes()), switch, guard)
