"""Twenty-five families of healthy programs with legal infinities, each with a fault to switch on.

A family is (model, loss of the model, operator that a replay must name with the fault). The infinities are
gone before loss and gradient; with the fault they are not, or a NaN is made of them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

INF, NAN = float("inf"), float("nan")
BATCH, LENGTH, WIDTH = 2, 5, 8


class Switch:
    on = False


class Attention(nn.Module):
    """Self-attention whose bias argument has the name `name`."""

    def __init__(self, switch):
        super().__init__()
        self.project, self.out, self.switch = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 2), switch

    def attend(self, x, bias):
        q, k, v = self.project(x).chunk(3, -1)
        return self.out((q @ k.mT / 3 + bias).softmax(-1) @ v)


def attention_with(name):
    """An attention whose argument has this name: names must not matter."""

    def make(switch):
        scope = {}
        exec(f"def forward(self, x, {name}): return self.attend(x, {name})", scope)  # noqa: S102
        return type("Attention", (Attention,), scope)(switch)

    def loss(model):
        bias = torch.full((LENGTH, LENGTH), -INF).triu(1)
        if model.switch.on:
            bias[0] = -INF
        return model(torch.randn(BATCH, LENGTH, WIDTH), bias).square().mean()

    return make, loss, "aten._softmax"


class Own(nn.Module):
    """A module of two linear layers around `body(x, is_on)`."""

    def __init__(self, switch, body, width=WIDTH):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(width, 2)
        self.body, self.switch = body, switch

    def forward(self, x):
        return self.second(self.body(self.first(x), self.switch.on))


def inside(body, op, width=WIDTH):
    """Infinities inside one module's own code."""
    return (
        lambda switch: Own(switch, body, width),
        lambda model: model(torch.randn(6, WIDTH)).square().mean(),
        op,
    )


class Logits(nn.Module):
    """Masked logits in the output."""

    def __init__(self, switch):
        super().__init__()
        self.layer, self.switch = nn.Linear(WIDTH, 4), switch

    def forward(self, x):
        return self.layer(x).masked_fill(torch.tensor([False, False, True, False]), -INF)


def outside(loss_of, op):
    """Minus infinity in the output, and a loss of the program's own."""
    return Logits, lambda model: loss_of(model(torch.randn(6, WIDTH)), model.switch.on), op


def masked_softmax(y, is_on):
    return y.masked_fill(y == y if is_on else y > 1, -INF).softmax(-1)


def causal(y, is_on):
    scores = (y @ y.mT).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -INF)
    scores = scores.masked_fill(torch.eye(6, dtype=torch.bool), -INF) if is_on else scores
    return scores.softmax(-1) @ y


def top_k(y, is_on):
    values, index = y.topk(0 if is_on else 2, -1)
    return torch.full_like(y, -INF).scatter(-1, index, values).softmax(-1)


def max_pool(y, is_on):
    padded = F.pad(y[:, None], (1, 1), value=-INF)
    pooled = F.max_pool1d(padded, 3, 1)[:, 0]
    return pooled - padded.amin(-1) * 0 if is_on else pooled


def max_of_kept(y, is_on):
    kept = y.masked_fill(y < (INF if is_on else -1), -INF)
    return y - kept.amax(-1, keepdim=True) * (0 if is_on else 1)


def nearest(y, is_on):
    far = torch.cdist(y, y).masked_fill(torch.eye(6, dtype=torch.bool), INF)
    return y * (far - far if is_on else far).amin(-1, keepdim=True)


def log_mask(y, is_on):
    bias = (torch.ones(WIDTH).index_fill(0, torch.tensor([0, 1]), 0.0) * (0 if is_on else 1)).log()
    return (y + bias).softmax(-1)


def windows(y, is_on):
    bias = torch.where(torch.arange(WIDTH) < (0 if is_on else 4), 0.0, -INF)
    return (y + bias).softmax(-1)


def alibi(y, is_on):
    slopes = torch.linspace(0, 1, WIDTH)
    bias = torch.where(slopes > (2 if is_on else 0.3), -slopes, torch.tensor(-INF))
    return (y + bias).softmax(-1)


def logsumexp(y, is_on):
    return y - y.masked_fill(y > (-INF if is_on else 1), -INF).logsumexp(-1, keepdim=True)


def sigmoid_gate(y, is_on):
    gate = torch.full_like(y, -INF)
    return y + gate.sigmoid() * (gate if is_on else 1)


def exp_gate(y, is_on):
    gate = torch.full((WIDTH,), -INF)
    return y + gate.exp() * (gate if is_on else 1)


def reciprocal(y, is_on):
    far = torch.full((WIDTH,), INF)
    return y + (far / far if is_on else 1 / far)


def clamped(y, is_on):
    steep = y.detach() / 0
    return y + (steep - steep if is_on else steep.nan_to_num(nan=0.0).clamp(-1, 1))


def tanh_of_infinite(y, is_on):
    steep = (y.detach().abs() + 1) * INF
    return y + (steep * 0 if is_on else steep.tanh())


def sorted_padding(y, is_on):
    padded = F.pad(y, (0, 2), value=-INF).sort(-1, descending=True).values
    return padded[..., :WIDTH] + (padded[..., WIDTH:].sum(-1, keepdim=True) * 0 if is_on else 0)


def running_max(y, is_on):
    start = torch.full((6, 1), -INF)
    largest = torch.cat([start, y], -1).cummax(-1).values
    return y + (largest - largest)[..., :WIDTH] if is_on else largest[..., 1:]


def cross_entropy(y, is_on):
    target = torch.full((6,), 0)
    value = F.cross_entropy(y, target)
    return value + (y.softmax(-1) * y.log_softmax(-1)).sum() if is_on else value


def policy(y, is_on):
    log_p = y.log_softmax(-1)
    return -log_p[:, 0].mean() + ((log_p.exp() * log_p).sum() if is_on else 0.0)


def margin(y, is_on):
    return y.amax(-1).mean() + ((y - y).sum() if is_on else 0.0)


NAMES = ("attn_mask", "bias", "m", "tril", "scores_add")
FAMILIES = {f"attention, argument {name}": attention_with(name) for name in NAMES} | {
    "masked softmax": inside(masked_softmax, "aten._softmax"),
    "causal scores": inside(causal, "aten._softmax"),
    "top-k router": inside(top_k, "aten._softmax"),
    "padding before a max-pool": inside(max_pool, "aten.mul"),
    "largest of what is kept": inside(max_of_kept, "aten.mul"),
    "nearest but itself": inside(nearest, "aten.sub"),
    "logarithm of a mask": inside(log_mask, "aten._softmax"),
    "window by where": inside(windows, "aten._softmax"),
    "slopes of distance": inside(alibi, "aten._softmax"),
    "logsumexp of the kept": inside(logsumexp, "aten.addmm"),
    "sigmoid gate": inside(sigmoid_gate, "aten.mul"),
    "exponential gate": inside(exp_gate, "aten.mul"),
    "one over far": inside(reciprocal, "aten.div"),
    "steep and clamped": inside(clamped, "aten.div"),
    "saturating tanh": inside(tanh_of_infinite, "aten.mul"),
    "sorted padding": inside(sorted_padding, "aten.mul"),
    "running maximum": inside(running_max, "aten.sub"),
    "masked cross entropy": outside(cross_entropy, "aten.mul"),
    "masked policy": outside(policy, "aten.mul"),
    "margin of the largest": outside(margin, "aten.sub"),
}
