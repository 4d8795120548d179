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
    opens_TBC: Tensor | None
    closes_TBC: Tensor | None
    duration_KBC: Tensor
    transition: Tensor | None
    shift_TB: Tensor | None
    start_C: Tensor
    end_C: Tensor
    log_shift_B: Tensor
    most_shift_B: Tensor
    gain_B: Tensor

    def first(self) -> Tensor:
        """gamma at boundary 0, (X, B, C) as in `Terms`."""
        ways = self.terms.transition.shape[2]
        return self.opened(self.start_C.expand(ways, *self.frame_TBC.shape[1:]).contiguous(), 0)

    def onward(self, alpha_BC: Tensor, t: int) -> Tensor:
        """gamma from alpha at boundary t, (X, B, C): a product per sequence, for one of all rows would add up
        in an order of the batch's.
        """
        sent = torch.bmm(alpha_BC.unsqueeze(1), self.side(self.crossing(t), False))
        return self.opened(sent.view(len(alpha_BC), -1, alpha_BC.shape[1]).transpose(0, 1).contiguous(), t)

    def crossing(self, t: int) -> Tensor:
        """The transition into segments that start with frame t: (B or 1, X, C, C)."""
        if self.transition is not None:
            return self.transition
        assert self.shift_TB is not None
        row = min(t, len(self.shift_TB) - 1)
        shift = self.shift_TB[row, :, None, None, None]
        return exp(padded(self.terms.crossing(row) - shift, self.more, rows=True))

    def side(self, crossing: Tensor, back: bool) -> Tensor:
        """A crossing for messages from the left, (B, C, X C), or from the right, (B, X C, C)."""
        return self.sides[back] if crossing is self.transition else side_of(crossing, back)

    @cached_property
    def sides(self) -> list[Tensor]:
        assert self.transition is not None
        batch = self.frame_TBC.shape[1]
        return [side_of(self.transition, back).expand(batch, -1, -1) for back in (False, True)]

    def opened(self, message: Tensor, t: int) -> Tensor:
        """With the weight of segments that start with frame t."""
        if self.opens_TBC is not None and t < len(self.opens_TBC):
            message = message * self.opens_TBC[t]
        if self.shift_TB is not None and 0 < t < len(self.shift_TB):
            message = message * self.paid_TB1[t]
        return message

    @cached_property
    def paid_TB1(self) -> Tensor:
        assert self.shift_TB is not None
        return self.shift_TB.exp()[..., None]

    def closed(self, message_BC: Tensor, t: int) -> Tensor:
        """With the weight of segments that end with frame t."""
        return message_BC if self.closes_TBC is None else message_BC * self.closes_TBC[t]

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
        rows = (terms.crossing(t) for t in range(problem.shape[1]))
        shift_TB = torch.stack([finite_or_zero(real(row).amax((1, 2, 3))) for row in rows])  # paid by starts
        shift = torch.zeros_like(end_shift)
    else:
        shift = finite_or_zero(real(terms.transition).max())
        transition = exp(padded(terms.crossing(0) - shift, more, rows=True))
    opens_TBC, closes_TBC = (
        None if value is None else exp(padded(value, more, value=0))
        for value in (terms.opens_TBC, terms.closes_TBC)
    )
    row = (problem.lengths_B - 1)[None]
    return Weights(
        terms,
        exp(padded(terms.frame_TBC - top_TB[..., None], more)) * terms.inside_TB.double()[..., None],
        opens_TBC,
        closes_TBC,
        exp(padded(terms.duration_KBC + shift, more)),  # all but the first pay a transition
        transition,
        shift_TB,
        exp(padded(terms.start_C - shift, more)),
        exp(padded(terms.end_C - end_shift, more)),
        top_TB.cumsum(0).gather(0, row)[0] + end_shift + terms.edges,
        top_TB.abs().amax(0),
        gain(terms, shift, shift_TB),
    )


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


def side_of(crossing: Tensor, back: bool) -> Tensor:
    return crossing.transpose(2, 3).flatten(1, 2) if back else crossing.transpose(1, 2).flatten(2)


def padded(score: Tensor, more: int, rows: bool = False, value: float = -torch.inf) -> Tensor:
    """`more` labels, forbidden unless `value` says else, in the last or (`rows`) the last two dimensions."""
    return torch.nn.functional.pad(score, (0, more, 0, more) if rows else (0, more), value=value)
