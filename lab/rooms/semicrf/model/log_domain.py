"""The semi-CRF in plain torch, on any device: log domain, float64, O(T (C^2 + K C)).

Transitions do not depend on the duration, so they are applied once per boundary:

    gamma[s, c] = logsumexp over c' of alpha[s, c'] + transition[c', c]                   (start[c] at s = 0)
    alpha[t, c] = logsumexp over k of gamma[t-k, c] + duration[k, c] + frames t-k+1..t of c

Real -inf, no epsilon, no clamp. Messages are shifted by their maximum each frame, and frames by theirs; no
sum spans more than one segment. This form is also what others fall back to where a product of theirs may have
underflowed, and what autograd differentiates for second derivatives: nothing in `walk` is changed in place.

Expected counts follow the derivative of the recursion, from the right: the mass that ends at (t, c) is split
over the durations, and the mass that starts at (s, c) over the labels before it, by shares that sum to 1. So
they stay in [0, 1], however large the scores are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import FLOATS, Posteriors, Problem, masked

LINE = 8
"""Labels are padded to a multiple of this by forbidden ones: libraries sum rows of other sizes in an order
that depends on where they lie, and the batch would move the last bit of its members."""


class Terms:
    """The log scores that a message meets on its way, in float64, time first and without the padding; those
    of single segments that are not given are skipped.

    A message leaves a boundary (`first` or `onward`, which includes the score of a start there), gathers the
    frames of a segment and the score of its duration (`arriving`), and ends with frame t (`closed`).
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.frame_TBC = masked(problem, problem.score_BTC).transpose(0, 1).contiguous()
        self.opens_TBC, self.closes_TBC = (
            None if value is None else masked(problem, value).transpose(0, 1).contiguous()
            for value in (problem.seg_start_BTC, problem.seg_end_BTC)
        )
        # One row, or (K, 1, C), where all sequences share them.
        self.transition, duration = (
            value.double() if value.dim() == 3 else value.double()[None]
            for value in (problem.transition_CC, problem.duration_KC)
        )
        self.duration_KBC = duration.transpose(0, 1)
        self.start_C, self.end_C = problem.start_C.double(), problem.end_C.double()

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

    def arriving(self, t: int, reach: int) -> Tensor:
        """The score of each duration of a segment that ends at boundary t: (reach, B or 1, C)."""
        segment = self.problem.segment_BTKC
        if segment is None:
            return self.duration_KBC[:reach]
        shorter_K = torch.arange(reach, device=segment.device)
        segment_KBC = segment[:, t - 1 - shorter_K, shorter_K].double().transpose(0, 1)
        inside_B1 = (t <= self.problem.lengths_B)[:, None]
        return self.duration_KBC[:reach] + torch.where(inside_B1, segment_KBC, torch.zeros_like(segment_KBC))


@dataclass
class State:
    """Messages of the left pass, time first, and the frames' scores with all shifts applied."""

    problem: Problem
    terms: Terms
    log_z_B: Tensor
    alpha_TBC: Tensor
    gamma_TBC: Tensor
    frame_TBC: Tensor


def logsumexp(value: Tensor, dim: int) -> Tensor:
    """logsumexp whose value is -inf and whose gradient is 0, never NaN, where all entries are -inf."""
    # The maximum cancels in the value, so no gradient goes through it.
    top = value.detach().amax(dim, keepdim=True)
    shift = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    total = (value - shift).exp().sum(dim)
    nothing = total == 0
    # The untaken side must be safe, too: `where` multiplies its infinite gradient by 0
    # (pytorch/pytorch#49724).
    log = torch.where(nothing, torch.ones_like(total), total).log() + shift.squeeze(dim)
    return torch.where(nothing, torch.full_like(total, -float("inf")), log)


def shares(value: Tensor, dim: int) -> Tensor:
    """softmax along `dim`; all zero, not NaN, where all entries are -inf."""
    top = value.amax(dim, keepdim=True)
    part = (value - torch.where(torch.isneginf(top), torch.zeros_like(top), top)).exp()
    total = part.sum(dim, keepdim=True)
    return part / torch.where(total == 0, torch.ones_like(total), total)


def finite_or_zero(value: Tensor) -> Tensor:
    return torch.where(torch.isfinite(value), value, torch.zeros_like(value))


def by_batch(value_KBC: Tensor) -> Tensor:
    """(B, K, C): a sum over durations then goes through a sequence's own numbers, in an order that its batch
    does not change.
    """
    return value_KBC.transpose(0, 1).contiguous()


def padded(problem: Problem) -> Problem:
    """Pad with forbidden labels up to a multiple of `LINE`."""
    padding = -problem.shape[3] % LINE
    if not padding:
        return problem

    def widened(name: str, value: Tensor) -> Tensor:
        sides = (0, padding, 0, padding) if name == "transition_CC" else (0, padding)
        return pad(value.double(), sides, value=-torch.inf if name in FLOATS[:5] else 0.0)

    return problem.with_floats([widened(*item) for item in problem.by_name().items()])


def walk(problem: Problem) -> State:
    """log Z (B,), differentiable, and the messages."""
    terms = Terms(padded(problem))
    batch, frames, longest, _ = problem.shape
    # A shift common to all labels of a frame leaves the model as it is (9e-16); one per label moved a
    # posterior by 0.5.
    top_TB = finite_or_zero(terms.frame_TBC.detach().amax(-1))
    level_TBC = terms.frame_TBC - top_TB[..., None]
    window = level_TBC.new_zeros(0, *level_TBC.shape[1:])
    alphas, gammas = [torch.full_like(level_TBC[0], -float("inf"))], [terms.first()]
    moved, shifts = [], []
    for t in range(frames):
        # Row k-1: what left boundary t+1-k, plus its frames so far.
        window = torch.cat([gammas[t][None], window[: longest - 1]])
        arrived_BKC = by_batch(window + terms.arriving(t + 1, len(window)))
        alpha_BC = logsumexp(arrived_BKC, 1) + level_TBC[t]
        alpha_BC = terms.closed(alpha_BC, t)
        shifts.append(finite_or_zero(alpha_BC.detach().amax(-1)))
        moved.append(level_TBC[t] - shifts[t][:, None])
        window = window + moved[t]
        alphas.append(alpha_BC - shifts[t][:, None])
        gammas.append(onward(terms, alphas[t + 1], t + 1))
    ends_B, rows = problem.lengths_B, torch.arange(batch, device=level_TBC.device)
    # Offsets stay apart from messages: added in float32 they cost a posterior 2e-2 at 8,000 frames.
    alpha_TBC, offset_TB = torch.stack(alphas), (torch.stack(shifts) + top_TB).cumsum(0)
    log_z_B = logsumexp(alpha_TBC[ends_B, rows] + terms.end_C, -1) + offset_TB[ends_B - 1, rows]
    return State(problem, terms, log_z_B, alpha_TBC, torch.stack(gammas), torch.stack(moved))


def log_partition(problem: Problem) -> Tensor:
    """Float64, differentiable as often as one likes, also by torch.func."""
    return walk(problem).log_z_B


def forward(problem: Problem, keep: bool = True) -> State:
    """Compute what `backward` needs. `keep` is for other forms: here messages always come with log Z."""
    with torch.no_grad():
        return walk(problem.detached())


def onward(terms: Terms, alpha_BC: Tensor, t: int) -> Tensor:
    """gamma: what goes on from boundary t, (B, C)."""
    return terms.opened(logsumexp(alpha_BC[:, :, None] + terms.transition, 1), t)


@torch.no_grad()
def posteriors(problem: Problem) -> Posteriors:
    """All expected counts; of an infeasible sequence zero."""
    return backward(forward(problem))


@torch.no_grad()
def backward(state: State) -> Posteriors:
    terms, problem = state.terms, state.problem
    batch, frames, longest, _ = problem.shape
    feasible_B = torch.isfinite(state.log_z_B)
    starts_TBC, ends_TBC, label_TBC = (torch.zeros_like(state.frame_TBC) for _ in range(3))
    labels = ends_TBC.shape[2]
    duration = ends_TBC.new_zeros(longest, batch, labels)
    segment = None if problem.segment_BTKC is None else ends_TBC.new_zeros(batch, frames, longest, labels)
    crossed = ends_TBC.new_zeros(batch, labels, labels)
    for t in range(frames, 0, -1):
        final_BC = shares(state.alpha_TBC[t] + terms.end_C, -1)
        finishes = (problem.lengths_B == t) & feasible_B
        ends_TBC[t - 1] += torch.where(finishes[:, None], final_BC, torch.zeros_like(final_BC))
        if t < frames:
            into = shares(state.alpha_TBC[t][:, :, None] + terms.transition, 1) * starts_TBC[t][:, None]
            ends_TBC[t - 1] += into.sum(-1)
            crossed += into
        reach = min(longest, t)
        arrived_BKC = by_batch(_window(state, t, reach) + terms.arriving(t, reach))
        split_KBC = shares(arrived_BKC, 1).transpose(0, 1) * ends_TBC[t - 1]
        duration[:reach] += split_KBC
        starts_TBC[t - reach : t] += split_KBC.flip(0)
        label_TBC[t - reach : t] += split_KBC.flip(0).cumsum(0)  # each frame by all segments that hold it
        if segment is not None:
            shorter_K = torch.arange(reach, device=segment.device)
            segment[:, t - 1 - shorter_K, shorter_K] = split_KBC.transpose(0, 1)
    labels = problem.shape[3]
    by_time = (label_TBC, starts_TBC, ends_TBC, duration)
    label_BTC, starts_BTC, ends_BTC, duration_BKC = (x.transpose(0, 1)[..., :labels] for x in by_time)
    mass_error_B, mass_frame_B = mass(label_BTC, problem.lengths_B, state.log_z_B)
    return Posteriors(
        state.log_z_B,
        label_BTC,
        starts_BTC,
        ends_BTC,
        duration_BKC,
        transition=crossed[..., :labels, :labels],
        mass_error_B=mass_error_B,
        mass_frame_B=mass_frame_B,
        segment_BTKC=None if segment is None else segment[..., :labels],
    )


def _window(state: State, t: int, reach: int) -> Tensor:
    """Row k-1: what came in at boundary t-k, plus its frames up to t; (reach, B, C)."""
    content_KBC = state.frame_TBC[t - reach : t].flip(0).cumsum(0)
    return state.gamma_TBC[t - reach : t].flip(0) + content_KBC


def derived_posteriors(
    problem: Problem, partition: Callable[[Problem], Tensor] = log_partition
) -> Posteriors:
    """log Z and all counts as derivatives by each sequence's scores, which autograd differentiates."""
    batch, frames, longest, labels = problem.shape
    new = problem.score_BTC.new_zeros
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("score_BTC", "seg_start_BTC", "seg_end_BTC"), (batch, frames, labels)),
        "duration_KC": (batch, longest, labels),
        "transition_CC": (batch, labels, labels),
    }
    if problem.segment_BTKC is not None:
        shapes["segment_BTKC"] = (batch, frames, longest, labels)
    steps = [new(shape, dtype=torch.float64) for shape in shapes.values()]
    values = {name: getattr(problem, name) for name in shapes} | {
        "transition_CC": problem.transition_CC[None],
        "duration_KC": problem.duration_KC[None],
    }

    def moved(*steps: Tensor) -> tuple[Tensor, Tensor]:
        pairs = zip(values.items(), steps, strict=True)
        log_z_B = partition(
            replace(problem, **{name: step if x is None else x.double() + step for (name, x), step in pairs})
        )
        return log_z_B.sum(), log_z_B

    if hasattr(torch, "func"):
        counts, log_z_B = torch.func.grad(moved, argnums=tuple(range(len(steps))), has_aux=True)(*steps)
    else:  # before torch 2.0
        with torch.enable_grad():
            leaves = [step.requires_grad_() for step in steps]
            total, log_z_B = moved(*leaves)
            # Adds nothing, but makes every leaf used: autograd refuses one that is not.
            counts = torch.autograd.grad(total + 0 * sum(map(torch.sum, leaves)), leaves, create_graph=True)
    by_name = dict(zip(shapes, counts, strict=True))
    label_BTC = by_name["score_BTC"]
    return Posteriors(
        log_z_B,
        label_BTC,
        by_name["seg_start_BTC"],
        by_name["seg_end_BTC"],
        by_name["duration_KC"],
        by_name["transition_CC"],
        *mass(label_BTC.detach(), problem.lengths_B, log_z_B.detach()),
        segment_BTKC=by_name.get("segment_BTKC"),
    )
