"""The model in the linear domain: exponentials of the scores, shifted so that the largest is 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lab.rooms.semicrf.model.log_domain import finite_or_zero
from lab.rooms.semicrf.model.problem import Problem, frames_masked

LINE = 8
"""Numbers in a cache line."""


@dataclass(frozen=True)
class Weights:
    """The model in the linear domain, time first.

    `transition` (C, C) or (K, C, C); `duration_K1C` (K, 1, C).
    """

    frame_TBC: Tensor
    transition: Tensor
    duration_K1C: Tensor
    start_C: Tensor
    end_C: Tensor
    log_shift_B: Tensor
    most_shift_B: Tensor

    @property
    def by_duration(self) -> bool:
        return self.transition.dim() == 3

    def first(self, batch: int) -> Tensor:
        """gamma at boundary 0."""
        shape = (len(self.duration_K1C), batch, -1) if self.by_duration else (batch, -1)
        return self.start_C.expand(*shape).contiguous()

    def onward(self, alpha_BC: Tensor) -> Tensor:
        """gamma from alpha: (B, C), or (K, B, C) where the transition depends on the duration."""
        if not self.by_duration:
            return torch.bmm(alpha_BC[:, None], self.transition.expand(len(alpha_BC), -1, -1))[:, 0]
        return torch.matmul(alpha_BC, self.transition)  # (B, C) x (K, C, C)


def weigh(problem: Problem) -> Weights:
    """Exponentials of the scores, each shifted so that its largest is 1; the shifts are kept for log Z.

    Labels are padded to whole cache lines by forbidden ones: libraries sum rows of other sizes in an order
    that depends on where they lie, and the batch would move the last bit of its members. For the same reason
    scores are made contiguous: on strided data exp takes another path.
    """
    more = -problem.shape[3] % LINE
    score_TBC = padded(frames_masked(problem).transpose(0, 1).contiguous(), more)
    transition = padded(problem.transition.double(), more, rows=True)
    end_C = padded(problem.end_C.double(), more)
    top_TB = finite_or_zero(score_TBC.amax(-1))
    shift, end_shift = finite_or_zero(transition.max()), finite_or_zero(end_C.max())
    row = (problem.lengths_B - 1)[None]
    return Weights(
        (score_TBC - top_TB[..., None]).exp() * frames_inside(problem),
        (transition - shift).exp(),
        (padded(problem.duration_KC.double(), more) + shift).exp()[
            :, None
        ],  # all but the first pay a transition
        (padded(problem.start_C.double(), more) - shift).exp(),
        (end_C - end_shift).exp(),
        top_TB.cumsum(0).gather(0, row)[0] + end_shift,
        top_TB.abs().amax(0),
    )


def padded(value: Tensor, more: int, rows: bool = False) -> Tensor:
    """`more` labels that are forbidden, in the last dimension, with `rows` in the last two."""
    return torch.nn.functional.pad(value, (0, more, 0, more) if rows else (0, more), value=-float("inf"))


def frames_inside(problem: Problem) -> Tensor:
    """1 for a sequence's frames, 0 for its padding, (T, B, 1): all messages after the end are zero."""
    frame_T1 = torch.arange(problem.shape[1], device=problem.lengths_B.device)[:, None]
    return (frame_T1 < problem.lengths_B).double()[..., None]
