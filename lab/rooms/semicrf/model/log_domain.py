"""The factorised recursion in the log domain, float64: slower, and right where the linear one underflows.

Real -inf, no epsilon, no clamp. Messages and pending segments that can still reach the end are shifted by
their maximum each frame; the shift moves into the frame's scores and into an offset. The counts are
not products of two passes but follow the derivative of the recursion itself, from the right: the mass that
ends at (t, c) is split over the durations, and the mass that starts at (s, c) over the labels before it, by
shares that sum to 1. So they stay in [0, 1] and never are NaN, however large the scores are.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lab.core.words import plural
from lab.rooms.semicrf.model.dual import exp, log, plus, real, reciprocal
from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import Posteriors, Problem, by_sequence, masked
from lab.rooms.semicrf.model.terms import FAR, Terms, far_top, unknown


class LostDigits(RuntimeWarning):
    """Large scores cancel within a segmentation, and beside them float64 has no digits left of the others."""


@dataclass
class LogState:
    """Log messages of the left pass, time first, and the frames' scores with all shifts applied."""

    terms: Terms
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
    top = _top(value, dim)
    return log(exp(value - top).sum(dim)) + top.squeeze(dim)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    if not a.is_complex():
        return torch.logaddexp(a, b)
    return logsumexp(torch.stack([a, b.expand_as(a)]), 0)


def shares(value: Tensor, dim: int) -> Tensor:
    """softmax along `dim`; all zero, not NaN, where all entries are -inf."""
    part = exp(value - _top(value, dim))
    total = part.sum(dim, keepdim=True)
    total = torch.where(total == 0, torch.ones_like(total), total)
    return part / total if not part.is_complex() else part * reciprocal(total)


def _top(value: Tensor, dim: int) -> Tensor:
    top = real(value).amax(dim, keepdim=True)
    return torch.where(torch.isneginf(top), torch.zeros_like(top), top)


def finite_or_zero(value: Tensor) -> Tensor:
    return torch.where(torch.isfinite(value), value, torch.zeros_like(value))


def forward(problem: Problem) -> LogState:
    """log Z (B,) and the messages; NaN as `unknown` says."""
    batch, frames, longest, labels = problem.shape
    terms = Terms(problem)
    frame_TBC = terms.frame_TBC.clone()
    pending = frame_TBC.new_full((frames + longest, batch, labels), -float("inf"))
    alpha, gamma = [torch.full_like(frame_TBC[0], -float("inf"))], [terms.first()]
    offset, offsets = Sum(real(frame_TBC).new_zeros(batch)), []
    ends_TBC, runs_TBC = useful_ends(problem)
    steps_K11 = torch.arange(1, longest + 1, device=runs_TBC.device)[:, None, None]
    for t in range(frames):
        window = pending[t : t + longest]
        reach = min(longest, frames - t)
        entering = logaddexp(window, plus(gamma[t], terms.lasting(t)))
        # What cannot reach the end must not set the scale: beside 1e30, all that can would be lost.
        useful_KBC = ends_TBC[t + 1 : t + 1 + reach] & (steps_K11[:reach] <= runs_TBC[t])
        entering[:reach].masked_fill_(~useful_KBC, -float("inf"))
        entering[reach:] = -float("inf")
        shift_B = finite_or_zero(real(entering).add(real(frame_TBC[t])).amax((0, 2)))
        frame_TBC[t] -= shift_B[:, None]
        offset.add(shift_B)
        offsets.append(offset.total())
        window.copy_(plus(entering, frame_TBC[t]))
        alpha.append(terms.closed(window[0], t).clone())
        gamma.append(onward(terms, alpha[-1], t + 1))
    last, rows = problem.lengths_B, torch.arange(batch, device=frame_TBC.device)
    ended_BC = plus(torch.stack(alpha)[last, rows], terms.end_C)
    log_z_B = logsumexp(ended_BC, -1) + torch.stack(offsets)[last - 1, rows] + terms.edges
    log_z_B = log_z_B.masked_fill(unknown(terms), float("nan"))
    return LogState(terms, log_z_B, alpha, gamma, frame_TBC)


def useful_ends(problem: Problem) -> tuple[Tensor, Tensor]:
    """Where a segment of a label may end so that the sequence can be finished, (T+1, B, C) bool; and how many
    frames from each on the label fits, (T, B, C).

    NaN counts as possible: it has to reach log Z.
    """
    _, frames, longest, _ = problem.shape
    terms = Terms(problem.allowed())  # 0 where allowed, -inf where not
    fits_TBC, closes_C = terms.frame_TBC == 0, terms.end_C == 0
    useful = fits_TBC.new_zeros(frames + longest + 1, *fits_TBC.shape[1:])
    runs_TBC = torch.zeros_like(fits_TBC, dtype=torch.int64)
    run_BC = torch.zeros_like(runs_TBC[0])
    steps_K11 = torch.arange(1, longest + 1, device=run_BC.device)[:, None, None]
    for t in range(frames, -1, -1):
        if t < frames:
            runs_TBC[t] = run_BC = torch.where(fits_TBC[t], run_BC + 1, torch.zeros_like(run_BC))
            starts_KBC = useful[t + 1 : t + 1 + longest] & (terms.lasting(t) == 0) & (steps_K11 <= run_BC)
            starts_XBC = starts_KBC if problem.by_duration else starts_KBC.any(0, keepdim=True)
            opened_XBC = (terms.opened(starts_XBC.double().log(), t) == 0).double()
            leads = torch.matmul((terms.crossing(t) == 0).double(), opened_XBC.transpose(0, 1)[..., None])
            useful[t] = leads[..., 0].sum(1) > 0  # a transition leads from the label to a segment
        useful[t] |= (problem.lengths_B == t)[:, None] & closes_C
        useful[t] &= (problem.lengths_B >= t)[:, None]
        if t:
            useful[t] &= terms.closed(torch.zeros_like(terms.frame_TBC[0]), t - 1) == 0
    return useful[: frames + 1], runs_TBC


def onward(terms: Terms, alpha_BC: Tensor, t: int) -> Tensor:
    """gamma: what goes on from boundary t, (X, B, C)."""
    sent = logsumexp(plus(alpha_BC[:, None, :, None], terms.crossing(t)), 2)
    return terms.opened(sent.transpose(0, 1), t)


def posteriors(problem: Problem) -> Posteriors:
    """All expected counts. An infeasible or NaN sequence has counts of zero."""
    state = forward(problem)
    far_TBC = is_far(state.frame_TBC)
    passed = Passed(far_TBC) if bool(far_TBC.any()) else None
    found = counted(state, passed)
    if not state.log_z_B.is_complex():  # else a tangent, of counts for which this was said
        warn_of_lost_digits(problem, found, None if passed is None else passed.frames() & far_TBC)
    return found


def tops(problem: Problem) -> Tensor:
    """The largest score of each frame (B, T) among labels that some segmentation gives it; 0 if there is none
    or it is not finite.
    """
    state = forward(problem.allowed())
    passed = Passed(state.frame_TBC)
    counted(state, passed)
    given_BTC = masked(problem, problem.score_BTC)
    return finite_or_zero(given_BTC.masked_fill(~passed.frames().transpose(0, 1), -float("inf")).amax(-1))


def counted(state: LogState, passed: Passed | None) -> Posteriors:
    """The counts by the messages; `passed` is told of every segment."""
    terms, problem = state.terms, state.terms.problem
    batch, frames, longest, labels = problem.shape
    usable_B = torch.isfinite(state.log_z_B)
    starts_TBC, ends_TBC = torch.zeros_like(state.frame_TBC), torch.zeros_like(state.frame_TBC)
    duration = ends_TBC.new_zeros(longest, batch, labels)
    segment = None if problem.segment_BTKC is None else ends_TBC.new_zeros(batch, frames, longest, labels)
    crossed = ends_TBC.new_zeros(batch, *crossed_shape(problem))
    for t in range(frames, 0, -1):
        final_BC = shares(plus(state.alpha[t], terms.end_C), -1)
        begun = (problem.lengths_B == t) & usable_B
        ends_TBC[t - 1] += torch.where(begun[:, None], final_BC, torch.zeros_like(final_BC))
        if not problem.by_duration and t < frames:
            crossing = terms.crossing(t)[:, 0]
            into = shares(plus(state.alpha[t][:, :, None], crossing), 1) * starts_TBC[t][:, None]
            ends_TBC[t - 1] += into.sum(-1)
            (crossed[:, t] if problem.per_frame else crossed).add_(into)
        reach = min(longest, t)
        split_KBC = shares(plus(_window(state, t, reach), terms.arriving(t, reach)), 0) * ends_TBC[t - 1]
        duration[:reach] += split_KBC
        starts_TBC[t - reach : t] += split_KBC.flip(0)
        if passed is not None:
            passed.add(t, split_KBC)
        if segment is not None:
            shorter_K = torch.arange(reach, device=segment.device)
            segment[:, t - 1 - shorter_K, shorter_K] = split_KBC.transpose(0, 1)
        if problem.by_duration:
            _cross(state, t, split_KBC, ends_TBC, crossed)
    never_TBC = torch.isneginf(real(terms.frame_TBC)) | ~terms.inside_TB[..., None]
    own = [crossed] if segment is None else [crossed, segment]
    return assembled(
        problem, state.log_z_B, usable_B, never_TBC, (starts_TBC, ends_TBC, duration, *own)
    )  # shares of NaN are NaN


def assembled(
    problem: Problem, log_z_B: Tensor, usable_B: Tensor, never_TBC: Tensor, counts: Sequence[Tensor]
) -> Posteriors:
    """Posteriors of starts, ends and durations, time or duration first, and of transitions and segments.

    Labels are what started less what ended, and exactly 0 where they are never. Counts of sequences that are
    not usable may be anything, and become 0. Labels beyond the problem's pad the counts.
    """
    starts_TBC, ends_TBC, duration_KBC, *own = counts
    label_TBC = (starts_TBC - torch.cat([torch.zeros_like(ends_TBC[:1]), ends_TBC[:-1]])).cumsum(0)
    rows = (label_TBC.masked_fill(never_TBC, 0.0), starts_TBC, ends_TBC, duration_KBC)
    labels = problem.shape[3]
    found = [x.transpose(0, 1)[..., :labels] for x in rows] + [own[0][..., :labels, :labels]]
    found += [segment[..., :labels] for segment in own[1:]]
    if not bool(usable_B.all()):
        found = [torch.where(by_sequence(usable_B, count), count, torch.zeros_like(count)) for count in found]
    checked = mass(real(found[0]), problem.lengths_B, real(log_z_B))
    return Posteriors.of_parts([log_z_B, *found, *checked])


def is_far(value: Tensor) -> Tensor:
    return (real(value).abs() > FAR) & ~torch.isinf(real(value))


class Passed:
    """The frames and labels that some segment covers, whose probability is more than zero.

    Counted, because a label's probability is a difference of sums, of which rounding may be left.
    """

    def __init__(self, like_TBC: Tensor) -> None:
        self._begun, self._ended = (torch.zeros_like(like_TBC, dtype=torch.int64) for _ in range(2))

    def add(self, t: int, split_KBC: Tensor) -> None:
        """The segments that end at boundary t."""
        some = (real(split_KBC) > 0).long()
        self._begun[t - len(some) : t] += some.flip(0)
        self._ended[t - 1] += some.sum(0)

    def frames(self) -> Tensor:
        """(T, B, C) bool."""
        before = torch.cat([torch.zeros_like(self._ended[:1]), self._ended[:-1]])
        return (self._begun - before).cumsum(0) > 0


def warn_of_lost_digits(problem: Problem, found: Posteriors, far_TBC: Tensor | None) -> None:
    """Warn where a segmentation adds numbers beyond `FAR`; of frames as they are shifted, `far_TBC` do."""
    lost_B = torch.zeros_like(problem.lengths_B, dtype=torch.bool)
    if far_TBC is not None:
        lost_B |= far_TBC.transpose(0, 1).flatten(1).any(1)
    for name, value, count in list(
        zip(problem.names(), problem.floats(), found.counts(problem), strict=True)
    )[1:]:
        far = is_far(value - far_top(value) if name in ("start_C", "end_C") else value)
        if bool(far.any()):
            lost_B |= (far & (count > 0)).flatten(1).any(1)
    if bool(lost_B.any()):
        warnings.warn(
            f"large scores cancel within the segmentations of {plural(int(lost_B.sum()), 'sequence')}, and "
            "float64 has no digits left for the rest: expected counts and gradients may be wrong there; "
            "forbid with -inf instead of large numbers",
            LostDigits,
            stacklevel=2,
        )


def crossed_shape(problem: Problem) -> tuple[int, ...]:
    """Of one sequence's transition counts: (C, C), (K, C, C) or (T, C, C)."""
    _, frames, longest, labels = problem.shape
    more = (longest,) if problem.by_duration else (frames,) if problem.per_frame else ()
    return (*more, labels, labels)


def _window(state: LogState, t: int, reach: int) -> Tensor:
    """Row k-1: what came in at boundary t-k, plus its frames up to t; (reach, B, C)."""
    content = state.frame_TBC[t - reach : t].flip(0).cumsum(0)
    return plus(by_rows(state.gamma[t - reach : t][::-1]), content)


def by_rows(latest: list[Tensor]) -> Tensor:
    """Row k-1 of what each of the latest boundaries holds for segments of k frames: (k, ...) of (X, ...)."""
    if len(latest[0]) == 1:
        return torch.cat(latest)
    return torch.stack([value[k] for k, value in enumerate(latest)])


def _cross(state: LogState, t: int, split_KBC: Tensor, ends_TBC: Tensor, crossed: Tensor) -> None:
    """With transitions by duration, each duration's mass has its own shares of the labels before."""
    transition = state.terms.crossing(t)  # the same at every boundary
    for k in range(1, len(split_KBC) + 1):
        if k == t:
            continue  # the first segment pays no transition
        into = (
            shares(plus(state.alpha[t - k][:, :, None], transition[:, k - 1]), 1) * split_KBC[k - 1][:, None]
        )
        ends_TBC[t - k - 1] += into.sum(-1)
        crossed[:, k - 1] += into
