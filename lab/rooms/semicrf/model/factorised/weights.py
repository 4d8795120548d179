"""The model in the linear domain: exponentials of the scores, shifted so that the largest is 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lab.rooms.semicrf.model.dual import exp, real
from lab.rooms.semicrf.model.log_domain import finite_or_zero
from lab.rooms.semicrf.model.problem import Problem
from lab.rooms.semicrf.model.terms import Terms

LINE = 8
"""Numbers in a cache line."""


@dataclass(frozen=True)
class Weights:
    """The model in the linear domain, time first, with the labels padded to whole lines.

    `duration_KBC` is (K, 1, C) where all sequences share it. `gain_B` bounds the log of what a segment's
    weight but its frames' can multiply a message by; `log_shift_B` is what log Z lacks.
    """

    terms: Terms
    frame_TBC: Tensor
    duration_KBC: Tensor
    transition: Tensor | None
    shift_TB: Tensor | None
    start_C: Tensor
    end_C: Tensor
    log_shift_B: Tensor
    most_shift_B: Tensor
    gain_B: Tensor

    @property
    def by_duration(self) -> bool:
        return self.terms.problem.by_duration

    def first(self) -> Tensor:
        """gamma at boundary 0: (B, C), or (K, B, C) where the transition depends on the duration."""
        shape = (len(self.duration_KBC), *self.frame_TBC.shape[1:])
        return self.opened(self.start_C.expand(shape if self.by_duration else shape[1:]).contiguous(), 0)

    def onward(self, alpha_BC: Tensor, t: int) -> Tensor:
        """gamma from alpha at boundary t: (B, C), or (K, B, C) with transitions by duration."""
        transition = self.crossing(t)
        if not self.by_duration:
            left = torch.bmm(alpha_BC[:, None], transition.expand(len(alpha_BC), -1, -1))[:, 0]
        elif len(transition) == 1:
            left = one_by_one(alpha_BC, self.matrices[0]).unflatten(1, transition.shape[1::2])
            left = left.transpose(0, 1).contiguous()
        else:
            left = torch.einsum("bi,bkij->kbj", alpha_BC, transition)
        return self.opened(left, t)

    def crossing(self, t: int) -> Tensor:
        """The transition into segments that start with frame t: (B or 1, C, C), or with K after the first."""
        if self.transition is not None:
            return self.transition
        assert self.shift_TB is not None
        row = min(t, len(self.shift_TB) - 1)
        return exp(padded(self.terms.crossing(row) - self.shift_TB[row, :, None, None], self.more, rows=True))

    @cached_property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """Of one transition by duration, for messages from the left (C, K C) and from the right (K C, C)."""
        assert self.transition is not None
        transition_KCC = self.transition[0]
        return transition_KCC.transpose(0, 1).flatten(1), transition_KCC.transpose(1, 2).flatten(0, 1)

    def opened(self, message: Tensor, t: int) -> Tensor:
        """With the weight of segments that start with frame t."""
        if self.terms.opens_TBC is not None and t < len(self.frame_TBC):
            message = message * exp(padded(self.terms.opens_TBC[t], self.more, value=0))
        if self.shift_TB is not None and 0 < t < len(self.frame_TBC):
            message = message * self.shift_TB[t].exp()[:, None]
        return message

    def closed(self, message_BC: Tensor, t: int) -> Tensor:
        """With the weight of segments that end with frame t."""
        if self.terms.closes_TBC is None:
            return message_BC
        return message_BC * exp(padded(self.terms.closes_TBC[t], self.more, value=0))

    def lasting(self, t: int) -> Tensor | None:
        """The weights of the segments that start with frame t beside their duration's: (K, B, C), or None."""
        segment_KBC = self.terms.segment(t)
        return None if segment_KBC is None else exp(padded(segment_KBC, self.more, value=0))

    @property
    def more(self) -> int:
        return self.frame_TBC.shape[2] - self.terms.frame_TBC.shape[2]


def weigh(problem: Problem) -> Weights:
    """Exponentials of the scores, each shifted so that its largest is 1; the shifts are kept for log Z.

    Labels are padded to whole cache lines by forbidden ones: libraries sum rows of other sizes in an order
    that depends on where they lie, and the batch would move the last bit of its members. For the same reason
    scores are made contiguous: on strided data exp takes another path.
    """
    terms = Terms(problem)
    more = -problem.shape[3] % LINE
    top_TB = finite_or_zero(real(terms.frame_TBC).amax(-1))
    end_shift = finite_or_zero(real(terms.end_C).max())
    shift_TB, transition = None, None
    if problem.per_frame:
        shift_TB, shift = row_shifts(terms), torch.zeros_like(end_shift)
    else:
        shift = finite_or_zero(real(terms.transition).max())
        transition = exp(padded(terms.crossing(0) - shift, more, rows=True))
    row = (problem.lengths_B - 1)[None]
    return Weights(
        terms,
        exp(padded(terms.frame_TBC - top_TB[..., None], more)) * frames_inside(problem),
        exp(padded(terms.duration_KBC + shift, more)),  # all but the first pay a transition
        transition,
        shift_TB,
        exp(padded(terms.start_C - shift, more)),
        exp(padded(terms.end_C - end_shift, more)),
        top_TB.cumsum(0).gather(0, row)[0] + end_shift,
        top_TB.abs().amax(0),
        gain(terms, shift, shift_TB),
    )


def row_shifts(terms: Terms) -> Tensor:
    """The largest transition at each frame, (T, B): taken from the transitions, paid by the starts."""
    largest = [finite_or_zero(real(terms.crossing(t)).amax((1, 2))) for t in range(len(terms.frame_TBC))]
    return torch.stack(largest)


def gain(terms: Terms, shift: Tensor, shift_TB: Tensor | None) -> Tensor:
    """The log of the largest product of a duration, a start, an end and a segment's own weight, (B,)."""
    total_B = real(terms.duration_KBC).amax((0, 2)) + shift + torch.zeros_like(real(terms.frame_TBC[0, :, 0]))
    for value_TBC in (terms.opens_TBC, terms.closes_TBC):
        if value_TBC is not None:
            total_B = total_B + torch.relu(real(value_TBC).amax((0, 2)))
    if shift_TB is not None:
        total_B = total_B + torch.relu(shift_TB[1:].amax(0)) if len(shift_TB) > 1 else total_B
    if terms.problem.segment_BTKC is not None:
        most = [real(terms.segment(t)).amax((0, 2)) for t in range(len(terms.frame_TBC))]  # type: ignore[arg-type]
        total_B = total_B + torch.relu(torch.stack(most).amax(0))
    return total_B


def one_by_one(row_BN: Tensor, matrix_NM: Tensor) -> Tensor:
    """(B, M): each row times the matrix. One product of all rows would add up in an order of the batch's."""
    return torch.bmm(row_BN[:, None], matrix_NM.expand(len(row_BN), -1, -1))[:, 0]


def padded(score: Tensor, more: int, rows: bool = False, value: float = -torch.inf) -> Tensor:
    """`more` labels, forbidden unless `value` says else, in the last or (`rows`) the last two dimensions."""
    return torch.nn.functional.pad(score, (0, more, 0, more) if rows else (0, more), value=value)


def frames_inside(problem: Problem) -> Tensor:
    """1 for a sequence's frames, 0 for its padding, (T, B, 1): all messages after the end are zero."""
    frame_T1 = torch.arange(problem.shape[1], device=problem.lengths_B.device)[:, None]
    return (frame_T1 < problem.lengths_B).double()[..., None]
