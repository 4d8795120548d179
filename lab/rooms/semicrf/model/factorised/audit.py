"""Which sequences may have lost mass to underflow on the pass from the left."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lab.rooms.semicrf.model.dual import real
from lab.rooms.semicrf.model.factorised.messages import Chain, walk
from lab.rooms.semicrf.model.factorised.weights import LINE, weigh
from lab.rooms.semicrf.model.problem import Problem

TINY_LOG2 = -1022.0
"""Below this power of two float64 loses digits; `audit` counts everything below it as lost."""
TANGENT_LOG2 = 60.0
"""A tangent lies this much below its message, and loses its digits as much earlier."""
MARGIN_LOG2 = 80.0
"""A message must exceed what may be lost by 2^80: up to K C losses add up and must stay below 1e-16 of it."""


def audit(problem: Problem, chain: Chain, z_B: Tensor, gain_B: Tensor) -> Tensor:
    """Which sequences may have lost mass to underflow, (B,) bool.

    Frames and transitions weigh at most 1, and the rest of a segment at most exp(`gain_B`), so what a pending
    row loses at frame u is worth at frame t at most as much times the frames between: `lost`, a running
    maximum. A row loses at most TINY itself, and by a weight that loses it TINY times the messages that meet
    this weight (`met`). Every message that can be reached at all must exceed that by the margin; a
    message that is not finite is flagged too.
    """
    frame_TBC, gamma_TXBC = real(chain.frame_TBC), real(chain.gamma_TXBC)
    z_B, margin = real(z_B), MARGIN_LOG2 + (TANGENT_LOG2 if z_B.is_complex() else 0)
    power_TBC = frame_TBC.log2().clamp(min=-2000.0).cumsum(0)
    power_TBC = torch.cat([torch.zeros_like(power_TBC[:1]), power_TBC])
    lost_TBC = power_TBC + (met(chain, problem)[..., None] - power_TBC).cummax(0).values
    lost_TB = lost_TBC.amax(-1) + log2_of_top(chain.alpha_TBC).clamp(min=0)  # what the transitions meet
    lost_TB = lost_TB + TINY_LOG2 + margin + gain_B.clamp(min=0) / math.log(2)
    reached, reached_z_B = support(problem)
    rows = torch.arange(len(z_B), device=z_B.device)
    inside_TB = torch.arange(len(lost_TB), device=z_B.device)[:, None] < problem.lengths_B
    low = reached & (gamma_TXBC.log2() < lost_TB[:, None, :, None])
    bad = inside_TB[:, None, :, None] & (~torch.isfinite(gamma_TXBC) | low)
    bad_B = bad.any(-1).any(1).any(0) | (gain_B > 700)  # exp overflows, and would meet a zero
    return bad_B | ~torch.isfinite(z_B) | (reached_z_B & (z_B.log2() < lost_TB[problem.lengths_B, rows]))


def met(chain: Chain, problem: Problem) -> Tensor:
    """log2 of the messages, 1 or more, that meet the weights of the frame before boundary t, (T+1, B).

    They wait for up to K frames. A weight may be lost before or after the power moves into it.
    """
    tops_TB = log2_of_top(chain.gamma_TXBC).amax(1) + chain.exponent_TB
    highest_TB = highest(tops_TB, problem.shape[2])
    moved_TB = torch.exp2(-chain.exponent_TB.diff(dim=0)).log1p() / math.log(2)
    ahead_TB = (highest_TB - chain.exponent_TB)[:-1].clamp(min=0) + moved_TB
    return torch.cat([torch.zeros_like(ahead_TB[:1]), ahead_TB])


def highest(value_TB: Tensor, longest: int) -> Tensor:
    """The largest of the last `longest` rows, or of up to as many before."""
    rows = len(value_TB)
    size = min(longest, rows)
    filled = torch.nn.functional.pad(value_TB, (0, 0, 0, -rows % size), value=-torch.inf)
    blocks = filled.reshape(-1, size, value_TB.shape[1])
    older = torch.cat([torch.full_like(blocks[:1], -torch.inf), blocks[:-1]]).amax(1, keepdim=True)
    return torch.maximum(blocks.cummax(1).values, older).flatten(0, 1)[:rows]


def log2_of_top(message: Tensor) -> Tensor:
    """Of the largest label; of nothing or what is not finite (which is flagged), very low."""
    top = real(message).amax(-1)
    return torch.where(torch.isfinite(top) & (top > 0), top, torch.zeros_like(top)).log2().clamp(min=-2000.0)


def support(problem: Problem) -> tuple[Tensor, Tensor]:
    """Which messages no -inf forbids: (T+1, X, B, C), or those of all labels alike; and z's (B,)."""
    rows = torch.arange(problem.shape[0], device=problem.lengths_B.device)
    labels = problem.shape[3]
    if not any(bool(torch.isneginf(real(value)).any()) for value in problem.floats()):
        return torch.arange(labels + -labels % LINE, device=rows.device) < labels, torch.ones_like(
            rows, dtype=torch.bool
        )
    weights = weigh(problem.allowed())  # 0 and 1
    chain = walk(weights, problem.shape[2], saturate=True)
    return chain.gamma_TXBC > 0, (chain.alpha_TBC[problem.lengths_B, rows] * weights.end_C).sum(-1) > 0
