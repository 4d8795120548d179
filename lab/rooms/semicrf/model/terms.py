"""The scores as the recursions take them: float64, time first, nothing of the padding, frame by frame."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lab.rooms.semicrf.model.dual import plus, real, wide
from lab.rooms.semicrf.model.problem import Problem, inside, masked

FAR = 1e9
"""A number that leaves float64 less than 1e-6 of what is added to it."""


def far_top(value: Tensor) -> Tensor:
    """The largest of `value`, float64, if it is finite and beyond `FAR`; else 0."""
    top = real(value.detach()).double().amax()
    return torch.where(torch.isfinite(top) & (top.abs() > FAR), top, torch.zeros_like(top))


def has_far_edges(problem: Problem) -> bool:
    """Whether all starts or all ends are far from the other scores; on a GPU this waits."""
    tops = (float(value.detach().max()) for value in (problem.start_C, problem.end_C))
    return any(FAR < abs(top) < float("inf") for top in tops)


def without_far_edges(problem: Problem) -> Problem:
    """The same distribution, whose starts and ends leave digits for the rest."""
    start_C, end_C = (value - far_top(value) for value in (problem.start_C, problem.end_C))
    return replace(problem, start_C=start_C, end_C=end_C)


class Terms:
    """The log scores that a message meets on its way; one of a single segment that is not given is no step.

    A message leaves boundary t (`first` or `onward`, which includes the score of a start there) for segments
    of 1..K frames (`lasting`), gathers the frames, and arrives at the boundary after frame t (`closed`). What
    leaves is (X, B, C): X is K where the transition depends on the duration of the segment, else 1.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.inside_TB = inside(problem.shape[1], problem.lengths_B).t()
        self.frame_TBC = masked(problem, problem.score_BTC).transpose(0, 1).contiguous()
        self.opens_TBC, self.closes_TBC = (
            None if value is None else masked(problem, value).transpose(0, 1).contiguous()
            for value in (problem.seg_start_BTC, problem.seg_end_BTC)
        )
        duration = problem.duration_KC if problem.duration_KC.dim() == 3 else problem.duration_KC[None]
        self.duration_KBC = wide(duration).transpose(0, 1)  # (K, 1, C) where all sequences share it
        start_top, end_top = far_top(problem.start_C), far_top(problem.end_C)
        self.start_C, self.end_C = wide(problem.start_C) - start_top, wide(problem.end_C) - end_top
        self.edges = start_top + end_top  # what every segmentation pays beside these
        self.transition = canonical(problem.transition)

    def first(self) -> Tensor:
        """gamma at boundary 0, (X, B, C)."""
        batch, _, _, labels = self.problem.shape
        return self.opened(self.start_C.expand(self.transition.shape[2], batch, labels), 0)

    def opened(self, gamma: Tensor, t: int) -> Tensor:
        """With the score of segments that start with frame t; after the last frame there is none."""
        last = self.opens_TBC is None or t == len(self.opens_TBC)
        return gamma if last else plus(gamma, self.opens_TBC[t])  # type: ignore[index]

    def closed(self, alpha_BC: Tensor, t: int) -> Tensor:
        """With the score of segments that end with frame t."""
        return alpha_BC if self.closes_TBC is None else plus(alpha_BC, self.closes_TBC[t])

    def lasting(self, t: int) -> Tensor:
        """The score of each duration of a segment that starts with frame t: (K, B or 1, C)."""
        segment_KBC = self.segment(t)
        return self.duration_KBC if segment_KBC is None else plus(self.duration_KBC, segment_KBC)

    def segment(self, t: int) -> Tensor | None:
        """Scores of the segments that start with frame t (K, B, C); 0 for one that outlasts its sequence."""
        given = self.problem.segment_BTKC
        if given is None:
            return None
        last_K1 = t + torch.arange(self.problem.shape[2], device=given.device)[:, None]
        fits_KB = last_K1 < self.problem.lengths_B
        segment_KBC = wide(given[:, t]).transpose(0, 1)
        return torch.where(fits_KB[..., None], segment_KBC, torch.zeros_like(segment_KBC))

    def crossing(self, t: int) -> Tensor:
        """The transition into segments that start with frame t: (B or 1, X, C, C)."""
        if self.problem.per_frame:
            row = min(t, len(self.inside_TB) - 1)
            here = wide(self.transition[:, row])
            within = (self.inside_TB[row] & (row > 0)).view(-1, 1, 1, 1)  # row 0 is not read
            return torch.where(within, here, torch.zeros_like(here))
        return wide(self.transition[:, 0])

    def arriving(self, t: int, reach: int) -> Tensor:
        """The score of each duration of a segment that ends at boundary t: (reach, B or 1, C)."""
        given = self.problem.segment_BTKC
        if given is None:
            return self.duration_KBC[:reach]
        shorter_K = torch.arange(reach, device=given.device)
        segment_KBC = wide(given[:, t - 1 - shorter_K, shorter_K]).transpose(0, 1)
        inside_B1 = (t <= self.problem.lengths_B)[:, None]
        return plus(
            self.duration_KBC[:reach], torch.where(inside_B1, segment_KBC, torch.zeros_like(segment_KBC))
        )


def canonical(transition: Tensor) -> Tensor:
    """(B or 1, T or 1, K or 1, C, C), a view."""
    if transition.dim() == 5:
        return transition
    if transition.dim() == 4:
        return transition[:, :, None]
    return transition[None, None] if transition.dim() == 3 else transition[None, None, None]


def unknown(terms: Terms) -> Tensor:
    """Sequences whose log Z is NaN, (B,) bool: NaN or +inf in a score of theirs or in a shared parameter.

    A recursion alone would lose it beside -inf, where nothing reaches it or nothing follows.
    """
    found = [value for value in (terms.frame_TBC, terms.opens_TBC, terms.closes_TBC) if value is not None]
    frames = range(len(terms.frame_TBC))
    found += [terms.duration_KBC, terms.start_C[None, None], terms.end_C[None, None]]
    found += [value for t in frames if (value := terms.segment(t)) is not None]
    crossings = [terms.crossing(t) for t in (frames if terms.problem.per_frame else (0,))]
    found += [value.flatten(1)[None] for value in crossings]
    highest = [real(value.detach()).amax((0, 2)) for value in found]
    highest_B = torch.stack([value.expand(len(terms.problem.lengths_B)) for value in highest]).amax(0)
    return ~(highest_B < float("inf"))
