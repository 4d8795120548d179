"""The semi-CRF in plain torch (1.12 or newer, CPU or GPU), float64: O(T (C^2 + K C)) instead of O(T K C^2).

Transitions do not depend on the duration, so they are applied once per boundary:
    gamma[s, c] = sum_c' alpha[s, c'] E[c', c]                           (start[c] at s = 0)
    alpha[t, c] = sum_k gamma[t-k, c] D[k, c] prod_{t-k<u<=t} w_u[c]
with E, D, w the exponentials of transition, duration and score (shifted per frame by its maximum over labels,
which every segmentation pays alike). A window of K pending rows carries the product, so no sum ever spans more
than one segment. Values are linear; every `EVERY` frames a power of two moves from them into an integer
exponent. `audit` bounds what underflow can have lost; sequences over the bound are done again by
`log_domain.py`. The counts follow from a second pass of the same cost from the right.
With transitions that depend on the duration, gamma is a row for each k: O(T K C^2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import mass, mass_by_durations
from lab.rooms.semicrf.model.log_domain import finite_or_zero
from lab.rooms.semicrf.model.problem import Posteriors, Problem, frames_masked

EVERY = 8
"""Frames between two rescalings: float64 spans 2^2046, a frame seldom moves a message by more than 2^60."""
TINY_LOG2 = -1022.0
"""Below this power of two float64 loses digits; `audit` counts everything there as lost."""
MARGIN_LOG2 = 80.0
"""A message must exceed what may be lost by 2^80: the loss is summed over up to K C terms and must stay
below 1e-16 of it."""
CHUNK = 64
"""Frames in a chunk of the transition counts."""
LINE = 8
"""Numbers in a cache line."""
ROUNDING = 1e-9
"""What sums of probabilities in float64 may be off by."""
ROUNDING_LOG_Z = 1e-12
"""And log Z, relative to its size."""


@dataclass(frozen=True)
class Weights:
    """The model in the linear domain, time first. `transition` (C, C) or (K, C, C); `duration_K1C` (K, 1, C)."""

    frame_TBC: Tensor
    transition: Tensor
    duration_K1C: Tensor
    start_C: Tensor
    end_C: Tensor
    log_shift_B: Tensor

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


@dataclass
class Chain:
    """The messages of the pass from the left: row t of `alpha_TBC` and `gamma` in units of 2^exponent_TB[t]."""

    alpha_TBC: Tensor
    gamma: Tensor
    exponent_TB: Tensor
    frame_TBC: Tensor


@dataclass
class State:
    """What the pass from the left leaves for the counts."""

    problem: Problem
    weights: Weights
    chain: Chain
    z_B: Tensor
    log_z_B: Tensor
    flagged_B: Tensor


def weigh(problem: Problem) -> Weights:
    """Exponentials of the scores, each shifted so that its largest is 1; the shifts are kept for log Z.

    Labels are padded to whole cache lines by forbidden ones: libraries sum rows of other sizes in an order that
    depends on where they lie, and the batch would move the last bit of its members. For the same reason scores
    are made contiguous: on strided data exp takes another path.
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
    )


def padded(value: Tensor, more: int, rows: bool = False) -> Tensor:
    """`more` labels that are forbidden, in the last dimension, with `rows` in the last two."""
    return torch.nn.functional.pad(value, (0, more, 0, more) if rows else (0, more), value=-float("inf"))


def frames_inside(problem: Problem) -> Tensor:
    """1 for the frames of each sequence, 0 for its padding, (T, B, 1): all messages after the end are zero."""
    frame_T1 = torch.arange(problem.shape[1], device=problem.lengths_B.device)[:, None]
    return (frame_T1 < problem.lengths_B).double()[..., None]


def forward(problem: Problem, keep: bool = True) -> State:
    """log Z and the left messages of every sequence; flagged ones get log Z from the log domain.

    `keep` is for the other backends' sake: here the messages come with log Z.
    """
    weights = weigh(problem)
    chain = walk(weights, problem.shape[2])
    rows = torch.arange(problem.shape[0], device=problem.lengths_B.device)
    z_B = (chain.alpha_TBC[problem.lengths_B, rows] * weights.end_C).sum(-1)
    log_z_B = (
        z_B.log() + chain.exponent_TB[problem.lengths_B, rows] * 0.6931471805599453 + weights.log_shift_B
    )
    flagged_B = audit(problem, chain, z_B)
    if bool(flagged_B.any()):
        again = flagged_B.nonzero()[:, 0]
        log_z_B[again] = log_domain.forward(problem.rows(again)).log_z_B
    return State(problem, weights, chain, z_B, log_z_B, flagged_B)


def walk(weights: Weights, longest: int, saturate: bool = False) -> Chain:
    """The pass from the left. `saturate` caps messages at 1: with weights 0 and 1 it says what can be reached."""
    frame_TBC = weights.frame_TBC.clone()
    frames, batch, labels = frame_TBC.shape
    pending = frame_TBC.new_zeros(frames + longest, batch, labels)
    alpha_TBC = frame_TBC.new_zeros(frames + 1, batch, labels)
    exponent_TB = frame_TBC.new_zeros(frames + 1, batch)
    gamma = [weights.first(batch)]
    for t in range(frames):
        if t and t % EVERY == 0 and not saturate:
            exponent_TB[t + 1 : t + 1 + EVERY] = exponent_TB[t] + rescale(gamma[t], frame_TBC[t])
        window = pending[t : t + longest]  # row j ends with frame t + j
        window.addcmul_(gamma[t], weights.duration_K1C)
        window.mul_(frame_TBC[t])
        alpha_TBC[t + 1] = window[0].clamp(max=1) if saturate else window[0]
        gamma.append(weights.onward(alpha_TBC[t + 1]))
    return Chain(alpha_TBC, torch.stack(gamma), exponent_TB, frame_TBC)


def rescale(message: Tensor, frame_BC: Tensor) -> Tensor:
    """Move the power of two of each sequence's largest message into the coming frame's weights; returns it."""
    top_B = message.amax(-1) if message.dim() == 2 else message.amax((0, 2))
    _, power_B = torch.frexp(top_B)
    usable = torch.isfinite(top_B) & (top_B > 0)
    power_B = torch.where(usable, power_B, torch.zeros_like(power_B))
    frame_BC.mul_(torch.ldexp(torch.ones_like(top_B), -power_B)[:, None])
    return power_B.to(top_B.dtype)


def audit(problem: Problem, chain: Chain, z_B: Tensor) -> Tensor:
    """Which sequences may have lost mass to underflow, (B,) bool.

    Every weight but the duration's is at most 1, so what a pending row loses at frame u (at most TINY then)
    is worth at frame t at most TINY times the frames between: `lost`, a running maximum. Every message that can
    be reached at all must exceed that by the margin; a message that is not finite is flagged too.
    """
    frame_TBC, gamma = chain.frame_TBC, chain.gamma
    power_TBC = frame_TBC.log2().clamp(min=-2000.0).cumsum(0)
    power_TBC = torch.cat([torch.zeros_like(power_TBC[:1]), power_TBC])
    lost_TB = (power_TBC + (-power_TBC).cummax(0).values).amax(-1) + TINY_LOG2 + MARGIN_LOG2
    duration_log2 = problem.duration_KC.double().max() + finite_or_zero(problem.transition.double().max())
    lost_TB = lost_TB + duration_log2.clamp(min=0) / 0.6931471805599453
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
    """Which messages are not forbidden by some -inf: (T+1, ..., B, C) or one True for all, and z's (B,)."""
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
    weights = Weights(frame_TBC, transition, duration_KC[:, None], start_C, end_C, end_C[:1])
    chain = walk(weights, problem.shape[2], saturate=True)
    return chain.gamma > 0, (chain.alpha_TBC[problem.lengths_B, rows] * end_C).sum(-1) > 0


def backward(state: State) -> Posteriors:
    """The pass from the right, and with it every expected count; flagged sequences from the log domain."""
    problem = state.problem
    counts = Counts(state)
    frames = problem.shape[1]
    for s in range(frames - 1, -1, -1):
        counts.step(s)
    found = counts.posteriors()
    return mended(found, problem, state.flagged_B | unsound(found, problem.lengths_B))


def mended(found: Posteriors, problem: Problem, redo_B: Tensor) -> Posteriors:
    """`found`, in place, with the counts of some sequences from the log domain."""
    if bool(redo_B.any()):
        again = redo_B.nonzero()[:, 0]
        anew = log_domain.posteriors(problem.rows(again))
        found.put(again, anew)
        elsewhere_B = beyond(found.log_z_B[again], anew.log_z_B)
        found.mass_error_B[again] = torch.maximum(anew.mass_error_B, elsewhere_B)
    return found


def beyond(log_z_B: Tensor, mended_B: Tensor) -> Tensor:
    """The mass error of mended counts in terms of the log Z that was given out: |Z' / Z - 1| beyond rounding.

    Underflow on the way back leaves log Z as it is. Where the two part, the pass from the left was wrong, which
    shares of the log domain, summing to 1 whatever Z is, could not show.
    """
    apart_B = torch.where(log_z_B == mended_B, torch.zeros_like(log_z_B), (log_z_B - mended_B).abs())
    return torch.expm1(torch.relu(apart_B - ROUNDING_LOG_Z * mended_B.abs() - 1e-11))


def unsound(found: Posteriors, lengths_B: Tensor) -> Tensor:
    """Sequences whose pass from the right overflowed or lost mass, (B,) bool.

    What that pass loses is missing from the mass of a frame, from the mass that starts at the first, from the frames
    that segments cover, or from the balance of a label: as many of its segments have a duration as start and as end,
    and no frame belongs to it with more than certainty.
    """
    feasible_B = torch.isfinite(found.log_z_B)
    counts = (found.label_BTC, found.ends_BTC, found.duration_BKC, found.transition)
    finite_B = torch.stack([torch.isfinite(count).flatten(1).all(1) for count in counts]).all(0)
    lasting_BC, begun_BC, ended_BC = (
        count.sum(1) for count in (found.duration_BKC, found.starts_BTC, found.ends_BTC)
    )
    uneven_BC = torch.maximum((lasting_BC - begun_BC).abs(), (begun_BC - ended_BC).abs())
    beyond_B = torch.maximum(found.label_BTC - 1, -found.label_BTC).flatten(1).amax(1)
    uneven_BC = uneven_BC / begun_BC.clamp(min=1)
    started_B = (found.start_BC().sum(-1) - 1).abs()
    covered_B = mass_by_durations(found.duration_BKC, lengths_B, found.log_z_B)
    worst_B = torch.stack([found.mass_error_B, covered_B, started_B, uneven_BC.amax(1), beyond_B]).amax(0)
    return (feasible_B & (worst_B > ROUNDING)) | ~finite_B


class Counts:
    """The pass from the right: beta[t] is the weight of all that follows boundary t, eta[s] of all from s on.

    At s the window's row k-1 holds beta[s+k] times its frames: with D it sums to eta[s], with gamma[s] it adds
    to the count of duration k. A count is left message * right message * 2^(exponents) / z; the exponents change
    every EVERY frames only, so the scaling is done for whole groups of frames.
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
        self.products = frame_TBC.new_zeros(longest, -(-batch * labels // 32) * 32)
        self.eta_KBC = self.products[:, : batch * labels].view(longest, batch, labels)
        self.eta_TBC = torch.zeros_like(frame_TBC)
        self.beta_TBC = frame_TBC.new_zeros(frames + 1, batch, labels)
        self.exponent_TB = frame_TBC.new_zeros(frames + 1, batch)  # of beta[t] and eta[t]
        self.ends_at = set(state.problem.lengths_B.tolist())
        self.starts_TBC = torch.zeros_like(frame_TBC)
        self.transition = frame_TBC.new_zeros(batch, *state.weights.transition.shape)
        rows = torch.arange(batch, device=frame_TBC.device)
        self.end_exponent_B = state.chain.exponent_TB[state.problem.lengths_B, rows]
        usable = (state.z_B > 0) & torch.isfinite(state.z_B)
        self.inverse_B = torch.where(usable, 1 / state.z_B, torch.zeros_like(state.z_B))

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
        """Rescale before frame `last`, and scale the left messages of the coming frames down to the next group."""
        chain = self.state.chain
        first = last - last % EVERY
        self.exponent_TB[first : last + 1] = self.exponent_TB[last + 1] + rescale(
            self.beta_TBC[last + 1], self.frame_TBC[last]
        )
        rows = slice(first, last + 1)
        gamma, rest = self.scaled(chain.gamma[rows], rows, rows)
        # A factor beyond float64 meets a zero, or what is lost and flagged: held below infinity for the product.
        self.gamma, self.first = (gamma * rest).clamp(max=1e300), first
        if self.state.problem.by_duration:
            alpha, rest = self.scaled(chain.alpha_TBC[rows], rows, rows)
            self.alpha = (alpha * rest).clamp(max=1e300)

    def step(self, s: int) -> None:
        """From boundary s+1 to boundary s."""
        problem, weights = self.state.problem, self.state.weights
        if s + 1 in self.ends_at:
            here_B1 = (problem.lengths_B == s + 1)[:, None]
            self.beta_TBC[s + 1] = torch.where(here_B1, weights.end_C, self.beta_TBC[s + 1])
        if s % EVERY == EVERY - 1 or s == len(self.eta_TBC) - 1:
            self.group(s)
        self.pending[s + 1] = self.beta_TBC[s + 1]
        window = self.pending[s + 1 : s + 1 + self.longest]
        window.mul_(self.frame_TBC[s])
        gamma = self.gamma[s - self.first]
        self.duration.addcmul_(window, gamma)
        eta_KBC = torch.mul(window, weights.duration_K1C, out=self.eta_KBC)
        if problem.by_duration:
            self.starts_TBC[s] = (eta_KBC * gamma).sum(0)
            self.beta_TBC[s] = torch.einsum("kbj,kij->bi", eta_KBC, weights.transition)
            self.transition += torch.einsum("bi,kbj->bkij", self.alpha[s - self.first], eta_KBC)
        else:
            batch, labels = self.eta_TBC.shape[1:]
            eta_BC = self.products.sum(0)[: batch * labels].view(batch, labels)
            self.eta_TBC[s] = eta_BC
            backward_E = weights.transition.t().expand(batch, labels, labels)
            torch.bmm(eta_BC[:, None], backward_E, out=self.beta_TBC[s][:, None])

    def posteriors(self) -> Posteriors:
        chain, weights = self.state.chain, self.state.weights
        frames, labels = len(self.eta_TBC), self.state.problem.shape[3]
        starting, ending = slice(0, frames), slice(1, frames + 1)
        if not self.state.problem.by_duration:
            gamma_TBC, rest = self.scaled(chain.gamma[:-1], starting, starting)
            alpha_TBC, _ = self.scaled(chain.alpha_TBC[:-1], starting, starting)
            eta_TBC = self.eta_TBC * rest
            self.starts_TBC = gamma_TBC * eta_TBC
            self.cross(alpha_TBC, eta_TBC)
        alpha_TBC, rest = self.scaled(chain.alpha_TBC[1:], ending, ending)
        ends_TBC = alpha_TBC * (self.beta_TBC[1:] * rest)
        before_TBC = torch.cat([torch.zeros_like(ends_TBC[:1]), ends_TBC[:-1]])
        label_TBC = (self.starts_TBC - before_TBC).cumsum(0) * frames_inside(self.state.problem)
        rows = (label_TBC, self.starts_TBC, ends_TBC, self.duration * weights.duration_K1C)
        label_BTC, starts_BTC, ends_BTC, duration_BKC = (x.transpose(0, 1)[..., :labels] for x in rows)
        transition = (self.transition * weights.transition)[..., :labels, :labels]
        log_z_B = self.state.log_z_B
        checked = mass(label_BTC, self.state.problem.lengths_B, log_z_B)
        return Posteriors(log_z_B, label_BTC, starts_BTC, ends_BTC, duration_BKC, transition, *checked)

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
