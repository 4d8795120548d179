"""The factorised recursion in the log domain, float64: slower, and right where the linear one underflows.

Real -inf, no epsilon, no clamp. Messages and pending segments that can still reach the end are shifted by
their maximum each frame; the shift moves into the frame's scores and into an offset. The counts are
not products of two passes but follow the derivative of the recursion itself, from the right: the mass that
ends at (t, c) is split over the durations, and the mass that starts at (s, c) over the labels before it, by
shares that sum to 1. So they stay in [0, 1] and never are NaN, however large the scores are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import Posteriors, Problem, frames_masked, unknown


@dataclass
class LogState:
    """Log messages of the left pass, time first, and the frames' scores with all shifts applied."""

    log_z_B: Tensor
    alpha: list[Tensor]
    gamma: list[Tensor]
    frame_TBC: Tensor


class Sum:
    """A compensated sum (Neumaier): 1e30 + 3 - 1e30 is 3."""

    def __init__(self, zero_B: Tensor) -> None:
        self._sum, self._rest = zero_B, torch.zeros_like(zero_B)

    def add(self, value_B: Tensor) -> None:
        total_B = self._sum + value_B
        larger = self._sum.abs() >= value_B.abs()
        lost_B = torch.where(larger, (self._sum - total_B) + value_B, (value_B - total_B) + self._sum)
        self._sum, self._rest = total_B, self._rest + lost_B

    def total(self) -> Tensor:
        return self._sum + self._rest


def logsumexp(value: Tensor, dim: int) -> Tensor:
    """-inf where all entries are; no gradient."""
    top = value.amax(dim, keepdim=True)
    top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    return (value - top).exp().sum(dim).log() + top.squeeze(dim)


def shares(value: Tensor, dim: int) -> Tensor:
    """softmax along `dim`; all zero, not NaN, where all entries are -inf."""
    top = value.amax(dim, keepdim=True)
    part = (value - torch.where(torch.isneginf(top), torch.zeros_like(top), top)).exp()
    total = part.sum(dim, keepdim=True)
    return part / torch.where(total == 0, torch.ones_like(total), total)


def finite_or_zero(value: Tensor) -> Tensor:
    return torch.where(torch.isfinite(value), value, torch.zeros_like(value))


def forward(problem: Problem) -> LogState:
    """log Z (B,) and the messages; NaN as `unknown` says."""
    batch, frames, longest, labels = problem.shape
    score_TBC = frames_masked(problem).transpose(0, 1)
    frame_TBC = score_TBC.clone()
    transition, duration_K1C = problem.transition.double(), problem.duration_KC.double()[:, None]
    start_C = problem.start_C.double()
    first = start_C.expand(longest, batch, labels) if problem.by_duration else start_C.expand(batch, labels)
    pending = frame_TBC.new_full((frames + longest, batch, labels), -float("inf"))
    alpha, gamma = [torch.full_like(frame_TBC[0], -float("inf"))], [first]
    offset, log_z_B = Sum(frame_TBC.new_zeros(batch)), frame_TBC.new_full((batch,), -float("inf"))
    ends_TBC, runs_TBC = useful_ends(problem)
    steps_K11 = torch.arange(1, longest + 1, device=runs_TBC.device)[:, None, None]
    for t in range(frames):
        window = pending[t : t + longest]
        reach = min(longest, frames - t)
        entering = torch.logaddexp(window, gamma[t] + duration_K1C)
        # What cannot reach the end must not set the scale: beside 1e30, all that can would be lost.
        useful_KBC = ends_TBC[t + 1 : t + 1 + reach] & (steps_K11[:reach] <= runs_TBC[t])
        entering[:reach].masked_fill_(~useful_KBC, -float("inf"))
        entering[reach:] = -float("inf")
        shift_B = finite_or_zero((entering + frame_TBC[t]).amax((0, 2)))
        frame_TBC[t] -= shift_B[:, None]
        offset.add(shift_B)
        window.copy_(entering + frame_TBC[t])
        alpha.append(window[0].clone())
        gamma.append(onward(alpha[-1], transition))
        ended = logsumexp(alpha[-1] + problem.end_C.double(), -1) + offset.total()
        log_z_B = torch.where(problem.lengths_B == t + 1, ended, log_z_B)
    log_z_B = log_z_B.masked_fill(unknown(problem), float("nan"))
    return LogState(log_z_B, alpha, gamma, frame_TBC)


def useful_ends(problem: Problem) -> tuple[Tensor, Tensor]:
    """Where a segment of a label may end so that the sequence can be finished, (T+1, B, C) bool; and how many
    frames from each on the label fits, (T, B, C).

    NaN counts as possible: it has to reach log Z.
    """
    _, frames, longest, labels = problem.shape
    fits_TBC = ~torch.isneginf(frames_masked(problem)).transpose(0, 1)
    lasts_K1C = ~torch.isneginf(problem.duration_KC)[:, None]
    follows = ~torch.isneginf(problem.transition).expand(longest, labels, labels)
    closes_C = ~torch.isneginf(problem.end_C)
    useful = fits_TBC.new_zeros(frames + longest + 1, *fits_TBC.shape[1:])
    runs_TBC = torch.zeros_like(fits_TBC, dtype=torch.int64)
    run_BC = torch.zeros_like(runs_TBC[0])
    steps_K11 = torch.arange(1, longest + 1, device=run_BC.device)[:, None, None]
    for t in range(frames, -1, -1):
        if t < frames:
            runs_TBC[t] = run_BC = torch.where(fits_TBC[t], run_BC + 1, torch.zeros_like(run_BC))
            starts_KBC = useful[t + 1 : t + 1 + longest] & lasts_K1C & (steps_K11 <= run_BC)
            useful[t] = torch.einsum("kbd,kcd->bc", starts_KBC.double(), follows.double()) > 0
        useful[t] |= (problem.lengths_B == t)[:, None] & closes_C
        useful[t] &= (problem.lengths_B >= t)[:, None]
    return useful[: frames + 1], runs_TBC


def onward(alpha_BC: Tensor, transition: Tensor) -> Tensor:
    if transition.dim() == 2:
        return logsumexp(alpha_BC[:, :, None] + transition, 1)
    return logsumexp(alpha_BC[:, :, None] + transition[:, None], 2)


def posteriors(problem: Problem) -> Posteriors:
    """All expected counts. An infeasible or NaN sequence has counts of zero."""
    state = forward(problem)
    batch, frames, longest, labels = problem.shape
    transition, duration_KC = problem.transition.double(), problem.duration_KC.double()
    usable_B = torch.isfinite(state.log_z_B)
    starts_TBC, ends_TBC = torch.zeros_like(state.frame_TBC), torch.zeros_like(state.frame_TBC)
    duration = ends_TBC.new_zeros(longest, batch, labels)
    crossed = ends_TBC.new_zeros(batch, *transition.shape)
    for t in range(frames, 0, -1):
        final_BC = shares(state.alpha[t] + problem.end_C.double(), -1)
        begun = (problem.lengths_B == t) & usable_B
        ends_TBC[t - 1] += torch.where(begun[:, None], final_BC, torch.zeros_like(final_BC))
        if not problem.by_duration and t < frames:
            into = shares(state.alpha[t][:, :, None] + transition, 1) * starts_TBC[t][:, None]
            ends_TBC[t - 1] += into.sum(-1)
            crossed += into
        reach = min(longest, t)
        split_KBC = shares(_window(state, t, reach) + duration_KC[:reach, None], 0) * ends_TBC[t - 1]
        duration[:reach] += split_KBC
        starts_TBC[t - reach : t] += split_KBC.flip(0)
        if problem.by_duration:
            _cross(state, transition, t, split_KBC, ends_TBC, crossed)
    label_TBC = (starts_TBC - torch.cat([torch.zeros_like(ends_TBC[:1]), ends_TBC[:-1]])).cumsum(0)
    inside = (torch.arange(frames, device=label_TBC.device)[:, None] < problem.lengths_B)[..., None]
    label_TBC = torch.where(inside, label_TBC, torch.zeros_like(label_TBC))
    label_BTC, starts_BTC, ends_BTC, duration_BKC, crossed = (
        torch.where(usable_B.view(-1, *(1,) * (x.dim() - 1)), x, torch.zeros_like(x))  # shares of NaN are NaN
        for x in (*(x.transpose(0, 1) for x in (label_TBC, starts_TBC, ends_TBC, duration)), crossed)
    )
    checked = mass(label_BTC, problem.lengths_B, state.log_z_B)
    return Posteriors(state.log_z_B, label_BTC, starts_BTC, ends_BTC, duration_BKC, crossed, *checked)


def _window(state: LogState, t: int, reach: int) -> Tensor:
    """Row k-1: what came in at boundary t-k, plus its frames up to t; (reach, B, C)."""
    content = state.frame_TBC[t - reach : t].flip(0).cumsum(0)
    if state.gamma[0].dim() == 2:
        return torch.stack(state.gamma[t - reach : t]).flip(0) + content
    return torch.stack([state.gamma[t - k][k - 1] for k in range(1, reach + 1)]) + content


def _cross(
    state: LogState, transition: Tensor, t: int, split_KBC: Tensor, ends_TBC: Tensor, crossed: Tensor
) -> None:
    """With transitions by duration, each duration's mass has its own shares of the labels before."""
    for k in range(1, len(split_KBC) + 1):
        if k == t:
            continue  # the first segment pays no transition
        into = shares(state.alpha[t - k][:, :, None] + transition[k - 1], 1) * split_KBC[k - 1][:, None]
        ends_TBC[t - k - 1] += into.sum(-1)
        crossed[:, k - 1] += into
