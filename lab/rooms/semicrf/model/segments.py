"""Segmentations as users give them, and the score of one: one gather per kind of score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import Problem, highest_forbidden, inside, onto, transforming

Segmentation = Sequence[Segment]


def marked(
    value: Sequence[Segmentation], problem: Problem, infeasible_B: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(labels, starts), (B, T), of one segmentation of each sequence, which tiles it, or is empty where
    nothing is feasible. Raises UsageError.
    """
    batch, frames, _, labels = problem.shape
    if len(value) != batch:
        raise UsageError(f"one segmentation per sequence: got {len(value)} for {batch}")
    labels_BT = torch.zeros(batch, frames, dtype=torch.int64, device="cpu")
    starts_BT = torch.zeros(batch, frames, dtype=torch.bool, device="cpu")
    for b, (path, length) in enumerate(zip(value, problem.lengths_B.tolist(), strict=True)):
        cursor = 0
        for start, end, label in path:
            if any(int(number) != number for number in (start, end, label)):
                raise UsageError(f"sequence {b}: segment ({start}, {end}, {label}) must be whole numbers")
            if start != cursor or end <= start or not 0 <= label < labels:
                raise UsageError(
                    f"sequence {b}: segment ({start}, {end}, {label}) does not continue a tiling at frame "
                    f"{cursor} with a label in 0..{labels - 1}"
                )
            if end <= length:
                labels_BT[b, int(start) : int(end)], starts_BT[b, int(start)] = int(label), True
            cursor = int(end)
        empty = infeasible_B is not None and bool(infeasible_B[b]) and not path
        if cursor != length and not empty:
            raise UsageError(f"sequence {b}: its segments cover {cursor} of {length} frames")
    return labels_BT, starts_BT


def reject_labels(
    labels_BT: Tensor, lengths_B: Tensor | None, classes: int, starts_BT: Tensor | None
) -> None:
    """Raise ValueError for the first label of a sequence that is out of range, or that changes inside a
    segment, where starts are given. torch.func, which takes no branch, refuses nothing.
    """
    if transforming():
        return
    wrong_BT = outside_BT = (labels_BT < 0) | (labels_BT >= classes)
    if starts_BT is not None:
        wrong_BT = outside_BT.clone()
        wrong_BT[:, 1:] |= (labels_BT[:, 1:] != labels_BT[:, :-1]) & ~starts_BT[:, 1:]
    if lengths_B is not None:
        wrong_BT = wrong_BT & inside(labels_BT.shape[1], lengths_B, labels_BT.device)
    if not bool(wrong_BT.any()):
        return
    b, t = wrong_BT.nonzero()[0].tolist()
    if not outside_BT[b, t]:
        raise ValueError(
            f"labels change inside a gold segment [first b={b} t={t}]: mark that frame in starts, "
            "or leave starts out, and segments are maximal runs of labels"
        )
    raise ValueError(
        f"label {int(labels_BT[b, t])} at b={b} t={t} is not in [0, {classes}): frames without a label "
        "can only be left out at the end of a sequence"
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
    seg_start_BTC: Tensor | None = None,
    seg_end_BTC: Tensor | None = None,
    segment_BTKC: Tensor | None = None,
) -> Tensor:
    """(B,) float64: the score of the segmentation that labels and segment starts describe.

    No loop and no read-back: a segment's duration is the index of its last frame within it.
    """
    whole_B = labels_BT.new_full((len(labels_BT),), labels_BT.shape[1])
    lengths_B = whole_B if lengths_B is None else onto(lengths_B, labels_BT.device)
    frame_T = torch.arange(labels_BT.shape[1], device=labels_BT.device)
    inside_BT, last_BT = frame_T < lengths_B[:, None], frame_T == lengths_B[:, None] - 1
    labels_BT = torch.where(inside_BT, labels_BT, torch.zeros_like(labels_BT))
    starts_BT = (starts_BT | (frame_T == 0)) & inside_BT  # the first segment starts, marked or not
    ends_BT = last_BT | (torch.cat([starts_BT[:, 1:], torch.zeros_like(starts_BT[:, :1])], 1) & inside_BT)
    # Whether a longer segment is allowed is the caller's matter: here its index has to stay in the table.
    index_BT = index_in_segment(starts_BT).clamp(max=duration_KC.shape[0] - 1)
    previous_BT = torch.cat([labels_BT[:, :1], labels_BT[:, :-1]], dim=1)

    def of_label(value_BTC: Tensor) -> Tensor:
        return value_BTC.gather(2, labels_BT[..., None])[..., 0]

    terms = [
        (of_label(score_BTC), inside_BT),
        (duration_KC[index_BT, labels_BT], ends_BT),
        (transition_CC[previous_BT, labels_BT], starts_BT & (frame_T > 0)),
    ]
    terms += [] if start_C is None else [(start_C[labels_BT], inside_BT & (frame_T == 0))]
    terms += [] if end_C is None else [(end_C[labels_BT], last_BT)]
    terms += [] if seg_start_BTC is None else [(of_label(seg_start_BTC), starts_BT)]
    terms += [] if seg_end_BTC is None else [(of_label(seg_end_BTC), ends_BT)]
    if segment_BTKC is not None:
        row_B1 = torch.arange(len(labels_BT), device=labels_BT.device)[:, None]
        terms.append((segment_BTKC[row_B1, frame_T - index_BT, index_BT, labels_BT], ends_BT))
    total_B = torch.zeros_like(whole_B, dtype=torch.float64)
    for value_BT, where_BT in terms:  # a choice, not a product: -inf times 0 would be NaN
        forbidden_BT = value_BT <= highest_forbidden(value_BT.dtype)
        value_BT = value_BT.double().masked_fill(forbidden_BT, -torch.inf)
        total_B = total_B + torch.where(where_BT, value_BT, torch.zeros_like(value_BT)).sum(dim=1)
    return total_B


def run_starts(labels_BT: Tensor) -> Tensor:
    """(B, T) bool: where the label differs from the frame before."""
    leading = torch.ones_like(labels_BT[:, :1], dtype=torch.bool)
    return torch.cat([leading, labels_BT[:, 1:] != labels_BT[:, :-1]], dim=1)


def index_in_segment(starts_BT: Tensor) -> Tensor:
    """(B, T): how many frames each frame lies after the start of its segment."""
    frame_T = torch.arange(starts_BT.shape[1], device=starts_BT.device)
    begun_BT = torch.where(starts_BT, frame_T, torch.zeros_like(frame_T)).cummax(dim=1).values
    return frame_T - begun_BT
