"""A semi-CRF as a distribution over the segmentations of each sequence, in the terms of torch.distributions.

    p = SegmentDistribution(score_BTC, transition, duration_KC, lengths_B)      # or head.distribution(hidden)
    p.log_prob(segments), p.entropy(), p.kl(q), p.sample(10), p.constrained(allowed_BTC).marginals

All logarithms are natural. Where nothing is feasible (`partition` is -inf) there is no distribution: entropy,
KL and expectations are then 0, log probabilities -inf and segmentations empty, so that one such sequence does
not spoil a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from lab.errors import UsageError
from lab.rooms.semicrf.model import api, information
from lab.rooms.semicrf.model.information import less
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import (
    FAR_BELOW,
    FLOATS,
    Posteriors,
    Problem,
    inside,
    levelled,
    make_problem,
)
from lab.rooms.semicrf.model.segments import Segmentation, listed, path_scores

Value = TypeVar("Value")
Boundaries = Tensor
"""(B, T): +1 where a segment starts with this frame, -1 where none does, 0 where that is not known."""


class SegmentDistribution:
    """p(segmentation) of a batch of sequences; the arguments are those of `api.log_partition`.

    What is computed is kept until a tensor changes (not by way of `.data`, which leaves no trace), apart with
    and without gradients. Lengths that are not
    int64 are copied.
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
        """`terms`: start_C, end_C and the optional terms of single segments.

        Raises UsageError for shapes that do not fit, or an unknown backend.
        """
        api.resolve_backend(backend, score_BTC)
        self._set(make_problem(score_BTC, transition, duration_KC, lengths_B, **terms), backend)

    def _set(self, problem: Problem, backend: str) -> SegmentDistribution:
        self.problem, self.backend = problem, backend
        self._cache: dict[tuple[str, bool], tuple[Any, list[tuple[int, bool]]]] = {}
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cache": {}}  # torch copies no tensor that has a graph

    def _of(self, problem: Problem) -> SegmentDistribution:
        """The distribution of a changed model; itself where nothing changed."""
        return self if problem is self.problem else object.__new__(type(self))._set(problem, self.backend)

    def _by(self, function: Callable[..., Value], **options: Any) -> Value:
        """What a function of api.py says of this model."""
        return function(**self.problem.arguments(), backend=self.backend, **options)

    def _once(self, name: str, compute: Callable[[], Value]) -> Value:
        """A value that is kept as long as neither the model nor it were changed in place."""
        untraced = torch.is_inference_mode_enabled() or any(value.is_inference() for value in self._tensors())
        if untraced:  # changes leave no trace
            return compute()
        key = (name, torch.is_grad_enabled())
        if key not in self._cache or self._cache[key][1] != self._versions(self._cache[key][0]):
            value = compute()
            self._cache[key] = value, self._versions(value)
        cached: Value = self._cache[key][0]
        return cached

    def _tensors(self) -> list[Tensor]:
        return [*self.problem.floats(), self.problem.lengths_B]

    def _versions(self, value: Any) -> list[tuple[int, bool]]:
        results = vars(value).values() if isinstance(value, Posteriors) else [value]
        tensors = [*self._tensors(), *(tensor for tensor in results if isinstance(tensor, Tensor))]
        return [(tensor._version, tensor.requires_grad) for tensor in tensors]

    def __repr__(self) -> str:
        batch, frames, longest, labels = self.problem.shape
        return f"SegmentDistribution(B={batch}, T={frames}, K={longest}, C={labels})"

    @property
    def partition(self) -> Tensor:
        """log Z (B,), float64, differentiable."""
        return self._once("partition", lambda: self._by(api.log_partition))

    @property
    def posteriors(self) -> Posteriors:
        """log Z and all expected counts."""
        return self._once("posteriors", lambda: self._by(api.posteriors))

    @property
    def marginals(self) -> Tensor:
        """(B, T, C): the probability that frame t lies in a segment of label c; 0 in the padding."""
        return self.posteriors.label_BTC

    def log_prob(self, value: Tensor | Sequence[Segmentation], starts_BT: Tensor | None = None) -> Tensor:
        """log p (B,), float64, differentiable, of one segmentation per sequence.

        `value` holds segments (start, end exclusive, label), as `argmax` gives them, or labels (B, T), which
        mean maximal runs, or what begins where `starts_BT` is True. The probability of labels under all
        their segmentations is `log_prob_partial`. A segment of more than K frames has log p = -inf.
        Raises UsageError for what does not tile a sequence, or labels out of range.
        """
        paths = listed(value, starts_BT, self.problem, torch.isneginf(self.partition).tolist())
        p = self._once("level", self._level)
        return less(path_scores(p.problem, paths), p.partition)

    def log_prob_partial(
        self, allowed_BTC: Tensor | None = None, boundaries_BT: Boundaries | None = None
    ) -> Tensor:
        """log p (B,) of a partial annotation: of all segmentations that agree with it; see `constrained`."""
        return less(self.constrained(allowed_BTC, boundaries_BT).partition, self.partition)

    def constrained(
        self, allowed_BTC: Tensor | None = None, boundaries_BT: Boundaries | None = None
    ) -> SegmentDistribution:
        """p given that every frame has one of its allowed labels (bool) and that the boundaries are as said.

        The first frame always starts a segment: its boundary is not read, nor is the padding. Its `partition`
        is -inf where nothing agrees. Raises UsageError for shapes or values that do not fit.
        """
        return self._of(constrain(self.problem, allowed_BTC, boundaries_BT))

    def entropy(self) -> Tensor:
        """H(p) (B,) in nats, float64, differentiable; see `information`."""
        p = self._doubled()
        return information.entropy(p.problem, p.posteriors)

    def kl(self, q: SegmentDistribution) -> Tensor:
        """KL(p || q) (B,) in nats, float64, at least 0, differentiable; K may differ.

        Exactly 0 where both models hold the same numbers, +inf where p gives mass to what q forbids.
        """
        p, q = self._beside(q)
        return information.kl(p.problem, p.posteriors, q.problem, q.partition)

    def cross_entropy(self, q: SegmentDistribution) -> Tensor:
        """-E_p[log q] (B,) in nats, float64, differentiable: the sum of `entropy()` and `kl(q)`."""
        p, q = self._beside(q)
        return information.cross_entropy(p.problem, p.posteriors, q.problem, q.partition)

    def expected(self, f: Mapping[str, Tensor] | SegmentDistribution) -> Tensor:
        """E_p[f] (B,), float64, of an f that adds up over a segmentation as scores do; differentiable.

        `f` names its scores as the constructor does, in the same shapes, {"duration_KC": ...}; what it does
        not name is 0. Or it is another model: E_p of its score. Where p has no mass f may be anything.
        """
        scored = f if isinstance(f, SegmentDistribution) else self._of(scores_as(self.problem, f))
        p, q = self._beside(scored, counted=True)
        return information.expected(q.problem.floats(), p.problem, p.posteriors)

    def argmax(self) -> list[list[Segment]]:
        """The most probable segmentation of each sequence; ties as in `api.viterbi`."""
        return self._by(api.viterbi)[1]

    def topk(self, k: int) -> list[list[tuple[float, list[Segment]]]]:
        """The k most probable segmentations of each sequence, (log p, segments), best first."""
        if k < 1:
            raise UsageError(f"k must be 1 or more, got {k}")
        pairs = zip(self._by(api.kbest, count=k), self.partition.tolist(), strict=True)
        return [[(score - log_z, path) for score, path in paths] for paths, log_z in pairs]

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> list[list[list[Segment]]]:
        """`n` exact, independent draws for each sequence, from torch's own stream or `generator`."""
        if n < 0:
            raise UsageError(f"n must be 0 or more, got {n}")
        return self._by(api.sample, samples=n, generator=generator)

    def _doubled(self) -> SegmentDistribution:
        """In float64: differences of float32 sums have few digits left."""
        return self._once("doubled", lambda: self._of(information.doubled(self.problem)))

    def _level(self) -> SegmentDistribution:
        """Without what is common to all labels of a frame far below 0: the same log p, with more digits."""
        score_BTC = self.problem.score_BTC
        if bool((score_BTC.detach() > FAR_BELOW).any(-1).all()):
            return self
        return self._of(replace(self.problem, score_BTC=levelled(score_BTC, FAR_BELOW)))

    def _beside(
        self, model: SegmentDistribution, counted: bool = False
    ) -> tuple[SegmentDistribution, SegmentDistribution]:
        """Both in float64, with the same kinds of scores; `counted` leaves out those all models count."""
        p, q = self._doubled(), model._doubled()
        asked = replace(q.problem, seg_start_BTC=None, seg_end_BTC=None) if counted else q.problem
        p, q = p._of(alike(p.problem, asked)), q._of(alike(q.problem, p.problem))
        if p.backend != "naive" and information.exact_counts_wanted(p.problem, q.problem.score_BTC):
            p = object.__new__(type(p))._set(p.problem, "torch")
        return p, q


def scores_as(problem: Problem, named: Mapping[str, Tensor]) -> Problem:
    """The scores of `named`, 0 for those of `problem` that it does not name. Raises UsageError."""
    unknown = sorted(set(named) - set(FLOATS))
    if unknown:
        raise UsageError(f"no scores are called {', '.join(unknown)}", fix=f"one of {', '.join(FLOATS)}")
    _, _, longest, labels = problem.shape
    scores: dict[str, Any] = {
        "score_BTC": zeros(problem, *problem.score_BTC.shape),
        "transition": zeros(problem, labels, labels),
        "duration_KC": zeros(problem, longest, labels),
        **named,
    }
    scored = make_problem(transition_CC=scores.pop("transition"), **scores, lengths_B=problem.lengths_B)
    if scored.shape != problem.shape:
        raise UsageError(f"f has (B, T, K, C) = {scored.shape}, the distribution {problem.shape}")
    return scored


def zeros(problem: Problem, *shape: int) -> Tensor:
    """Float64, on the problem's device, without memory of their own."""
    return problem.score_BTC.new_zeros((), dtype=torch.float64).expand(shape)


def alike(p: Problem, q: Problem) -> Problem:
    """`p` with every kind of score that `q` has, so that the two can be subtracted. Raises UsageError."""
    if p.score_BTC.shape != q.score_BTC.shape or not torch.equal(p.lengths_B, q.lengths_B):
        raise UsageError(
            f"the distributions are over different segmentations: (B, T, C) {tuple(p.score_BTC.shape)} and "
            f"{tuple(q.score_BTC.shape)}",
            fix="the same batch with the same lengths in both",
        )
    batch, frames, _, labels = p.shape
    longest = max(p.shape[2], q.shape[2])
    changes: dict[str, Tensor] = {}
    if longest > p.shape[2]:
        padding = (0, 0, 0, longest - p.shape[2])
        changes["duration_KC"] = pad(p.duration_KC, padding, value=-torch.inf)
        if p.by_duration:
            changes["transition"] = pad(p.transition, (0, 0, *padding))
        if p.segment_BTKC is not None:
            changes["segment_BTKC"] = pad(p.segment_BTKC, padding)
    if q.transition.dim() > p.transition.dim() == 2:
        sizes = (batch, frames) if q.per_frame else (longest,)
        changes["transition"] = p.transition.expand(*sizes, -1, -1)
    elif 2 < p.transition.dim() != q.transition.dim() > 2:
        raise UsageError("one model's transitions depend on the duration, the other's on the frame")
    for name in set(q.names()) - set(p.names()):
        shape = (batch, frames, longest, labels) if name == "segment_BTKC" else (batch, frames, labels)
        changes[name] = zeros(p, *shape)
    return replace(p, **changes) if changes else p


def constrain(problem: Problem, allowed_BTC: Tensor | None, boundaries_BT: Boundaries | None) -> Problem:
    """The model with -inf for all that the annotation excludes. Raises UsageError."""
    for name, value in (("allowed", allowed_BTC), ("boundaries", boundaries_BT)):
        if value is not None and not isinstance(value, Tensor):
            raise UsageError(f"{name} must be a tensor, got {type(value).__name__}")
    if allowed_BTC is not None:
        if allowed_BTC.dtype != torch.bool or allowed_BTC.shape != problem.score_BTC.shape:
            raise UsageError(
                f"allowed must be bool {tuple(problem.score_BTC.shape)}, "
                f"got {allowed_BTC.dtype} {tuple(allowed_BTC.shape)}"
            )
        problem = replace(problem, score_BTC=problem.score_BTC.masked_fill(~allowed_BTC, -torch.inf))
    if boundaries_BT is None:
        return problem
    batch, frames, longest, labels = problem.shape
    if tuple(boundaries_BT.shape) != (batch, frames) or boundaries_BT.dtype == torch.bool:
        raise UsageError(
            f"boundaries must be -1, 0 or +1, {(batch, frames)}, "
            f"got {boundaries_BT.dtype} {tuple(boundaries_BT.shape)}"
        )
    values = boundaries_BT.to(problem.score_BTC.device).double()  # torch compares no uint16
    values = torch.where(inside(problem.shape[1], problem.lengths_B), values, torch.zeros_like(values))
    values[:, 0] = 0
    if not bool(((values == 0) | (values.abs() == 1)).all()):
        raise UsageError("boundaries must be -1, 0 or +1", fix="0 where a boundary is not known")
    opens, segment = problem.seg_start_BTC, problem.segment_BTKC
    if bool((values < 0).any()):
        opens = zeros(problem, batch, frames, labels) if opens is None else opens
        opens = opens.masked_fill((values < 0)[..., None], -torch.inf)
    if bool((values > 0).any()):
        segment = zeros(problem, batch, frames, longest, 1) if segment is None else segment
        segment = segment.masked_fill(later_start(values > 0, longest)[..., None], -torch.inf)
        segment = segment.expand(-1, -1, -1, labels)
    return replace(problem, seg_start_BTC=opens, segment_BTKC=segment)


def later_start(starts_BT: Tensor, longest: int) -> Tensor:
    """(B, T, K) bool: whether one of the k - 1 frames after frame t is marked."""
    before_BT = starts_BT.long().cumsum(1)
    sums_BT = torch.cat([before_BT, before_BT[:, -1:].expand(-1, longest - 1)], 1)
    return sums_BT.unfold(1, longest, 1) > before_BT[..., None]
