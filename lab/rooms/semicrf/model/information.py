"""Entropy, cross-entropy and KL divergence of distributions over segmentations, in nats.

Each is a log Z minus <theta, counts>, with the scores theta of one model or the difference of two. What has
probability zero adds nothing, so -inf is an ordinary score. Digits are lost as in any such difference: the
rounding is some 1e-16 times the largest score times the frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.rooms.semicrf.model.problem import Posteriors, Problem

FAR = 1e4
"""Beside scores beyond this the rounding of a label's count shows, which in the compiled forms is a sum of
starts less ends: the log domain adds up each label by itself, to the smallest mass."""


def exact_counts_wanted(problem: Problem, scores: Tensor) -> bool:
    """Whether <scores, counts> needs labels without rounding: far scores that are not the model's own."""
    own_BTC, scores = problem.score_BTC.detach(), scores.detach()
    return bool(((scores.abs() > FAR) & (scores != own_BTC) & ~torch.isneginf(own_BTC)).any())


def entropy(problem: Problem, posteriors: Posteriors) -> Tensor:
    """H(p) (B,), 0 where nothing is feasible; `posteriors` are the counts of `problem`."""
    return at_least_0(less_expected(posteriors.log_z_B, problem.floats(), problem, posteriors))


def cross_entropy(problem: Problem, posteriors: Posteriors, q: Problem, q_log_z_B: Tensor) -> Tensor:
    """-E_p[log q] (B,): +inf where p gives mass to what q forbids, 0 where p has nothing feasible."""
    return at_least_0(less_expected(q_log_z_B, q.floats(), problem, posteriors))


def kl(problem: Problem, posteriors: Posteriors, q: Problem, q_log_z_B: Tensor) -> Tensor:
    """KL(p||q) (B,), infinite as the cross-entropy is; exactly 0 where p and q are the same numbers."""
    pairs = list(zip(problem.floats(), q.floats(), strict=True))
    apart = [difference(of_q, of_p) for of_p, of_q in pairs]
    log_B = less(q_log_z_B, posteriors.log_z_B)
    if all(torch.equal(of_p, of_q) for of_p, of_q in pairs):
        log_B = log_B - torch.nan_to_num(log_B.detach(), neginf=0.0)  # no rounding, and the gradient stays
    return at_least_0(less_expected(log_B, apart, problem, posteriors))


def difference(of_q: Tensor, of_p: Tensor) -> Tensor:
    """q - p in float64, 0 where both forbid; differentiable, also where the two are equal numbers."""
    neither = torch.isneginf(of_q) & torch.isneginf(of_p)
    return torch.where(neither, torch.zeros_like(of_q, dtype=torch.float64), of_q.double() - of_p)


def expected(scores: Sequence[Tensor], problem: Problem, posteriors: Posteriors) -> Tensor:
    """<scores, counts> (B,): a score that is not used adds zero, finite or not; -inf where one is -inf."""
    mean_B, endless_B = _expected(scores, problem, posteriors)
    return mean_B.masked_fill(endless_B, -torch.inf)


def _expected(scores: Sequence[Tensor], problem: Problem, posteriors: Posteriors) -> tuple[Tensor, Tensor]:
    """<scores, counts> (B,) of what is finite, and where a score that is used is -inf: no gradient has it."""
    total_B = torch.zeros_like(posteriors.log_z_B)
    endless_B = torch.zeros_like(problem.lengths_B, dtype=torch.bool)
    for score, count in zip(scores, posteriors.counts(problem), strict=True):
        count, unused = count.double(), count == 0
        endless = torch.isneginf(score.detach()) & ~unused
        value = torch.where(unused | endless, torch.zeros_like(count), score.double())
        total_B = total_B + (value * count).flatten(1).sum(1)
        endless_B = endless_B | endless.flatten(1).any(1)
    return total_B, endless_B


def less_expected(
    log_B: Tensor, scores: Sequence[Tensor], problem: Problem, posteriors: Posteriors
) -> Tensor:
    """`log_B` - <scores, counts> (B,), 0 where the model of the counts has nothing feasible."""
    nothing_B = torch.isneginf(posteriors.log_z_B.detach())
    mean_B, endless_B = _expected(scores, problem, posteriors)
    rest_B = log_B.masked_fill(nothing_B, 0.0) - mean_B.masked_fill(nothing_B, 0.0)
    return rest_B.masked_fill(endless_B & ~nothing_B, torch.inf)


def less(log_B: Tensor, log_z_B: Tensor) -> Tensor:
    """log_B - log_z_B; -inf, never NaN, where one of them is."""
    nothing_B = torch.isneginf(log_B.detach()) | torch.isneginf(log_z_B.detach())
    rest_B = log_B.masked_fill(nothing_B, 0.0) - log_z_B.masked_fill(nothing_B, 0.0)
    return rest_B.masked_fill(nothing_B, -torch.inf)


def at_least_0(value_B: Tensor) -> Tensor:
    """Without what rounding takes below 0, which has no root and no logarithm; the gradient stays."""
    return torch.where(value_B < 0, value_B - value_B.detach(), value_B)


def doubled(problem: Problem) -> Problem:
    """In float64; the problem itself if it is."""
    if all(value.dtype == torch.float64 for value in problem.floats()):
        return problem
    return problem.with_floats([value.double() for value in problem.floats()])
