"""Entropy, cross-entropy and KL divergence of distributions over segmentations, in nats.

Each is a log Z minus <theta, counts>, with the scores theta of one model or the difference of two. That is
fast, and loses digits where scores are large beside the result; there the chain rule takes over. Read from
the right, a segmentation is a chain of choices: the last label; for a segment of c that ends at t its
duration; for one that starts at s the label before it. Shares of log-domain messages are their
probabilities:

    to_go[t, c]  = H(duration | c ends at t)       + sum_k  share[k]  before[t-k, c]
    before[s, c] = H(label before | c starts at s) + sum_c' share[c'] to_go[s, c']

No term is negative, so nothing cancels, however large the scores are. What has probability zero adds nothing,
so -inf is an ordinary score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.derivatives import autograd, compiled
from lab.rooms.semicrf.model.naive import safe_logsumexp
from lab.rooms.semicrf.model.problem import Posteriors, Problem, frames_masked
from lab.rooms.semicrf.model.terms import Terms, has_far_edges, without_far_edges

Term = Callable[[Tensor, Tensor], Tensor]
"""What each outcome of a choice adds, from its log probabilities under p and q."""

ALLOWED = 1e-10
"""Estimated rounding, relative to max(1, result), up to which log Z - <theta, counts> is taken."""
RELATIVE = 1e-4
"""For a divergence also relative to the result: of two equal models, no rounding may be left."""
EPSILON = 2.0**-52


def entropy(problem: Problem, found: Posteriors) -> Tensor:
    """H(p) (B,), 0 where nothing is feasible; `found` are the counts of `problem`."""
    fast_B, error_B = less_expected(found.log_z_B, problem.floats(), problem, found)
    sound_B = error_B <= ALLOWED * fast_B.clamp(min=1)
    return mended(fast_B, sound_B, problem, problem, found, entropy_term)


def cross_entropy(problem: Problem, found: Posteriors, other: Problem, other_log_z_B: Tensor) -> Tensor:
    """-E_p[log q] (B,): +inf where p gives mass to what q forbids, 0 where p has nothing feasible."""
    fast_B, error_B = less_expected(other_log_z_B, other.floats(), problem, found)
    sound_B = error_B <= ALLOWED * fast_B.clamp(min=1)
    return mended(fast_B, sound_B, problem, other, found, cross_term)


def kl(problem: Problem, found: Posteriors, other: Problem, other_log_z_B: Tensor) -> Tensor:
    """KL(p||q) (B,), infinite as the cross-entropy is; exactly 0 where p and q are the same numbers."""
    apart = [q.double() - p.double() for p, q in zip(problem.floats(), other.floats(), strict=True)]
    fast_B, error_B = less_expected(other_log_z_B - found.log_z_B, apart, problem, found)
    error_B = error_B + EPSILON * (other_log_z_B.detach().abs() + found.log_z_B.detach().abs())
    sound_B = (error_B <= ALLOWED * fast_B.clamp(min=1)) & (error_B <= RELATIVE * fast_B)
    return mended(fast_B, sound_B, problem, other, found, divergence_term)


def less_expected(
    log_z_B: Tensor, scores: Sequence[Tensor], problem: Problem, found: Posteriors
) -> tuple[Tensor, Tensor]:
    """`log_z_B` - <scores, counts> and an estimate of its rounding, both (B,).

    A count is off by a share of itself, as its sequence's mass is, and by some of float64's last digits of 1,
    which beside a score of -1e30 is much.
    """
    total_B, size_B, square_B = (torch.zeros_like(found.log_z_B) for _ in range(3))
    summed_B, endless_B = log_z_B.detach().abs(), torch.zeros_like(problem.lengths_B, dtype=torch.bool)
    for at, (score, count) in enumerate(zip(scores, found.counts(problem), strict=True)):
        count = count.double() if at else count.double().masked_fill(impossible(problem, found), 0.0)
        used = count != 0
        endless_B = endless_B | (used & ~torch.isfinite(score.detach())).flatten(1).any(1)
        used = used & torch.isfinite(score.detach())  # 0 times inf would be a NaN in a gradient
        score = torch.where(used, score.double(), torch.zeros_like(count))
        if at == 0:  # what all labels of a frame share adds itself, whatever the counts
            shared_BT = (score * count).sum(-1).detach()
            score = torch.where(used, score - shared_BT[..., None], score)
            total_B, summed_B = total_B + shared_BT.sum(1), summed_B + shared_BT.abs().sum(1)
        term = score * count
        total_B = total_B + term.flatten(1).sum(1)
        size_B = size_B + term.detach().abs().flatten(1).sum(1)
        square_B = square_B + score.detach().square().flatten(1).sum(1)
    error_B = (found.mass_error_B + 4 * EPSILON) * (size_B + square_B.sqrt()) + EPSILON * summed_B
    return log_z_B - total_B, error_B.masked_fill(endless_B, torch.inf)


def impossible(problem: Problem, found: Posteriors) -> Tensor:
    """Labels of frames, (B, T, C) bool, whose probability is 0 in float64 whatever their count says.

    A count is a difference of sums, of which rounding may be left; times -1e30 or -inf that would be much. No
    segmentation scores more than the best label of every frame and the best of every other term together, and
    there are fewer than (2 C)^L of them.
    """
    plain = problem.detached()
    score_BTC, top_BT = frames_masked(plain), tops(plain)
    known: dict[str, Tensor] = {name: getattr(plain, name).double() for name in plain.names()[1:]}
    # NaN is no number: it may be padding.
    best = {name: x.masked_fill(torch.isnan(x), -torch.inf).amax() for name, x in known.items()}
    once = best.pop("start_C") + best.pop("end_C")
    each = sum(torch.relu(value) for value in best.values()) + math.log(2 * score_BTC.shape[2])
    most_B = top_BT.sum(1) + once + problem.lengths_B * each
    least_B = found.log_z_B.detach() - most_B - SMALLEST
    return score_BTC - top_BT[..., None] < least_B[:, None, None]


SMALLEST = 746.0
"""exp(-746) is 0 in float64."""
LARGE = 1e7
"""A frame's best score, or a log Z, beyond which differences lose the digits that `ALLOWED` needs."""


def precise(problem: Problem) -> Problem:
    """In float64, and `centred`; the problem itself where nothing changes, so that what was computed for it
    is used.
    """
    return centred(doubled(problem))


def doubled(problem: Problem) -> Problem:
    """In float64; the problem itself if it is."""
    if all(value.dtype == torch.float64 for value in problem.floats()):
        return problem
    return problem.with_floats([value.double() for value in problem.floats()])


def centred(problem: Problem) -> Problem:
    """The same distribution: frames whose best score is large, less the best that some segmentation pays, and
    starts or ends that are all large, less the largest.

    Less a label's that none can have, nothing would be left of the others. Where no branch may look for such
    labels only masks of whole frames go, which are large and negative: the rest shows as rounding.
    """
    if not branches() or has_far_edges(problem):
        problem = without_far_edges(problem)
    plain = problem.detached()
    top_BT = tops(plain)
    large_BT = top_BT.abs() > LARGE
    if not branches():
        large_BT = top_BT < -LARGE
    elif not bool(large_BT.any()):
        return problem
    else:
        top_BT = log_domain.tops(plain)
    shift_BT = torch.where(large_BT, top_BT, torch.zeros_like(top_BT))
    return replace(problem, score_BTC=problem.score_BTC.double() - shift_BT[..., None])


def tops(problem: Problem) -> Tensor:
    """The best score of each frame, (B, T); 0 where it is not finite."""
    return log_domain.finite_or_zero(frames_masked(problem).amax(-1))


def branches() -> bool:
    """Whether a branch may depend on a value."""
    return not (compiled.compiling() or autograd.transforming())


def levelled(problem: Problem, log_z_B: Tensor) -> Problem:
    """The same distribution: large sequences with frames shifted so that the messages' maximum is 0."""
    log_z_B = log_z_B.detach()
    large_B = (log_z_B.abs() > LARGE) | (tops(problem.detached()).abs() > LARGE).any(1)
    large_B = large_B & torch.isfinite(log_z_B)
    if not bool(large_B.any()):
        return problem
    rows = large_B.nonzero()[:, 0]
    shifted_BTC = shifted(problem.rows(rows)).transpose(0, 1)
    return replace(problem, score_BTC=frames_masked(problem).index_copy(0, rows, shifted_BTC))


def shifted(problem: Problem) -> Tensor:
    """Frames (T, B, C) as the log domain shifts them, all labels alike, with the scores' derivative."""
    score_TBC = frames_masked(problem).transpose(0, 1)
    carrier = torch.where(torch.isfinite(score_TBC), score_TBC, torch.zeros_like(score_TBC))
    return log_domain.forward(problem.detached()).frame_TBC + (carrier - carrier.detach())


def mended(fast_B: Tensor, sound_B: Tensor, p: Problem, q: Problem, found: Posteriors, term: Term) -> Tensor:
    """`fast_B` where it is sound, 0 where p has nothing feasible, elsewhere by the chain rule."""
    nothing_B = torch.isneginf(found.log_z_B.detach())
    sound_B = sound_B & torch.isfinite(fast_B.detach()) & ~nothing_B
    kept_B = torch.where(sound_B, fast_B, torch.zeros_like(fast_B))
    again_B = ~sound_B & ~nothing_B
    if not branches():
        return at_least_0(kept_B.masked_fill(again_B, torch.nan))
    if bool(again_B.any()):
        rows = again_B.nonzero()[:, 0]
        same = q is p
        p = p.rows(rows)
        kept_B = kept_B.index_copy(0, rows, by_choices(p, p if same else q.rows(rows), term))
    return at_least_0(kept_B)


def at_least_0(value_B: Tensor) -> Tensor:
    """Without what rounding takes below 0, which has no root and no logarithm; the gradient stays."""
    return torch.where(value_B < 0, value_B - value_B.detach(), value_B)


def entropy_term(log_p: Tensor, _: Tensor) -> Tensor:
    return -log_p.exp() * torch.where(log_p.exp() > 0, log_p, torch.zeros_like(log_p))


def cross_term(log_p: Tensor, log_q: Tensor) -> Tensor:
    return -log_p.exp() * torch.where(log_p.exp() > 0, log_q, torch.zeros_like(log_q))


def divergence_term(log_p: Tensor, log_q: Tensor) -> Tensor:
    """q - p - p log(q / p): at least 0, and summed over the outcomes the divergence."""
    p, q = log_p.exp(), log_q.exp()
    log_ratio = torch.where(p > 0, log_q, torch.zeros_like(log_q)) - torch.where(
        p > 0, log_p, torch.zeros_like(log_p)
    )
    near = log_ratio.abs() < 0.01
    x = torch.where(near, log_ratio, torch.zeros_like(log_ratio))
    series = p * x * x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x / 720))))
    far = torch.where(near, torch.zeros_like(log_ratio), log_ratio)
    return torch.where(p > 0, torch.where(near, series, q - p - p * far), q)


def by_choices(p: Problem, q: Problem, term: Term) -> Tensor:
    """The sum of `term` over all choices, by p's probability of facing them, (B,); differentiable."""
    of_p = Choices(p)
    of_q = of_p if q is p else Choices(q)
    both = (of_p,) if q is p else (of_p, of_q)
    batch, frames, longest, _ = p.shape
    zero_XBC = torch.zeros_like(of_p.gammas[0])
    befores: list[Later] = [(zero_XBC, zero_XBC > 0)]
    result_B = of_p.frame_TBC.new_zeros(batch)
    for t in range(1, frames + 1):
        for choices in both:
            choices.step()
        values, lost = (log_domain.by_rows(list(rows)) for rows in zip(*befores, strict=True))
        value_BC, lost_BC = gathered(term, of_p.durations, of_q.durations, (values, lost), 0)
        here_B = p.lengths_B == t
        if bool(here_B.any()):
            last_B, lost_B = gathered(term, of_p.last(), of_q.last(), (value_BC, lost_BC), 1)
            result_B = torch.where(here_B, last_B.masked_fill(lost_B, torch.inf), result_B)
        later = (value_BC[:, :, None], lost_BC[:, :, None])
        befores = [gathered(term, of_p.labels, of_q.labels, later, -2), *befores[: longest - 1]]
    return result_B


Later = tuple[Tensor, Tensor]
"""What the choices to come add, and whether p gives mass to one of them that q forbids (infinity would make
NaN of the gradients beside it)."""


def gathered(term: Term, log_p: Tensor, log_q: Tensor, later: Later, dim: int) -> Later:
    """One choice: its own term, and what comes later by p's shares."""
    share = log_p.exp()
    some = share > 0
    forbidden = some & torch.isneginf(log_q)
    value = term(log_p, log_q.masked_fill(forbidden, 0.0)) + share * later[0]
    return value.sum(dim), (forbidden | (some & later[1])).any(dim)


class Choices:
    """The log probabilities of one model's choices, from left to right; differentiable.

    After `step()` number t, `durations` (k, B, C) are those of the segments of c that end at t, `labels`
    (X, B, C', C) those of the label before a segment of c that starts at t (X as in `Terms`).
    """

    def __init__(self, problem: Problem) -> None:
        self.terms, self.frame_TBC = Terms(problem), shifted(problem)
        self.longest = problem.shape[2]
        self.gammas = [self.terms.first()]
        self.content = self.frame_TBC[:0]
        self.t = 0

    def step(self) -> None:
        begun = torch.cat([torch.zeros_like(self.frame_TBC[:1]), self.content[: self.longest - 1]])
        self.content = begun + self.frame_TBC[self.t]
        self.t += 1
        gamma = log_domain.by_rows(self.gammas)
        ending = gamma + self.content + self.terms.arriving(self.t, len(gamma))
        alpha_BC, self.durations = split(ending, 0)
        self.alpha_BC = self.terms.closed(alpha_BC, self.t - 1)
        gamma, labels = split(self.alpha_BC[:, None, :, None] + self.terms.crossing(self.t), 2)
        self.labels = labels.transpose(0, 1)
        gamma = self.terms.opened(gamma.transpose(0, 1), self.t)
        self.gammas = [gamma, *self.gammas[: self.longest - 1]]

    def last(self) -> Tensor:
        """(B, C): of the last label, if the sequence ends here."""
        return split(self.alpha_BC + self.terms.end_C, 1)[1]


def split(value: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """logsumexp along `dim`, and the log shares; -inf, never NaN, where all entries are -inf.

    Beside a NaN or +inf no share is known: all are NaN, for one that p forbids would not be looked at.
    """
    whole = safe_logsumexp(value, dim)
    known = whole.masked_fill(torch.isneginf(whole), 0.0).masked_fill(torch.isposinf(whole), torch.nan)
    return whole, value - known.unsqueeze(dim)
