"""The semi-CRF as a module: projection, partition and gold path of one model, decoding, and its penalty.

Gold path and partition share one definition of the score, so exp(-loss) is a probability.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lab.errors import UsageError
from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.distribution import SegmentDistribution
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import (
    FAR_BELOW,
    FLOATS,
    highest_forbidden,
    inside,
    levelled,
    onto,
    transforming,
    whole_lengths,
)
from lab.rooms.semicrf.model.segments import gold_score, index_in_segment, reject_labels, run_starts
from lab.rooms.semicrf.model.validation import CRFWatch, Validator

Partition = Callable[..., Tensor]
IGNORED = -100
"""The label of frames that torch's own losses leave out; here padding."""
SEGMENT_TERMS = FLOATS[5:]
REDUCTIONS = ("mean", "sum", "none", "token_mean")


@dataclass(frozen=True)
class Decoded:
    """The best segmentation of one sequence: `segments` as (start, end_exclusive, label)."""

    score: float
    segments: list[Segment]


class SemiCRF(nn.Module):
    """A semi-Markov CRF over `num_classes` labels and durations 1..`max_duration` (K = 1: a linear CRF).

    With `hidden_dim` a linear projection makes the scores; without, the input is the scores. `allowed_CC`
    (bool) is a grammar: transitions that are not allowed are -inf, with gradient 0. `duration_prior`, (K,) or
    (K, C), holds fixed scores of durations, such as log probabilities, to which the learned ones are added.
    A gold segment longer than K is split into pieces of K joined by self-transitions (or is an error, or
    takes its sequence out of the loss). `validate` turns the validation points on.

    Every call takes the terms of single segments by name: `seg_start_BTC` of segments that start with a
    frame, `seg_end_BTC` of those that end with it, `segment_BTKC` of one segment, as model/problem.py says.
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
        duration_prior: Tensor | None = None,
        validate: bool = False,
    ) -> None:
        super().__init__()
        if num_classes < 1 or max_duration < 1:
            raise ValueError(
                f"num_classes and max_duration must be at least 1, got {num_classes} and {max_duration}"
            )
        if over_long not in ("split", "error", "mask"):
            raise ValueError(f"over_long must be split, error or mask, got {over_long!r}")
        pairs, lasting = (num_classes, num_classes), (max_duration, num_classes)
        if allowed_CC is not None:
            if tuple(allowed_CC.shape) != pairs:
                raise ValueError(f"allowed_CC must be {pairs}, got {tuple(allowed_CC.shape)}")
            allowed_CC = ~allowed_CC.bool()
        if duration_prior is not None:
            if tuple(duration_prior.shape) not in (lasting[:1], lasting):
                shape = tuple(duration_prior.shape)
                raise ValueError(f"duration_prior must be {lasting[:1]} or {lasting}, got {shape}")
            duration_prior = duration_prior.detach().float().reshape(max_duration, -1).expand(lasting).clone()
        self.projection = nn.Linear(hidden_dim, num_classes) if hidden_dim is not None else None
        self.transition_CC = nn.Parameter(0.1 * torch.randn(pairs))
        self.duration_KC = nn.Parameter(0.1 * torch.randn(lasting))
        self.start_C = nn.Parameter(torch.zeros(num_classes))
        self.end_C = nn.Parameter(torch.zeros(num_classes))
        self.forbidden_CC: Tensor | None
        self.register_buffer("forbidden_CC", allowed_CC)
        self.prior_KC: Tensor | None
        self.register_buffer("prior_KC", duration_prior)
        self.backend, self.over_long = backend, over_long
        self.validator = Validator() if validate else None
        self.partition: Partition = api.log_partition  # diagnose puts a planted fault here
        self.gold: Partition = gold_score
        self.poison_padding = False  # diagnose: NaN where no kernel may look

    def forward(
        self,
        hidden_BTH: Tensor,
        lengths_B: Tensor | None = None,
        labels_BT: Tensor | None = None,
        starts_BT: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: str = "mean",
        **terms: Tensor | None,
    ) -> Any:
        """Loss with labels; without, {"partition": logZ_B, "scores": score_BTC}."""
        if labels_BT is not None:
            options: Any = {"mask": mask, "ignore_index": ignore_index, "reduction": reduction, **terms}
            return self.loss(hidden_BTH, lengths_B, labels_BT, starts_BT, **options)
        lengths_B = lengths_of(hidden_BTH, lengths_B, mask)
        score_BTC = self.scores(hidden_BTH, lengths_B)
        return {"partition": self.log_partition(score_BTC, lengths_B, **terms), "scores": score_BTC}

    def loss(
        self,
        hidden_BTH: Tensor,
        lengths_B: Tensor | None,
        labels_BT: Tensor,
        starts_BT: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: str = "mean",
        **terms: Tensor | None,
    ) -> Tensor:
        """Negative log-likelihood, mean over sequences (or "sum", "none": (B,), "token_mean": per frame).

        A sequence ends by its length, by `mask` (B, T), which is True on its frames, or, where neither is
        given, before the `ignore_index` at the end of its labels. `starts_BT` (bool) marks the first frame of
        each gold segment; without it segments are maximal runs of labels.

        Raises UsageError and ValueError for arguments that do not fit, a label out of range, and with
        `over_long="error"` a gold segment longer than K. A gold path that the model forbids has an infinite
        loss, which the validation points name.
        """
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
        shape = tuple(hidden_BTH.shape[:2])
        for name, value in (("labels", labels_BT), ("starts", starts_BT)):
            if value is not None and hidden_BTH.dim() == 3 and tuple(value.shape) != shape:
                raise ValueError(f"{name} must be {shape} as the hidden states are, got {tuple(value.shape)}")
            if value is not None and (value.is_floating_point() or value.is_complex()):
                raise UsageError(f"{name} must be integers or bool, got {value.dtype}")
        labels_BT = labels_BT.long()
        lengths_B = lengths_of(hidden_BTH, lengths_B, mask)
        if lengths_B is None:
            lengths_B = labelled_lengths(labels_BT, ignore_index)
        if self.validator:
            self.validator.inputs(hidden_BTH, lengths_B, labels_BT, len(self.transition_CC))
        score_BTC = self.scores(hidden_BTH, lengths_B)
        score_BTC = levelled(score_BTC, max(FAR_BELOW, highest_forbidden(score_BTC.dtype)))
        log_z_B = self.log_partition(score_BTC, lengths_B, **terms)
        starts_BT = None if starts_BT is None else starts_BT.bool()
        # Reads values, and the partition has waited for the GPU.
        reject_labels(labels_BT, lengths_B, len(self.transition_CC), starts_BT)
        starts_BT, used_B = self.pieces(labels_BT, starts_BT, lengths_B)
        model = self.model(**terms)
        gold_B = self.gold(score_BTC, labels_BT=labels_BT, starts_BT=starts_BT, lengths_B=lengths_B, **model)
        if self.validator:
            watched_B = torch.where(used_B, gold_B, torch.zeros_like(gold_B))
            values = {"score_BTC": score_BTC, **model}
            self.validator.gold(watched_B, values, labels_BT, starts_BT, lengths_B)
        nll_B = torch.where(torch.isneginf(gold_B), torch.inf, log_z_B.double() - gold_B)
        nll_B = torch.where(used_B, nll_B, torch.zeros_like(nll_B))
        if reduction == "none":
            return nll_B
        if reduction == "sum":
            return nll_B.sum()
        count = used_B.sum()
        if reduction == "token_mean":
            frames_B = shape[1] if lengths_B is None else onto(lengths_B, used_B.device)
            count = (frames_B * used_B).sum()
        # Where every sequence left the loss it is 0, not NaN.
        return nll_B.sum() / count.clamp(min=1)

    @torch.no_grad()
    def decode(
        self,
        hidden_BTH: Tensor,
        lengths_B: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        per_frame: bool = False,
        **terms: Tensor | None,
    ) -> Any:
        """The best segmentations, [Decoded, ...]; with `per_frame` labels (B, T) int64, -100 in the padding
        and where nothing is feasible.
        """
        p = self.distribution(hidden_BTH, lengths_B, mask=mask, **terms)
        scores_B, segments = api.viterbi(p.problem, backend=self.backend)
        if not per_frame:
            return list(map(Decoded, scores_B.tolist(), segments))
        labels_BT = torch.full(hidden_BTH.shape[:2], IGNORED)
        for row_T, path in zip(labels_BT, segments, strict=True):
            for start, end, label in path:
                row_T[start:end] = label
        return labels_BT.to(hidden_BTH.device)

    @torch.no_grad()
    def sample(
        self,
        hidden_BTH: Tensor,
        lengths_B: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        samples: int = 1,
        generator: torch.Generator | None = None,
        **terms: Tensor | None,
    ) -> list[list[list[Segment]]]:
        """`samples` exact, independent draws for every sequence; see `api.sample`."""
        return self.distribution(hidden_BTH, lengths_B, mask=mask, **terms).sample(samples, generator)

    def distribution(
        self,
        hidden_BTH: Tensor,
        lengths_B: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        **terms: Tensor | None,
    ) -> SegmentDistribution:
        """The distribution over segmentations, differentiable as the loss is."""
        lengths_B = lengths_of(hidden_BTH, lengths_B, mask)
        score_BTC, model = self.scores(hidden_BTH, lengths_B), self.model(**terms)
        transition_CC = model.pop("transition_CC")
        return SegmentDistribution(
            score_BTC, transition_CC, lengths_B=lengths_B, backend=self.backend, **model
        )

    def model(self, **terms: Tensor | None) -> dict[str, Any]:
        """All but the scores of frames, by the names of api.py. Raises UsageError for an unknown term."""
        unknown = sorted(set(terms) - set(SEGMENT_TERMS))
        if unknown:
            raise UsageError(f"no argument {', '.join(unknown)}", fix=f"terms are {', '.join(SEGMENT_TERMS)}")
        return {
            "transition_CC": self.transitions(),
            "duration_KC": self.durations(),
            "start_C": self.start_C,
            "end_C": self.end_C,
            **{name: value for name, value in terms.items() if value is not None},
        }

    def parameter_penalty(self, p: float = 2.0) -> Tensor:
        """sum |transition|^p + sum |duration|^p; forbidden transitions are not parameters and add nothing."""
        return self.transitions(0.0).abs().pow(p).sum() + self.duration_KC.abs().pow(p).sum()

    def scores(self, hidden_BTH: Tensor, lengths_B: Tensor | None) -> Tensor:
        """Scores (B, T, C). Frames past a sequence's end are zeroed first, because a NaN there must not reach
        a weight's gradient.
        """
        frames_BTH, inside_BT1 = hidden_BTH, None
        if lengths_B is not None:
            lengths_B = whole_lengths(lengths_B, len(hidden_BTH))
            inside_BT1 = inside(hidden_BTH.shape[1], lengths_B, hidden_BTH.device)[..., None]
            frames_BTH = torch.where(inside_BT1, hidden_BTH, hidden_BTH.new_zeros(()))
        score_BTC = frames_BTH if self.projection is None else self.projection(frames_BTH)
        if self.validator:
            self.validator.scores(frames_BTH, score_BTC, projected=self.projection is not None)
        if self.poison_padding and inside_BT1 is not None:
            score_BTC = torch.where(inside_BT1, score_BTC, score_BTC.new_full((), float("nan")))
        return score_BTC

    def log_partition(self, score_BTC: Tensor, lengths_B: Tensor | None, **terms: Tensor | None) -> Tensor:
        model = {"score_BTC": score_BTC, **self.model(**terms)}
        if not self.validator:
            return self.partition(**model, lengths_B=lengths_B, backend=self.backend)
        model = {name: value.view_as(value) for name, value in model.items()}
        resolved = api.resolve_backend(self.backend, score_BTC)
        watch = CRFWatch(self.validator, model, lengths_B, resolved)
        log_z_B = self.partition(**model, lengths_B=lengths_B, backend=self.backend, alarm=watch.posteriors)
        watch.partition(log_z_B, model)
        return log_z_B

    def transitions(self, forbidden: float = -torch.inf) -> Tensor:
        if self.forbidden_CC is None:
            return self.transition_CC
        return self.transition_CC.masked_fill(self.forbidden_CC, forbidden)

    def durations(self) -> Tensor:
        return self.duration_KC if self.prior_KC is None else self.duration_KC + self.prior_KC

    def pieces(
        self, labels_BT: Tensor, starts_BT: Tensor | None, lengths_B: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(starts of pieces no longer than K, which sequences stay in the loss)."""
        longest = self.duration_KC.shape[0]
        index_BT = index_in_segment(run_starts(labels_BT) if starts_BT is None else starts_BT)
        over_BT = index_BT >= longest
        if lengths_B is not None:
            over_BT = over_BT & inside(labels_BT.shape[1], lengths_B, labels_BT.device)
        over_B = over_BT.any(dim=1)
        if self.over_long == "error" and bool(over_B.any()):
            place = f"[first b={int(over_B.nonzero()[0])}]"
            raise ValueError(
                f"{int(over_B.sum())} sequences hold a gold segment longer than max_duration={longest} "
                f"{place}: use over_long='split' or 'mask', or a larger max_duration"
            )
        return index_BT % longest == 0, ~over_B | (self.over_long != "mask")

    def magnitudes(self) -> tuple[float, float]:
        """max |transition| and max |duration bias|, of what is allowed."""
        values = (self.transitions(0.0), self.duration_KC)
        transition, duration = (float(value.detach().abs().max()) for value in values)
        return transition, duration


def lengths_of(hidden_BTH: Tensor, lengths_B: Tensor | None, mask_BT: Tensor | None) -> Tensor | None:
    """The lengths, or those that a mask means. Raises UsageError and ValueError."""
    if mask_BT is None:
        return None if lengths_B is None else whole_lengths(lengths_B, len(hidden_BTH))
    if lengths_B is not None:
        raise UsageError("lengths and mask both say where sequences end", fix="give one of them")
    if mask_BT.shape != hidden_BTH.shape[:2]:
        raise UsageError(f"mask must be {tuple(hidden_BTH.shape[:2])}, got {tuple(mask_BT.shape)}")
    mask_BT = mask_BT != 0
    lengths_B = mask_BT.sum(1)
    holes_BT = mask_BT != inside(mask_BT.shape[1], lengths_B)
    if bool(holes_BT.any()):
        b, t = holes_BT.nonzero()[0].tolist()
        raise ValueError(
            f"the mask of sequence {b} is not one run from its first frame [first b={b} t={t}]: "
            "take masked frames out of the middle, and pad at the end"
        )
    return lengths_B


def labelled_lengths(labels_BT: Tensor, ignore_index: int) -> Tensor | None:
    """The frames before the ignored labels at the end of each sequence; None where there are none."""
    frames = labels_BT.shape[1]
    labelled_BT = labels_BT != ignore_index
    if transforming() or bool(labelled_BT[:, -1].all()):
        return None
    return (labelled_BT * torch.arange(1, frames + 1, device=labels_BT.device)).amax(1)
