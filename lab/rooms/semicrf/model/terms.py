"""The scores as the recursions take them: float64, time first, nothing of the padding, frame by frame."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.rooms.semicrf.model.problem import Problem, masked


class Terms:
    """The log scores that a message meets on its way; one of a single segment that is not given is skipped.

    A message leaves boundary t (`first` or `onward`, which includes the score of a start there) for segments
    of 1..K frames (`lasting`), gathers the frames, and arrives at the boundary after frame t (`closed`).
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.frame_TBC = masked(problem, problem.score_BTC).transpose(0, 1).contiguous()
        self.opens_TBC, self.closes_TBC = (
            None if value is None else masked(problem, value).transpose(0, 1).contiguous()
            for value in (problem.seg_start_BTC, problem.seg_end_BTC)
        )
        duration = problem.duration_KC if problem.duration_KC.dim() == 3 else problem.duration_KC[None]
        self.duration_KBC = duration.double().transpose(0, 1)  # (K, 1, C) where all sequences share it
        self.start_C, self.end_C = problem.start_C.double(), problem.end_C.double()
        transition = problem.transition if problem.transition.dim() == 3 else problem.transition[None]
        self.transition = transition.double()  # (B or 1, C, C)

    def first(self) -> Tensor:
        """gamma at boundary 0, (B, C)."""
        batch, _, _, labels = self.problem.shape
        return self.opened(self.start_C.expand(batch, labels), 0)

    def opened(self, gamma: Tensor, t: int) -> Tensor:
        """Add the score of segments that start with frame t; after the last frame there is none."""
        after_end = self.opens_TBC is None or t == len(self.opens_TBC)
        return gamma if after_end else gamma + self.opens_TBC[t]  # type: ignore[index]

    def closed(self, alpha_BC: Tensor, t: int) -> Tensor:
        """Add the score of segments that end with frame t."""
        return alpha_BC if self.closes_TBC is None else alpha_BC + self.closes_TBC[t]

    def lasting(self, t: int) -> Tensor:
        """The score of each duration of a segment that starts with frame t: (K, B or 1, C)."""
        segment = self.problem.segment_BTKC
        if segment is None:
            return self.duration_KBC
        last_K1 = t + torch.arange(self.problem.shape[2], device=segment.device)[:, None]
        fits_KB = last_K1 < self.problem.lengths_B
        segment_KBC = segment[:, t].double().transpose(0, 1)
        return self.duration_KBC + torch.where(fits_KB[..., None], segment_KBC, torch.zeros_like(segment_KBC))

    def arriving(self, t: int, reach: int) -> Tensor:
        """The score of each duration of a segment that ends at boundary t: (reach, B or 1, C)."""
        segment = self.problem.segment_BTKC
        if segment is None:
            return self.duration_KBC[:reach]
        shorter_K = torch.arange(reach, device=segment.device)
        segment_KBC = segment[:, t - 1 - shorter_K, shorter_K].double().transpose(0, 1)
        inside_B1 = (t <= self.problem.lengths_B)[:, None]
        return self.duration_KBC[:reach] + torch.where(inside_B1, segment_KBC, torch.zeros_like(segment_KBC))
