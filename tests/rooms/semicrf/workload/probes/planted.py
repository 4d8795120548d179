"""A plain semi-CRF as a user may have written it: sound, or with one fault of those met in the wild."""

from __future__ import annotations

import itertools
import math

import torch

from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.ledger import mass

CALLS = itertools.count()
CLOSED = -float("inf")


def logsumexp(value, dim):
    """Guarded: -inf with gradient 0, and no NaN, where all are -inf."""
    top = value.detach().amax(dim, keepdim=True)
    total = (value - top.masked_fill(top == CLOSED, 0.0)).exp().sum(dim)
    log = torch.where(total > 0, total, torch.ones_like(total)).log() + top.squeeze(dim)
    return torch.where(total > 0, log, torch.full_like(total, CLOSED))


def unguarded(value, dim):
    top = value.amax(dim, keepdim=True)
    return (value - top).exp().sum(dim).log() + top.squeeze(dim)


def rounded(value, dtype):
    """Kept in a smaller type; the gradient passes."""
    return value + (value.detach().to(dtype).float() - value.detach()).nan_to_num()


class Scaled(torch.autograd.Function):
    """Its gradient is this many times what it should be, or that of a sum, whatever comes in."""

    @staticmethod
    def forward(ctx, value, factor):
        ctx.factor = factor
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return (torch.ones_like(grad) if ctx.factor is None else grad * ctx.factor), None


def scan(score, transition, duration, lengths, start_C=None, end_C=None, fault=None):
    """log Z (B,) by the recursion over boundaries, sequence by sequence."""
    batch, frames, labels = score.shape
    longest, zero_C = len(duration), score.new_zeros(labels)
    start_C, end_C = zero_C if start_C is None else start_C, zero_C if end_C is None else end_C
    add = unguarded if fault == "missing guard" else logsumexp
    if fault == "clamp at 80":
        score = torch.where(score == CLOSED, score, score.clamp(-80, 80))
    if fault == "sentinel over the mask":
        score = score.masked_fill(score == CLOSED, -5.0)
    if fault == "transposed transitions":
        transition = transition.T
    if fault == "transition gradient":
        transition = Scaled.apply(transition, 1.2)
    bias = duration.roll(1, 0) if fault == "durations shifted" else duration
    reach = longest - 1 if fault == "longest dropped" else longest
    partitions = []
    for b in range(batch):
        length = {"length ignored": frames, "mask too wide": min(frames, int(lengths[b]) + 1)}.get(
            fault, int(lengths[b])
        )
        row = score[b]
        if fault == "mask by product":
            row = row - 0 * (row * (torch.arange(frames) < length)[:, None]).sum()
        alphas, gammas = [], [start_C]
        for t in range(1, length + 1):
            arcs, content = [], zero_C
            for k in range(1, min(max(reach, 1), t) + 1):
                content = content + row[t - k]
                slot = (
                    t - k + (2 * longest if fault == "stale ring" and k == longest and t > 2 * longest else 0)
                )
                gamma = gammas[slot] if slot < len(gammas) else gammas[t - 1]
                arcs.append(gamma + content + bias[k - 1])
            alpha = add(torch.stack(arcs), 0)
            if fault == "float16 accumulates":
                alpha = rounded(alpha, torch.float16)
            alphas.append(alpha)
            gammas.append(add(alpha[:, None] + transition, 0))
        partitions.append(add(alphas[-1] + end_C, 0))
    log_z = torch.stack(partitions)
    if fault == "one scale for the batch":
        top = log_z.detach().max()
        log_z = (log_z - top).exp().log() + top
    if fault == "race":
        call = next(CALLS)
        log_z = log_z + 1e-6 * log_z.detach().nan_to_num() * (call % 3)
    return Scaled.apply(log_z, None) if fault == "incoming gradient ignored" else log_z


def faulty(fault, partition=api.log_partition):
    """A sound partition function with a fault around it, as a kernel may have it; `None` for none."""

    def overread(*, lengths_B=None, **model):
        if lengths_B is not None:
            lengths_B = (lengths_B + 2).clamp(max=model["score_BTC"].shape[1])
        return partition(lengths_B=lengths_B, **model)

    def race(*, score_BTC, **model):
        """Every third call one sequence's message is stale, at a moving frame; every ninth it is NaN."""
        call = next(CALLS)
        if call % 3 == 2:
            stale = torch.zeros_like(score_BTC)
            b, t = call % len(score_BTC), call % max(1, score_BTC.shape[1] // 2)
            stale[b, t] = math.nan if call % 9 == 8 else 5.0
            stale[b, t, 0] = 0.0
            score_BTC = score_BTC + stale
        return partition(score_BTC=score_BTC, **model)

    def stale(*, lengths_B=None, alarm=None, **model):
        """The posteriors of the first frames of the first sequence are e^0.5 times too large."""

        def spoil(posteriors):
            whole_B = torch.full_like(posteriors.mass_frame_B, model["score_BTC"].shape[1])
            ends_B = whole_B if lengths_B is None else lengths_B
            posteriors.label_BTC[0, : 1 + int(ends_B[0]) // 4] *= math.exp(0.5)
            error_B, frame_B = mass(posteriors.label_BTC, ends_B, posteriors.log_z_B)
            posteriors.mass_error_B.copy_(error_B)
            posteriors.mass_frame_B.copy_(frame_B)
            if posteriors.imbalance_B is not None:
                posteriors.imbalance_B.copy_(error_B)
            if alarm is not None:
                alarm(posteriors)

        return partition(lengths_B=lengths_B, alarm=spoil, **model)

    return {"overread": overread, "race": race, "stale": stale}.get(fault, partition)
