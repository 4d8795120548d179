"""The guide's guards and objective, written out plainly to show what they change; not for use in earnest.

`seed_log_partition` follows the published recipe: one cumulative sum over the whole sequence, NEG_INF = -1e9
in place of -inf, log(sum + 1e-10), messages clamped to +-1e6 and log-marginals to +-80. `guide_nll` is its
objective: the partition charges the first segment a transition that the gold score does not, and covers other
durations than the gold score.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.head import gold_score, place_in_segment, run_starts
from lab.rooms.semicrf.model.problem import inside

NEG_INF, EPSILON, MESSAGE, LOG_MARGINAL = -1e9, 1e-10, 1e6, 80.0


def seed_log_partition(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
    backend: str = "guards",
    alarm: Any = None,
) -> Tensor:
    """log Z_B with the guards on, in the dtype of the scores; same arguments as `log_partition`.

    `alarm` is never called: the recipe has no counts to show it.
    """
    classes = score_BTC.shape[2]
    zero_C = score_BTC.new_zeros(classes)
    lengths_B = _lengths(score_BTC, lengths_B)
    logZ_B: Tensor = _Guarded.apply(  # type: ignore[no-untyped-call]
        score_BTC,
        transition_CC,
        duration_KC,
        zero_C if start_C is None else start_C,
        zero_C if end_C is None else end_C,
        lengths_B,
    )
    return logZ_B


class _Guarded(torch.autograd.Function):
    """Forward by alpha, backward by beta and clamped marginals, as the guide describes them."""

    @staticmethod
    def forward(
        ctx: Any,
        score: Tensor,
        transition: Tensor,
        duration: Tensor,
        start: Tensor,
        end: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        parts = [t.clamp(min=NEG_INF) for t in (score, transition, duration, start, end)]
        alpha, gamma = _alpha(parts[0], parts[1], parts[2], parts[3], lengths)
        last = alpha[torch.arange(len(score)), lengths.to(alpha.device)]
        logZ = _lse(last + parts[4], 1)
        ctx.save_for_backward(*parts, alpha, gamma, logZ, lengths)
        return logZ

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        score, transition, duration, _, end, alpha, gamma, logZ, lengths = ctx.saved_tensors
        back = _Backward(score, transition, duration, end, lengths, logZ)
        d_score, d_transition, d_duration, d_start = back.run(alpha, gamma, grads[0])
        last = alpha[torch.arange(len(score)), lengths.to(alpha.device)]
        d_end = (_probability(last + end - logZ[:, None]) * grads[0][:, None]).sum(0)
        return d_score, d_transition, d_duration, d_start, d_end, None


def _alpha(
    score: Tensor, transition: Tensor, duration: Tensor, start: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """alpha[b, t, c]: segments that end at t; gamma[b, t, c]: those that may start there; t in 0..T."""
    size, frames, classes = score.shape
    cum = _cumulative(score)
    gamma = score.new_full((size, frames + 1, classes), NEG_INF)
    alpha = gamma.clone()
    gamma[:, 0] = start
    for t in range(1, frames + 1):
        k = min(len(duration), t)
        taps = gamma[:, t - k : t].flip(1) + (cum[:, t, None] - cum[:, t - k : t].flip(1)) + duration[:k]
        alpha[:, t] = _lse(taps, 1).clamp(-MESSAGE, MESSAGE)
        gamma[:, t] = _lse(alpha[:, t, :, None] + transition, 1).clamp(-MESSAGE, MESSAGE)
    return alpha, gamma


class _Backward:
    """Marginals from alpha, gamma and a beta pass, one frame at a time."""

    def __init__(
        self, score: Tensor, transition: Tensor, duration: Tensor, end: Tensor, lengths: Tensor, logZ: Tensor
    ) -> None:
        self.transition, self.duration, self.end, self.logZ = transition, duration, end, logZ
        self.cum, self.lengths = _cumulative(score), lengths.to(score.device)

    def run(self, alpha: Tensor, gamma: Tensor, grad_B: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        size, steps, classes = alpha.shape
        beta = torch.full_like(alpha, NEG_INF)
        d_cum, d_transition = torch.zeros_like(alpha), torch.zeros_like(self.transition)
        d_duration, d_start = torch.zeros_like(self.duration), torch.zeros_like(self.end)
        for t in range(steps - 1, -1, -1):
            at_end = (self.lengths == t)[:, None]
            if t < steps - 1:
                k = min(len(self.duration), steps - 1 - t)
                taps = (
                    (self.cum[:, t + 1 : t + 1 + k] - self.cum[:, t, None])
                    + self.duration[:k]
                    + beta[:, t + 1 : t + 1 + k]
                )
                eta = _lse(taps, 1).clamp(-MESSAGE, MESSAGE)
                segments = (
                    _probability(gamma[:, t, None] + taps - self.logZ[:, None, None]) * grad_B[:, None, None]
                )
                d_duration[:k] += segments.sum(0)
                d_cum[:, t + 1 : t + 1 + k] += segments
                d_cum[:, t] -= segments.sum(1)
                if t == 0:
                    d_start = segments.sum((0, 1))
                else:
                    arcs = alpha[:, t, :, None] + self.transition + eta[:, None] - self.logZ[:, None, None]
                    d_transition += (_probability(arcs) * grad_B[:, None, None]).sum(0)
                    beta[:, t] = _lse(self.transition + eta[:, None], 2).clamp(-MESSAGE, MESSAGE)
            beta[:, t] = torch.where(at_end, self.end.expand(size, classes), beta[:, t])
        return d_cum[:, 1:].flip(1).cumsum(1).flip(1), d_transition, d_duration, d_start


def guide_nll(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    labels_BT: Tensor,
    lengths_B: Tensor | None = None,
    *,
    version: str = "0.2.0",
    partition: Any = api.log_partition,
    backend: str = "torch",
) -> Tensor:
    """NLL_B of the published objective.

    `version` is "orig" (durations 1..K-1 in the partition) or "0.2.0" (1..K). The partition charges the first
    segment the log-sum over sources of its transition; the gold score charges none, takes maximal runs of
    labels, and uses duration bias min(d, K - 1) whatever the run's length.
    """
    longest, support = len(duration_KC), duration_KC[1:] if version == "orig" else duration_KC
    logZ_B = partition(
        score_BTC,
        transition_CC,
        support,
        lengths_B,
        start_C=torch.logsumexp(transition_CC, 0),
        backend=backend,
    )
    gold_B = guide_gold(score_BTC, transition_CC, duration_KC, labels_BT, lengths_B, longest=longest)
    nll_B: Tensor = logZ_B.double() - gold_B
    return nll_B


def guide_gold(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    labels_BT: Tensor,
    lengths_B: Tensor | None,
    *,
    longest: int,
) -> Tensor:
    """(B,) float64: content, transitions between maximal runs, and bias min(d, K - 1) of each run."""
    frames = labels_BT.shape[1]
    lengths_B = _lengths(score_BTC, lengths_B)
    starts_BT, within_BT = run_starts(labels_BT), inside(frames, lengths_B)
    plain_B = gold_score(
        score_BTC, transition_CC, torch.zeros_like(duration_KC), labels_BT, starts_BT, lengths_B
    )
    last_BT = torch.arange(frames, device=labels_BT.device) == lengths_B[:, None] - 1
    ends_BT = (last_BT | torch.cat([starts_BT[:, 1:], last_BT[:, -1:]], 1)) & within_BT
    index_BT = (place_in_segment(starts_BT) + 1).clamp(max=longest - 1)
    return plain_B + torch.where(
        ends_BT, duration_KC[index_BT, labels_BT].double(), torch.zeros_like(plain_B[:, None])
    ).sum(1)


def _cumulative(score: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(score[:, :1]), score.cumsum(1)], dim=1)


def _lse(values: Tensor, dim: int) -> Tensor:
    high = values.amax(dim, keepdim=True)
    total = torch.log(torch.exp(values - high).sum(dim, keepdim=True) + EPSILON) + high
    return torch.where(high < NEG_INF + 1, torch.full_like(total, NEG_INF), total).squeeze(dim)


def _probability(log_marginal: Tensor) -> Tensor:
    return torch.exp(log_marginal.clamp(-LOG_MARGINAL, LOG_MARGINAL))


def _lengths(score: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return torch.full((len(score),), score.shape[1], dtype=torch.int64, device=score.device)
    return lengths.to(score.device)
