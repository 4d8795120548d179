"""The semi-CRF as a module: projection, partition and gold path of one model, decoding, and its penalty.

Gold path and partition share one definition of the score, so exp(-loss) is a probability. The first segment
has `start_C` and no transition, the last has `end_C`, durations are 1..K with index duration - 1. A gold
segment longer than K is split into pieces of K joined by self-transitions (or is an error, or takes its
sequence out of the loss).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.distribution import SegmentDistribution
from lab.rooms.semicrf.model.online import OnlineDecoder
from lab.rooms.semicrf.model.problem import check_kind_of_lengths, onto
from lab.rooms.semicrf.model.validation.points import Validator, backend_name
from lab.rooms.semicrf.model.validation.watch import CRFWatch

Partition = Callable[..., Tensor]


@dataclass(frozen=True)
class Decoded:
    """The best segmentation of one sequence: `segments` as (start, end_exclusive, label)."""

    score: float
    segments: list[tuple[int, int, int]]


class SemiCRF(nn.Module):
    """A semi-Markov CRF over `num_classes` labels and durations 1..`max_duration` (K = 1: a linear CRF).

    With `hidden_dim` a linear projection makes the scores; without, the input is the scores. `allowed_CC`
    (bool) is a grammar: transitions that are not allowed are -inf, with gradient 0. `validate` turns the
    validation points on.
    """

    def __init__(
        self,
        num_classes: int,
        max_duration: int,
        hidden_dim: int | None = None,
        *,
        backend: str = "auto",
        over_long: str = "split",
        allowed_CC: Tensor | None = None,
        validate: bool = False,
    ) -> None:
        super().__init__()
        if num_classes < 1 or max_duration < 1:
            raise ValueError(
                f"num_classes and max_duration must be at least 1, got {num_classes} and {max_duration}"
            )
        if over_long not in ("split", "error", "mask"):
            raise ValueError(f"over_long must be split, error or mask, got {over_long!r}")
        if allowed_CC is not None and tuple(allowed_CC.shape) != (num_classes, num_classes):
            raise ValueError(
                f"allowed_CC must be {(num_classes, num_classes)}, got {tuple(allowed_CC.shape)}"
            )
        self.projection = nn.Linear(hidden_dim, num_classes) if hidden_dim is not None else None
        self.transition_CC = nn.Parameter(0.1 * torch.randn(num_classes, num_classes))
        self.duration_KC = nn.Parameter(0.1 * torch.randn(max_duration, num_classes))
        self.start_C = nn.Parameter(torch.zeros(num_classes))
        self.end_C = nn.Parameter(torch.zeros(num_classes))
        self.forbidden_CC: Tensor | None
        self.register_buffer("forbidden_CC", None if allowed_CC is None else ~allowed_CC.bool())
        self.backend, self.over_long = backend, over_long
        self.validator = Validator() if validate else None
        self.partition: Partition = api.log_partition  # diagnose puts a planted fault here
        self.gold: Partition = gold_score
        self.after_projection: Callable[[Tensor], Tensor] | None = None  # diagnose: a fault of the scores
        self.poison_padding = False  # diagnose: NaN where no kernel may look

    def forward(self, hidden_BTH: Tensor, lengths_B: Tensor | None = None) -> dict[str, Tensor]:
        """-> {"partition": logZ_B, "scores": score_BTC}."""
        score_BTC = self.scores(hidden_BTH, lengths_B)
        return {"partition": self.log_partition(score_BTC, lengths_B), "scores": score_BTC}

    def loss(
        self,
        hidden_BTH: Tensor,
        lengths_B: Tensor | None,
        labels_BT: Tensor,
        starts_BT: Tensor | None = None,
        *,
        reduction: str = "mean",
    ) -> Tensor:
        """Negative log-likelihood, mean over sequences (or "sum", or "none": (B,)).

        `starts_BT` (bool) marks the first frame of each gold segment; without it segments are maximal runs of
        labels. Raises UsageError and ValueError for arguments that do not fit, and with `over_long="error"`
        for a gold segment longer than K. A gold path that the model forbids has an infinite loss, which the
        validation points name.
        """
        if lengths_B is not None:
            check_kind_of_lengths(lengths_B, len(hidden_BTH))
        for name, given in (("labels", labels_BT), ("starts", starts_BT)):
            if given is not None and hidden_BTH.dim() == 3 and given.shape != hidden_BTH.shape[:2]:
                raise ValueError(
                    f"{name} must be {tuple(hidden_BTH.shape[:2])} as the hidden states are, "
                    f"got {tuple(given.shape)}"
                )
        if self.validator:
            self.validator.inputs(hidden_BTH, lengths_B, labels_BT, self.transition_CC.shape[0])
        found = self(hidden_BTH, lengths_B)
        starts_BT, kept_B = self.pieces(labels_BT, starts_BT, lengths_B)
        model = (self.transitions(), self.duration_KC, self.start_C, self.end_C)
        ends = {"start_C": self.start_C, "end_C": self.end_C}
        gold_B = self.gold(found["scores"], *model[:2], labels_BT, starts_BT, lengths_B, **ends)
        if self.validator:
            kept = torch.where(kept_B, gold_B, torch.zeros_like(gold_B))
            self.validator.gold(kept, found["scores"], model, labels_BT, starts_BT, lengths_B)
        nll_B = torch.where(kept_B, found["partition"].double() - gold_B, torch.zeros_like(gold_B))
        if reduction == "none":
            return nll_B
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be mean, sum or none, got {reduction!r}")
        return nll_B.sum() if reduction == "sum" else nll_B.sum() / kept_B.sum().clamp(min=1)

    @torch.no_grad()
    def decode(self, hidden_BTH: Tensor, lengths_B: Tensor | None = None) -> list[Decoded]:
        """The best segmentation of every sequence, by the same backend as the partition."""
        scores_B, segments = api.viterbi(**self._arguments(hidden_BTH, lengths_B))
        return [Decoded(float(score), list(found)) for score, found in zip(scores_B, segments, strict=True)]

    def distribution(self, hidden_BTH: Tensor, lengths_B: Tensor | None = None) -> SegmentDistribution:
        """The distribution over the segmentations of every sequence, differentiable as the loss is."""
        given = self._arguments(hidden_BTH, lengths_B)
        return SegmentDistribution(transition=given.pop("transition_CC"), **given)

    def _arguments(self, hidden_BTH: Tensor, lengths_B: Tensor | None) -> dict[str, Any]:
        """Those of the functions in api.py."""
        score_BTC, transition_CC = self.scores(hidden_BTH, lengths_B), self.transitions()
        model = {"transition_CC": transition_CC, "duration_KC": self.duration_KC}
        ends = {"start_C": self.start_C, "end_C": self.end_C}
        return {"score_BTC": score_BTC, "lengths_B": lengths_B, **model, **ends, "backend": self.backend}

    def online(self, *, lag: int | None = None) -> OnlineDecoder:
        """A decoder of one stream by this model; it takes scores, not hidden features."""
        return OnlineDecoder(self.transitions(), self.duration_KC, self.start_C, self.end_C, lag=lag)

    def parameter_penalty(self, p: float = 2.0) -> Tensor:
        """sum |transition|^p + sum |duration|^p; forbidden transitions are not parameters and add nothing."""
        transition_CC: Tensor = self.transition_CC
        if self.forbidden_CC is not None:
            transition_CC = transition_CC.masked_fill(self.forbidden_CC, 0.0)
        return transition_CC.abs().pow(p).sum() + self.duration_KC.abs().pow(p).sum()

    def scores(self, hidden_BTH: Tensor, lengths_B: Tensor | None) -> Tensor:
        """Scores (B, T, C).

        Frames past a sequence's end are zeroed first, because a NaN there must not reach a weight's gradient.
        """
        if lengths_B is not None:
            check_kind_of_lengths(lengths_B, len(hidden_BTH))
        inside_BT = None if lengths_B is None else inside(hidden_BTH.shape[1], lengths_B, hidden_BTH.device)
        kept = (
            hidden_BTH
            if inside_BT is None
            else torch.where(inside_BT[..., None], hidden_BTH, hidden_BTH.new_zeros(()))
        )
        score_BTC = kept if self.projection is None else self.projection(kept)
        if self.after_projection:
            score_BTC = self.after_projection(score_BTC)
        if self.validator:
            self.validator.scores(kept, score_BTC, projected=self.projection is not None)
        if self.poison_padding and inside_BT is not None:
            score_BTC = torch.where(inside_BT[..., None], score_BTC, score_BTC.new_full((), float("nan")))
        return score_BTC

    def log_partition(self, score_BTC: Tensor, lengths_B: Tensor | None) -> Tensor:
        arguments: dict[str, Any] = {"start_C": self.start_C, "end_C": self.end_C, "backend": self.backend}
        transition_CC, duration_KC = self.transitions(), self.duration_KC
        if not self.validator:
            return self.partition(score_BTC, transition_CC, duration_KC, lengths_B, **arguments)
        leaves = [tensor.view_as(tensor) for tensor in (score_BTC, transition_CC, duration_KC)]
        name = backend_name(self.backend, score_BTC)
        watch = CRFWatch(self.validator, leaves, lengths_B, (self.start_C, self.end_C), name)
        logZ_B = self.partition(*leaves, lengths_B, alarm=watch.posteriors, **arguments)
        watch.partition(logZ_B, leaves)
        return logZ_B

    def transitions(self) -> Tensor:
        if self.forbidden_CC is None:
            return self.transition_CC
        return self.transition_CC.masked_fill(self.forbidden_CC, float("-inf"))

    def pieces(
        self, labels_BT: Tensor, starts_BT: Tensor | None, lengths_B: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(starts of pieces no longer than K, which sequences stay in the loss)."""
        if starts_BT is None:
            starts_BT = run_starts(labels_BT)
        else:
            reject_two_labels(labels_BT, starts_BT, lengths_B)
        longest = self.duration_KC.shape[0]
        at_BT = place_in_segment(starts_BT)
        over_BT = at_BT >= longest
        if lengths_B is not None:
            over_BT = over_BT & inside(labels_BT.shape[1], lengths_B, labels_BT.device)
        over_B = over_BT.any(dim=1)
        if self.over_long == "error" and bool(over_B.any()):
            raise ValueError(
                f"{int(over_B.sum())} sequences hold a gold segment longer than max_duration={longest} "
                f"[first b={int(over_B.nonzero()[0])}]: "
                "use over_long='split' or 'mask', or a larger max_duration"
            )
        kept_B = ~over_B if self.over_long == "mask" else torch.ones_like(over_B)
        return at_BT % longest == 0, kept_B

    def magnitudes(self) -> tuple[float, float]:
        """max |transition| and max |duration bias|, of what is allowed."""
        transition_CC = self.transition_CC.detach()
        if self.forbidden_CC is not None:
            transition_CC = transition_CC.masked_fill(self.forbidden_CC, 0.0)
        return float(transition_CC.abs().max()), float(self.duration_KC.detach().abs().max())


def reject_two_labels(labels_BT: Tensor, starts_BT: Tensor, lengths_B: Tensor | None) -> None:
    """Raises ValueError where a label changes inside a segment. On a GPU that would wait: nothing is read."""
    if starts_BT.is_cuda:
        return
    wrong_BT = (labels_BT[:, 1:] != labels_BT[:, :-1]) & ~starts_BT[:, 1:].bool()
    if lengths_B is not None:
        wrong_BT = wrong_BT & inside(labels_BT.shape[1], lengths_B, labels_BT.device)[:, 1:]
    if bool(wrong_BT.any()):
        b, t = wrong_BT.nonzero()[0].tolist()
        raise ValueError(
            f"labels change inside a gold segment [first b={b} t={t + 1}]: mark that frame in starts, "
            "or leave starts out, and segments are maximal runs of labels"
        )


def gold_score(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    labels_BT: Tensor,
    starts_BT: Tensor,
    lengths_B: Tensor | None,
    *,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
) -> Tensor:
    """(B,) float64: the score of the segmentation that labels and segment starts describe; segments are at
    most K long.

    No loop and no read-back: a segment's duration is the index of its last frame within it.
    """
    frames = labels_BT.shape[1]
    lengths_B = (
        labels_BT.new_full((len(labels_BT),), frames)
        if lengths_B is None
        else onto(lengths_B, labels_BT.device)
    )
    inside_BT = inside(frames, lengths_B)
    labels_BT = torch.where(inside_BT, labels_BT, torch.zeros_like(labels_BT))
    content_BT = score_BTC.gather(2, labels_BT[..., None])[..., 0].double()
    last_BT = torch.arange(frames, device=labels_BT.device) == lengths_B[:, None] - 1
    ends_BT = last_BT | torch.cat([starts_BT[:, 1:], torch.zeros_like(starts_BT[:, :1])], dim=1)
    at_BT = place_in_segment(starts_BT).clamp(max=duration_KC.shape[0] - 1)
    before_BT = torch.cat([labels_BT[:, :1], labels_BT[:, :-1]], dim=1)
    later_BT = starts_BT & (torch.arange(frames, device=labels_BT.device) > 0)
    total_B = _summed(content_BT, inside_BT)
    total_B = total_B + _summed(duration_KC[at_BT, labels_BT].double(), ends_BT & inside_BT)
    total_B = total_B + _summed(transition_CC[before_BT, labels_BT].double(), later_BT & inside_BT)
    if start_C is not None:
        total_B = total_B + _summed(
            start_C[labels_BT].double(), inside_BT & ~torch.cumsum(inside_BT, 1).gt(1)
        )
    if end_C is not None:
        total_B = total_B + _summed(end_C[labels_BT].double(), last_BT)
    return total_B


def inside(frames: int, lengths_B: Tensor, device: torch.device | None = None) -> Tensor:
    """(B, T) bool on `device`: frames before each sequence's end. Lengths may lie on the CPU."""
    lengths_B = onto(lengths_B, device or lengths_B.device)
    return torch.arange(frames, device=lengths_B.device) < lengths_B[:, None]


def run_starts(labels_BT: Tensor) -> Tensor:
    """(B, T) bool: where the label differs from the frame before."""
    first = torch.ones_like(labels_BT[:, :1], dtype=torch.bool)
    return torch.cat([first, labels_BT[:, 1:] != labels_BT[:, :-1]], dim=1)


def place_in_segment(starts_BT: Tensor) -> Tensor:
    """(B, T): how many frames each frame lies after the start of its segment."""
    at_T = torch.arange(starts_BT.shape[1], device=starts_BT.device)
    begun_BT = torch.where(starts_BT, at_T, torch.zeros_like(at_T)).cummax(dim=1).values
    return at_T - begun_BT


def _summed(values_BT: Tensor, where_BT: Tensor) -> Tensor:
    # A choice, not a product: -inf times 0 would be NaN.
    return torch.where(where_BT, values_BT, torch.zeros_like(values_BT)).sum(dim=1)
