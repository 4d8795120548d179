"""The reference implementation: the semi-CRF in float64 from its definition, and by enumeration in tiny
cases.

Nothing here is optimised. `log_partition` is one logsumexp over all (duration, previous label) for each
position and label, differentiated by autograd; `enumerate_segmentations` lists every segmentation one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import Posteriors, Problem, frames_masked, unknown

Segment = tuple[int, int, int]
"""(start, end exclusive, label), in frames."""


def safe_logsumexp(value: Tensor, dim: int) -> Tensor:
    """logsumexp whose value is -inf and whose gradient is 0, never NaN, where all entries are -inf."""
    top = value.detach().amax(dim, keepdim=True)
    shift = torch.where(torch.isfinite(top), top, torch.zeros_like(top))
    total = (value - shift).exp().sum(dim)
    none = total == 0
    log = torch.where(none, torch.ones_like(total), total).log() + shift.squeeze(dim)
    return torch.where(none, torch.full_like(total, -float("inf")), log)


def log_partition(problem: Problem) -> Tensor:
    """log Z (B,), float64, differentiable: alpha[t, c] from all alpha[t-k, c'] as the definition says."""
    unknown_B = unknown(problem)
    return torch.stack(
        [
            _nan(problem, b) if unknown_B[b] else _log_partition_one(problem, b)
            for b in range(problem.shape[0])
        ]
    )


def _nan(problem: Problem, b: int) -> Tensor:
    """NaN, whose gradient by every input is NaN, and 0 where the incoming one is."""
    total = torch.stack([problem.score_BTC[b].sum(), *(value.sum() for value in problem.floats()[1:])]).sum()
    if total.requires_grad:
        total.register_hook(lambda grad: grad * math.nan if grad else grad)  # type: ignore[no-untyped-call]
    return total.double() + math.nan


def _log_partition_one(problem: Problem, b: int, marks: Tensor | None = None) -> Tensor:
    """log Z of sequence `b`.

    `marks` (2, T, C) is added to the score of a segment that starts, or ends, there.
    """
    _, _, longest, labels = problem.shape
    score_TC = frames_masked(problem)[b]
    # Common to all segmentations, so taking it out is exact; 1e30 would swallow every difference beside it.
    top_T = tops(problem, b)
    score_TC = score_TC - top_T[:, None]
    starts_TC, ends_TC = torch.zeros_like(score_TC).expand(2, -1, -1) if marks is None else marks
    transition_KCC = problem.transition.double().expand(longest, labels, labels)
    duration_KC = problem.duration_KC.double()
    alpha: list[Tensor] = []  # alpha[t - 1] belongs to boundary t
    for t in range(1, int(problem.lengths_B[b]) + 1):
        arcs = []
        for k in range(1, min(longest, t) + 1):
            segment_C = score_TC[t - k : t].sum(0) + duration_KC[k - 1] + starts_TC[t - k] + ends_TC[t - 1]
            if k == t:
                arcs.append(segment_C + problem.start_C.double())
            else:
                arcs.append(segment_C + safe_logsumexp(alpha[t - k - 1][:, None] + transition_KCC[k - 1], 0))
        alpha.append(safe_logsumexp(torch.stack(arcs), 0))
    return safe_logsumexp(alpha[-1] + problem.end_C.double(), 0) + math.fsum(top_T[: len(alpha)].tolist())


LARGE = 1e6
"""Scores beyond it would leave too few digits of float64 to what stands beside them."""


@torch.enable_grad()
def tops(problem: Problem, b: int) -> Tensor:
    """The largest score of each frame (T,) among labels that a segmentation gives it; 0 if none is large."""
    score_TC = frames_masked(problem)[b].detach()
    large = torch.nan_to_num(score_TC, nan=0, posinf=0, neginf=0).abs() > LARGE
    if not bool(large.any()):
        return torch.zeros_like(score_TC[:, 0])
    score_BTC, transition, duration_KC, start_C, end_C = (
        torch.where(torch.isneginf(value), value.double(), torch.zeros_like(value, dtype=torch.float64))
        for value in problem.detached().floats()
    )
    score_BTC.requires_grad_()
    counted = Problem(score_BTC, transition, duration_KC, problem.lengths_B, start_C, end_C)
    log_count = _log_partition_one(counted, b)
    if not bool(torch.isfinite(log_count)):
        return torch.zeros_like(score_TC[:, 0])
    (share_BTC,) = torch.autograd.grad(log_count, score_BTC)
    top_T = score_TC.masked_fill(share_BTC[b] == 0, -float("inf")).amax(-1)
    return torch.where(torch.isfinite(top_T), top_T, torch.zeros_like(top_T))


@torch.enable_grad()
def posteriors(problem: Problem) -> Posteriors:
    """All expected counts by autograd, sequence by sequence."""
    plain, unknown_B = problem.detached(), unknown(problem)
    done = []
    for b in range(problem.shape[0]):
        values = [value.double().requires_grad_() for value in plain.floats()[:3]]
        one = replace(plain, score_BTC=values[0], transition=values[1], duration_KC=values[2])
        marks = torch.zeros(2, *problem.score_BTC.shape[1:], dtype=torch.float64).requires_grad_()
        log_z = _nan(one, b) if unknown_B[b] else _log_partition_one(one, b, marks)
        grads = [torch.full_like(value, math.nan if unknown_B[b] else 0.0) for value in (*values, marks)]
        if bool(torch.isfinite(log_z)):
            found = torch.autograd.grad(log_z, (*values, marks), allow_unused=True)
            grads = [g if f is None else f for g, f in zip(grads, found, strict=True)]
        done.append((log_z.detach(), grads[0][b], grads[3][0], grads[3][1], grads[2], grads[1]))
    counts = [torch.stack(column) for column in zip(*done, strict=True)]
    counts += mass(counts[1], problem.lengths_B, counts[0])
    return Posteriors(*counts)


def segmentations(length: int, longest: int, labels: int) -> Iterator[list[Segment]]:
    """Every way to tile `length` frames with labelled segments of at most `longest` frames."""
    if length == 0:
        yield []
        return
    for duration in range(1, min(longest, length) + 1):
        for head in segmentations(length - duration, longest, labels):
            for label in range(labels):
                yield [*head, (length - duration, length, label)]


def path_score(problem: Problem, b: int, path: list[Segment]) -> Tensor:
    """The score of one segmentation of sequence `b`, a float64 scalar."""
    longest, labels = problem.duration_KC.shape
    transition_KCC = problem.transition.double().expand(longest, labels, labels)
    score_TC = problem.score_BTC[b].double()
    total = problem.start_C.double()[path[0][2]] + problem.end_C.double()[path[-1][2]]
    previous = None
    for start, end, label in path:
        total = (
            total + score_TC[start:end, label].sum() + problem.duration_KC.double()[end - start - 1, label]
        )
        if previous is not None:
            total = total + transition_KCC[end - start - 1, previous, label]
        previous = label
    return total


def enumerate_segmentations(problem: Problem, b: int) -> tuple[list[list[Segment]], Tensor]:
    """All segmentations of sequence `b` and their scores (N,).

    Only for tiny cases: N grows like (C + 1)^L.
    """
    _, _, longest, labels = problem.shape
    paths = list(segmentations(int(problem.lengths_B[b]), longest, labels))
    return paths, torch.stack([path_score(problem, b, path) for path in paths])


def viterbi(problem: Problem) -> tuple[Tensor, list[list[Segment]]]:
    """The best score (B,) and segmentation of each sequence; ties: smallest duration, then smallest label."""
    nothing: tuple[float, list[Segment]] = (math.nan, [])
    unknown_B = unknown(problem)
    done = [nothing if unknown_B[b] else _viterbi_one(problem, b) for b in range(problem.shape[0])]
    return torch.tensor([score for score, _ in done], dtype=torch.float64), [path for _, path in done]


def _viterbi_one(problem: Problem, b: int) -> tuple[float, list[Segment]]:
    _, _, longest, labels = problem.shape
    length = int(problem.lengths_B[b])
    score_TC = problem.score_BTC[b].double().tolist()
    transition_KCC = problem.transition.double().expand(longest, labels, labels).tolist()
    duration_KC = problem.duration_KC.double().tolist()
    best: dict[tuple[int, int], tuple[float, int, int]] = {}
    for t in range(1, length + 1):
        for label in range(labels):
            best[t, label] = (-float("inf"), 0, -1)
            content = 0.0
            for k in range(1, min(longest, t) + 1):
                content += score_TC[t - k][label]
                if k == t:
                    found, before = float(problem.start_C[label]), -1
                else:
                    found, before = max(
                        ((best[t - k, c][0] + transition_KCC[k - 1][c][label], c) for c in range(labels)),
                        key=lambda pair: pair[0],
                    )
                value = found + content + duration_KC[k - 1][label]
                if value > best[t, label][0]:
                    best[t, label] = (value, k, before)
    end = [best[length, c][0] + float(problem.end_C[c]) for c in range(labels)]
    label = max(range(labels), key=end.__getitem__)
    if end[label] == -float("inf"):
        return end[label], []
    path: list[Segment] = []
    t, score = length, end[label]
    while t > 0:
        _, k, before = best[t, label]
        path.append((t - k, t, label))
        t, label = t - k, before
    return score, path[::-1]
