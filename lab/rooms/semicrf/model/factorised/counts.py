"""The pass from the right, and with it every expected count."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.rooms.semicrf.model.dual import real, reciprocal
from lab.rooms.semicrf.model.factorised.messages import EVERY, State, rescale
from lab.rooms.semicrf.model.log_domain import assembled, crossed_shape
from lab.rooms.semicrf.model.problem import Posteriors

CHUNK = 64
"""Frames in a chunk of the transition counts."""


def held(value: Tensor) -> Tensor:
    """Below infinity; with a tangent a NaN shows later that it was not."""
    return value if value.is_complex() else value.clamp(max=1e300)


class Counts:
    """The pass from the right: beta[t] is the weight of all that follows boundary t, eta[s] of all from s on.

    At s the window's row k-1 holds beta[s+k] times its frames: with D it sums to eta[s], with gamma[s] it
    adds to the count of duration k. A count is left message * right message * 2^(exponents) / z; the
    exponents change every EVERY frames only, so the scaling is done for whole groups of frames.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        frame_TBC = state.weights.frame_TBC
        frames, batch, labels = frame_TBC.shape
        longest = state.problem.shape[2]
        self.longest, self.frame_TBC = longest, frame_TBC.clone()
        self.pending = frame_TBC.new_zeros(frames + longest, batch, labels)
        self.duration = frame_TBC.new_zeros(longest, batch, labels)
        # Rows of whole groups of vectors: torch sums a remainder in another order.
        self.products, self.begun = frame_TBC.new_zeros(2, longest, -(-batch * labels // 32) * 32)
        self.eta_KBC = self.products[:, : batch * labels].view(longest, batch, labels)
        self.begun_KBC = self.begun[:, : batch * labels].view(longest, batch, labels)  # by_duration
        self.eta_TBC = torch.zeros_like(frame_TBC)
        self.beta_TBC = frame_TBC.new_zeros(frames + 1, batch, labels)
        self.exponent_TB = real(frame_TBC).new_zeros(frames + 1, batch)  # of beta[t] and eta[t]
        self.ends_at = set(state.problem.lengths_B.tolist())
        self.starts_TBC = torch.zeros_like(frame_TBC)
        *more, _, _ = crossed_shape(state.problem)
        self.transition = frame_TBC.new_zeros(batch, *more, labels, labels)
        self.segment = None
        if state.problem.segment_BTKC is not None:
            self.segment = frame_TBC.new_zeros(batch, frames, longest, labels)
        rows = torch.arange(batch, device=frame_TBC.device)
        self.end_exponent_B = state.chain.exponent_TB[state.problem.lengths_B, rows]
        self.usable_B = (real(state.z_B) > 0) & torch.isfinite(state.z_B)
        self.inverse_B = torch.where(self.usable_B, reciprocal(state.z_B), torch.zeros_like(state.z_B))

    def scaled(self, left: Tensor, left_rows: slice, right_rows: slice) -> tuple[Tensor, Tensor]:
        """`left` (F, ..., B, C) times half the power, and (F, ..., B, 1): the other half over z.

        Neither half overflows where the count does not. Rows beyond a sequence's end have power zero.
        """
        power_FB = (
            self.state.chain.exponent_TB[left_rows] + self.exponent_TB[right_rows] - self.end_exponent_B
        )
        boundary_F1 = torch.arange(left_rows.start, left_rows.stop, device=power_FB.device)[:, None]
        power_FB = torch.where(
            self.state.problem.lengths_B >= boundary_F1, power_FB, torch.zeros_like(power_FB)
        )
        half_FB = torch.floor(power_FB / 2)
        one_FB = torch.ones_like(power_FB)
        halves = (torch.ldexp(one_FB, half_FB), torch.ldexp(one_FB, power_FB - half_FB) * self.inverse_B)
        shape = (len(power_FB), *(1,) * (left.dim() - 3), power_FB.shape[1], 1)
        return left * halves[0].view(shape), halves[1].view(shape)

    def group(self, last: int) -> None:
        """Rescale before frame `last`, and scale the left messages of the frames down to the next group."""
        chain = self.state.chain
        first = last - last % EVERY
        self.exponent_TB[first : last + 1] = self.exponent_TB[last + 1] + rescale(
            self.beta_TBC[last + 1, None], self.frame_TBC[last]
        )
        rows = slice(first, last + 1)
        gamma, rest = self.scaled(chain.gamma_TXBC[rows], rows, rows)
        # A factor beyond float64 meets a zero, or what is lost and flagged: held below infinity for the
        # product.
        self.gamma, self.first = held(gamma * rest), first
        if self.state.problem.by_duration or self.state.problem.per_frame:
            alpha, rest = self.scaled(chain.alpha_TBC[rows], rows, rows)
            self.alpha = held(alpha * rest)

    def step(self, s: int) -> None:
        """From boundary s+1 to boundary s."""
        problem, weights = self.state.problem, self.state.weights
        if s + 1 in self.ends_at:
            here_B1 = (problem.lengths_B == s + 1)[:, None]
            self.beta_TBC[s + 1] = torch.where(here_B1, weights.end_C, self.beta_TBC[s + 1])
        if s % EVERY == EVERY - 1 or s == len(self.eta_TBC) - 1:
            self.group(s)
        self.pending[s + 1] = weights.closed(self.beta_TBC[s + 1], s)
        window = self.pending[s + 1 : s + 1 + self.longest]
        window.mul_(self.frame_TBC[s])
        gamma, own_KBC = self.gamma[s - self.first], weights.lasting(s)
        weighted = window if own_KBC is None else window * own_KBC
        self.duration.addcmul_(weighted, gamma)
        eta_KBC = torch.mul(weighted, weights.duration_KBC, out=self.eta_KBC)
        if self.segment is not None:
            self.segment[:, s] = (eta_KBC * gamma).transpose(0, 1)
        if problem.by_duration:
            torch.mul(eta_KBC, gamma, out=self.begun_KBC)
            self.starts_TBC[s] = self.begun.sum(0)[: eta_KBC[0].numel()].view_as(self.starts_TBC[s])
            eta_XBC = weights.opened(eta_KBC, s)
            self.transition += torch.einsum("bi,kbj->bkij", self.alpha[s - self.first], eta_XBC)
        else:
            _, batch, labels = eta_KBC.shape
            eta_XBC = self.products.sum(0)[: batch * labels].view(1, batch, labels)
            self.eta_TBC[s] = eta_XBC[0]
            eta_XBC = weights.opened(eta_XBC, s)
        rows, crossing = eta_XBC.transpose(0, 1), weights.crossing(s)
        torch.bmm(
            rows.reshape(len(rows), 1, -1), weights.side(crossing, True), out=self.beta_TBC[s].unsqueeze(1)
        )
        if problem.per_frame and s:
            self.transition[:, s] = self.alpha[s - self.first][:, :, None] * rows * crossing[:, 0]

    def posteriors(self) -> Posteriors:
        problem, chain, weights = self.state.problem, self.state.chain, self.state.weights
        frames = len(self.eta_TBC)
        starting, ending = slice(0, frames), slice(1, frames + 1)
        if not problem.by_duration:
            gamma_TBC, rest = self.scaled(chain.gamma_TXBC[:-1, 0], starting, starting)
            eta_TBC = self.eta_TBC * rest
            self.starts_TBC = gamma_TBC * eta_TBC
        if weights.transition is not None:
            if not problem.by_duration:
                alpha_TBC, _ = self.scaled(chain.alpha_TBC[:-1], starting, starting)
                opens_TBC = weights.opens_TBC
                self.cross(alpha_TBC, eta_TBC if opens_TBC is None else eta_TBC * opens_TBC)
            self.transition *= weights.transition if problem.by_duration else weights.transition[:, 0]
        alpha_TBC, rest = self.scaled(chain.alpha_TBC[1:], ending, ending)
        ends_TBC = alpha_TBC * (self.beta_TBC[1:] * rest)
        own = [self.transition] if self.segment is None else [self.transition, self.segment]
        counts = (self.starts_TBC, ends_TBC, self.duration * weights.duration_KBC, *own)
        # Of the sequences that are not usable nothing was divided by z: messages may be anything.
        return assembled(problem, self.state.log_z_B, self.usable_B, weights.frame_TBC == 0, counts)

    def cross(self, alpha_TBC: Tensor, eta_TBC: Tensor) -> None:
        """Sum of alpha[s] eta[s] over s, in chunks of one fixed size: padding then cannot move a bit.

        alpha[0] is zero: nothing precedes the first segment.
        """
        for first in range(0, len(eta_TBC), CHUNK):
            pair = [alpha_TBC[first : first + CHUNK], eta_TBC[first : first + CHUNK]]
            left, right = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, CHUNK - len(x))) for x in pair)
            self.transition += torch.bmm(
                left.permute(1, 2, 0).contiguous(), right.transpose(0, 1).contiguous()
            )
