"""Segmentations as users give them, and the score of one: checked, then one gather per kind of score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import Problem

Segmentation = Sequence[Segment]


def listed(
    value: Tensor | Sequence[Segmentation],
    starts_BT: Tensor | None,
    problem: Problem,
    infeasible: list[bool],
) -> list[list[Segment]]:
    """The segments of each sequence, checked: they tile it, or are none of an infeasible one. UsageError."""
    batch, frames, _, labels = problem.shape
    lengths = problem.lengths_B.tolist()
    if isinstance(value, Tensor):
        for name, marks in (("labels", value), ("starts", starts_BT)):
            if marks is not None and (tuple(marks.shape) != (batch, frames) or marks.is_floating_point()):
                raise UsageError(f"{name} must be {(batch, frames)}, got {marks.dtype} {tuple(marks.shape)}")
        value = segments_of(value, starts_BT, lengths)
    elif starts_BT is not None:
        raise UsageError("starts belong to labels: segments have their own")
    if len(value) != batch:
        raise UsageError(f"one segmentation per sequence: got {len(value)} for {batch}")
    for b, (path, length) in enumerate(zip(value, lengths, strict=True)):
        cursor = 0
        for start, end, label in path:
            if any(int(number) != number for number in (start, end, label)):
                raise UsageError(f"sequence {b}: segment ({start}, {end}, {label}) must be whole numbers")
            if start != cursor or end <= start or not 0 <= label < labels:
                raise UsageError(
                    f"sequence {b}: segment ({start}, {end}, {label}) does not continue a tiling at frame "
                    f"{cursor} with a label in 0..{labels - 1}"
                )
            cursor = end
        if cursor != length and not (infeasible[b] and not path):
            raise UsageError(f"sequence {b}: its segments cover {cursor} of {length} frames")
    return [[(int(start), int(end), int(label)) for start, end, label in path] for path in value]


def segments_of(labels_BT: Tensor, starts_BT: Tensor | None, lengths: list[int]) -> list[list[Segment]]:
    """The maximal runs of one label, or what begins where `starts_BT` is True (and with the first frame).

    Raises UsageError where the label changes inside such a segment.
    """
    begins_BT = torch.ones_like(labels_BT, dtype=torch.bool)
    begins_BT[:, 1:] = labels_BT[:, 1:] != labels_BT[:, :-1] if starts_BT is None else starts_BT[:, 1:] != 0
    paths: list[list[Segment]] = []
    for labels_T, begins_T, length in zip(labels_BT.tolist(), begins_BT.tolist(), lengths, strict=True):
        starts = [t for t in range(length) if begins_T[t]]
        ends = [*starts[1:], length]
        inside = next((t for t in range(1, length) if not begins_T[t] and labels_T[t] != labels_T[t - 1]), 0)
        if inside:
            raise UsageError(
                f"sequence {len(paths)}: the label changes inside a segment, at frame {inside}",
                fix="mark that frame in starts, or leave starts out",
            )
        paths.append([(s, e, labels_T[s]) for s, e in zip(starts, ends, strict=True)])
    return paths


def path_scores(problem: Problem, paths: list[list[Segment]]) -> Tensor:
    """The score of one segmentation of each sequence, (B,) float64, differentiable; -inf beyond K frames."""
    longest, device = problem.shape[2], problem.score_BTC.device
    rows = [(b, n, *segment) for b, path in enumerate(paths) for n, segment in enumerate(path)]
    table = torch.tensor(rows, dtype=torch.int64, device=device).reshape(-1, 5)
    b, nth, start, end, label = table.unbind(1)
    final = torch.cat([nth[1:], nth.new_zeros(1)])[: len(nth)] == 0
    duration = end - start
    k = duration.clamp(max=longest) - 1
    total_B = torch.zeros_like(problem.lengths_B, dtype=torch.float64)
    frames_b = b.repeat_interleave(duration)
    frames = [t for path in paths if path for t in range(path[-1][1])]
    frames_t = torch.tensor(frames, dtype=torch.int64, device=device)
    content = problem.score_BTC[frames_b, frames_t, label.repeat_interleave(duration)]
    joined = (nth > 0).nonzero()[:, 0]
    pair = (label[joined - 1], label[joined])
    row = (b[joined], start[joined]) if problem.per_frame else (k[joined],) if problem.by_duration else ()
    scores = [
        (frames_b, content),
        (b, problem.duration_KC[k, label].masked_fill(duration > longest, -torch.inf)),
        (b[joined], problem.transition[row + pair]),
        (b[nth == 0], problem.start_C[label[nth == 0]]),
        (b[final], problem.end_C[label[final]]),
    ]
    if problem.seg_start_BTC is not None:
        scores.append((b, problem.seg_start_BTC[b, start, label]))
    if problem.seg_end_BTC is not None:
        scores.append((b, problem.seg_end_BTC[b, end - 1, label]))
    if problem.segment_BTKC is not None:
        scores.append((b, problem.segment_BTKC[b, start, k, label]))
    for row_n, value_n in scores:
        total_B = total_B.index_add(0, row_n, value_n.double())
    return total_B
