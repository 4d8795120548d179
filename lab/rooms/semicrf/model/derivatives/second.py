"""How expected counts change with the scores: the second derivative of log Z in one direction, exact.

The counts are the gradient of log Z, so their derivative in a direction is a product with its Hessian, and
because that is symmetric the same product carries gradients back. It comes from one more run of the torch
form on complex numbers (`dual.py`): no graph is recorded, and memory stays that of two passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lab.rooms.semicrf.model.dual import STEP
from lab.rooms.semicrf.model.factorised import backend as torch_factorised
from lab.rooms.semicrf.model.problem import Problem, by_sequence
from lab.rooms.semicrf.model.terms import canonical

Counts = Sequence[Tensor]
"""label, starts, ends, duration, transition, and segments where they have scores; the batch comes first."""


def tangents(problem: Problem, direction: Counts) -> list[Tensor]:
    """The derivative of the counts where each score moves by `direction`, in float64.

    Each sequence moves on its own, also in what all share. The direction must be zero where the count is.
    """
    top_B = torch.stack([value.detach().double().abs().flatten(1).amax(1) for value in direction]).amax(0)
    step_B = STEP / torch.where(top_B > 0, top_B, torch.ones_like(top_B))
    moved = moving(problem, [value.double() * by_sequence(step_B, value) for value in direction])
    found = torch_factorised.backward(torch_factorised.forward(moved, keep=True))
    pairs = zip(found.parts()[1:-2], direction, strict=True)
    return [(count.imag * by_sequence(1 / step_B, count)).reshape(given.shape) for count, given in pairs]


def moving(problem: Problem, step: Counts) -> Problem:
    """The scores with imaginary parts; starts and ends move by the terms of single segments."""
    batch, _, longest, labels = problem.shape
    zero_BTC = torch.zeros_like(step[0])
    opens, closes = (zero_BTC if x is None else x for x in (problem.seg_start_BTC, problem.seg_end_BTC))
    transition = canonical(problem.transition)
    if problem.per_frame:  # row 0 is not read: of a single frame the shape would no longer say so
        transition = torch.cat([torch.zeros_like(transition[:, :1]), transition[:, 1:]], 1)
    steps = step[4].reshape(batch, *transition.shape[1:])
    return replace(
        problem,
        score_BTC=dual(problem.score_BTC, step[0]),
        seg_start_BTC=dual(opens, step[1]),
        seg_end_BTC=dual(closes, step[2]),
        duration_KC=dual(problem.duration_KC.expand(batch, longest, labels), step[3]),
        transition=dual(transition.expand(steps.shape), steps),
        start_C=problem.start_C.to(torch.complex128),
        end_C=problem.end_C.to(torch.complex128),
        segment_BTKC=None if problem.segment_BTKC is None else dual(problem.segment_BTKC, step[5]),
    )


def dual(value: Tensor, step: Tensor) -> Tensor:
    return torch.complex(value.double(), step)
