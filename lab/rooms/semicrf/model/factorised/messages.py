"""The pass from the left: messages as plain numbers with a power of two taken out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lab.rooms.semicrf.model.dual import real
from lab.rooms.semicrf.model.factorised.weights import Weights
from lab.rooms.semicrf.model.problem import Problem

EVERY = 8
"""Frames between two rescalings: float64 spans 2^2046; a frame rarely moves a message by more than 2^60."""


@dataclass
class Chain:
    """Messages of the pass from the left: rows t of both in units of 2^exponent_TB[t]."""

    alpha_TBC: Tensor
    gamma_TXBC: Tensor
    exponent_TB: Tensor
    frame_TBC: Tensor


@dataclass
class State:
    """What the pass from the left leaves for the counts."""

    problem: Problem
    weights: Weights
    chain: Chain
    z_B: Tensor
    log_z_B: Tensor
    flagged_B: Tensor


def walk(weights: Weights, longest: int, saturate: bool = False) -> Chain:
    """The pass from the left.

    `saturate` caps messages at 1: with weights 0 and 1 they show which labels can be reached.
    """
    frame_TBC = weights.frame_TBC.clone()
    frames, batch, labels = frame_TBC.shape
    pending = frame_TBC.new_zeros(frames + longest, batch, labels)
    alpha_TBC = frame_TBC.new_zeros(frames + 1, batch, labels)
    exponent_TB = real(frame_TBC).new_zeros(frames + 1, batch)
    gamma = [weights.first()]
    for t in range(frames):
        if t and t % EVERY == 0 and not saturate:
            exponent_TB[t + 1 : t + 1 + EVERY] = exponent_TB[t] + rescale(gamma[t], frame_TBC[t])
        window = pending[t : t + longest]  # row j ends with frame t + j
        own_KBC = weights.lasting(t)
        window.addcmul_(gamma[t] if own_KBC is None else gamma[t] * own_KBC, weights.duration_KBC)
        window.mul_(frame_TBC[t])
        alpha_TBC[t + 1] = weights.closed(window[0].clamp(max=1) if saturate else window[0], t)
        gamma.append(weights.onward(alpha_TBC[t + 1], t + 1))
    return Chain(alpha_TBC, torch.stack(gamma), exponent_TB, frame_TBC)


def rescale(message_XBC: Tensor, frame_BC: Tensor) -> Tensor:
    """Move the power of two of each sequence's largest message into the next frame's weights; returns it."""
    top_B = real(message_XBC).amax((0, 2))
    _, power_B = torch.frexp(top_B)
    usable = torch.isfinite(top_B) & (top_B > 0)
    power_B = torch.where(usable, power_B, torch.zeros_like(power_B))
    frame_BC.mul_(torch.ldexp(torch.ones_like(top_B), -power_B)[:, None])
    return power_B.to(top_B.dtype)
