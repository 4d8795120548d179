"""A semi-CRF as a distribution over the segmentations of each sequence, in the terms of torch.distributions.

    p = SegmentDistribution(score_BTC, transition, duration_KC, lengths_B)      # or head.distribution(hidden)
    p.log_prob(segments), p.entropy(), p.marginals, p.sample(10)

All logarithms are natural. Where nothing is feasible (`partition` is -inf) a distribution does not exist: the
entropy is then 0, log probabilities -inf and segmentations empty, so that one such sequence does not spoil a
batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.autograd import uncompiled
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import Posteriors, Problem, inside, make_problem
from lab.rooms.semicrf.model.segments import (
    Segmentation,
    gold_score,
    index_in_segment,
    marked,
    reject_labels,
    run_starts,
)

log_z_of = uncompiled(api.partition_of)


class SegmentDistribution:
    """p(segmentation) of a batch of sequences; arguments as of `api.log_partition`. Nothing is kept between
    calls: ask once for what is used twice.
    """

    def __init__(
        self,
        score_BTC: Tensor,
        transition: Tensor,
        duration_KC: Tensor,
        lengths_B: Tensor | None = None,
        *,
        backend: str = "auto",
        **terms: Tensor | None,
    ) -> None:
        """Raises UsageError for shapes that do not fit, or an unknown backend."""
        api.resolve_backend(backend, score_BTC)
        self.problem: Problem = make_problem(score_BTC, transition, duration_KC, lengths_B, **terms)
        self.backend = backend

    def __repr__(self) -> str:
        batch, frames, longest, labels = self.problem.shape
        return f"SegmentDistribution(B={batch}, T={frames}, K={longest}, C={labels})"

    @property
    def partition(self) -> Tensor:
        """log Z (B,), float64, differentiable."""
        return log_z_of(self.problem, self.backend)

    @property
    def posteriors(self) -> Posteriors:
        return api.posteriors(self.problem, backend=self.backend)

    @property
    def marginals(self) -> Tensor:
        """(B, T, C): P(frame t lies in a segment of label c); 0 in the padding."""
        return self.posteriors.label_BTC

    def log_prob(self, value: Tensor | Sequence[Segmentation], starts_BT: Tensor | None = None) -> Tensor:
        """log p (B,), float64, differentiable, of one segmentation per sequence.

        `value` holds segments (start, end exclusive, label), as `argmax` gives them, or labels (B, T), which
        mean maximal runs, or what begins where `starts_BT` is True. A segment of more than K frames has
        log p = -inf. Raises UsageError and ValueError for what does not fit.
        """
        level = api.level(self.problem)
        log_z_B = log_z_of(level, self.backend)
        infeasible_B = torch.isneginf(log_z_B.detach())
        lengths_B, (_, frames, longest, labels) = self.problem.lengths_B, self.problem.shape
        if isinstance(value, Tensor):
            shape = tuple(self.problem.score_BTC.shape[:2])
            for name, marks in (("labels", value), ("starts", starts_BT)):
                if marks is not None and (tuple(marks.shape) != shape or marks.is_floating_point()):
                    raise UsageError(f"{name} must be {shape}, got {marks.dtype} {tuple(marks.shape)}")
            labels_BT = value.to(lengths_B.device).long()
            starts_BT = run_starts(labels_BT) if starts_BT is None else starts_BT.to(lengths_B.device).bool()
            reject_labels(labels_BT, lengths_B, labels, starts_BT)
        elif starts_BT is None:
            labels_BT, starts_BT = marked(value, self.problem, infeasible_B)
        else:
            raise UsageError("starts belong to labels: segments have their own")
        labels_BT, starts_BT = labels_BT.to(lengths_B.device), starts_BT.to(lengths_B.device)
        score_B = gold_score(labels_BT=labels_BT, starts_BT=starts_BT, **level.arguments())
        over_BT = (index_in_segment(starts_BT) >= longest) & inside(frames, lengths_B)
        score_B = score_B.masked_fill(over_BT.any(1), -torch.inf)
        impossible_B = infeasible_B | torch.isneginf(score_B.detach())
        log_p_B = score_B.masked_fill(impossible_B, 0.0) - log_z_B.masked_fill(impossible_B, 0.0)
        return log_p_B.masked_fill(impossible_B, -torch.inf)

    def entropy(self) -> Tensor:
        """H(p) (B,) in nats, float64, differentiable."""
        return api.entropy(self.problem, backend=self.backend)

    def argmax(self) -> list[list[Segment]]:
        """The most probable segmentation of each sequence; ties as in `api.viterbi`."""
        return api.viterbi(self.problem, backend=self.backend)[1]

    def topk(self, k: int) -> list[list[tuple[float, list[Segment]]]]:
        """The k most probable segmentations of each sequence, (log p, segments), best first."""
        if k < 1:
            raise UsageError(f"k must be 1 or more, got {k}")
        level = api.level(self.problem)
        log_z_B = log_z_of(level, self.backend)
        pairs = zip(api.kbest(level, count=k, backend=self.backend), log_z_B.tolist(), strict=True)
        return [[(score - log_z, path) for score, path in paths] for paths, log_z in pairs]

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> list[list[list[Segment]]]:
        """`n` exact, independent draws for each sequence, from torch's own stream or `generator`."""
        return api.sample(self.problem, samples=n, generator=generator, backend=self.backend)
