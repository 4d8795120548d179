"""Which sequences may have lost mass to underflow on the pass from the left."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lab.rooms.semicrf.model.factorised.messages import Chain, walk
from lab.rooms.semicrf.model.factorised.weights import LINE, Weights, frames_inside
from lab.rooms.semicrf.model.log_domain import finite_or_zero
from lab.rooms.semicrf.model.problem import Problem

TINY_LOG2 = -1022.0
"""Below this power of two float64 loses digits; `audit` counts everything below it as lost."""
MARGIN_LOG2 = 80.0
"""A message must exceed what may be lost by 2^80: up to K C losses add up and must stay below 1e-16 of it."""


def audit(problem: Problem, chain: Chain, z_B: Tensor) -> Tensor:
    """Which sequences may have lost mass to underflow, (B,) bool.

    Every weight but the duration's is at most 1, so what a pending row loses at frame u (at most TINY then)
    is worth at frame t at most TINY times the frames between: `lost`, a running maximum. Every message that
    can be reached at all must exceed that by the margin; a message that is not finite is flagged too.
    """
    frame_TBC, gamma = chain.frame_TBC, chain.gamma
    power_TBC = frame_TBC.log2().clamp(min=-2000.0).cumsum(0)
    power_TBC = torch.cat([torch.zeros_like(power_TBC[:1]), power_TBC])
    lost_TB = (power_TBC + (-power_TBC).cummax(0).values).amax(-1) + TINY_LOG2 + MARGIN_LOG2
    duration_log2 = problem.duration_KC.double().max() + finite_or_zero(problem.transition.double().max())
    lost_TB = lost_TB + duration_log2.clamp(min=0) / math.log(2)
    reached, reached_z_B = support(problem)
    rows = torch.arange(len(z_B), device=z_B.device)
    inside_TB = torch.arange(len(lost_TB), device=z_B.device)[:, None] < problem.lengths_B
    inside, bound = inside_TB[..., None], lost_TB[..., None]
    if problem.by_duration:
        inside, bound = inside[:, None], bound[:, None]
    bad = inside & (~torch.isfinite(gamma) | (reached & (gamma.log2() < bound)))
    bad_B = bad.flatten(3).any(-1).any(1).any(0) if problem.by_duration else bad.any(-1).any(0)
    bad_B = bad_B | (duration_log2 > 700)  # exp overflows, and would meet a zero
    return bad_B | ~torch.isfinite(z_B) | (reached_z_B & (z_B.log2() < lost_TB[problem.lengths_B, rows]))


def support(problem: Problem) -> tuple[Tensor, Tensor]:
    """Which messages no -inf forbids: (T+1, ..., B, C), or one True for all; and z's (B,)."""
    labels = problem.shape[3]
    more = -labels % LINE
    rows = torch.arange(problem.shape[0], device=problem.lengths_B.device)
    if not any(bool(torch.isneginf(value).any()) for value in problem.floats()):
        return torch.arange(labels + more, device=rows.device) < labels, torch.ones_like(
            rows, dtype=torch.bool
        )
    score_BTC, transition, duration_KC, start_C, end_C = (
        torch.nn.functional.pad((~torch.isneginf(value)).double(), (0, more)) for value in problem.floats()
    )
    transition = torch.nn.functional.pad(transition, (0, 0, 0, more))
    frame_TBC = score_BTC.transpose(0, 1) * frames_inside(problem)
    weights = Weights(frame_TBC, transition, duration_KC[:, None], start_C, end_C, end_C[:1], end_C[:1])
    chain = walk(weights, problem.shape[2], saturate=True)
    return chain.gamma > 0, (chain.alpha_TBC[problem.lengths_B, rows] * end_C).sum(-1) > 0
