"""The reference implementation: the semi-CRF in float64 from its definition, and by enumeration in tiny
cases.

Nothing here is optimised. `log_partition` is one logsumexp over all (duration, previous label) for each
position and label, differentiated by autograd; `enumerate_segmentations` lists every segmentation one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import Posteriors, Problem, frames_masked
from lab.rooms.semicrf.model.terms import Terms, unknown

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


def best(value: Tensor, dim: int) -> Tensor:
    """The largest; its gradient goes to the first of equals."""
    return value.max(dim).values


Sum = Callable[[Tensor, int], Tensor]


def log_partition(problem: Problem, over: Sum = safe_logsumexp) -> Tensor:
    """log Z (B,), float64, differentiable: alpha[t, c] from all alpha[t-k, c'] as the definition says."""
    unknown_B = unknown(Terms(problem))
    each = (
        _nan(problem.rows([b])) if unknown_B[b] else _log_partition_one(problem, b, over)
        for b in range(problem.shape[0])
    )
    return torch.stack(list(each))


def _nan(problem: Problem) -> Tensor:
    """NaN, whose gradient by every input is NaN, and 0 where the incoming one is."""
    total = torch.stack([value.sum().double() for value in problem.floats()]).sum()
    if total.requires_grad:
        total.register_hook(lambda grad: torch.where(grad == 0, grad, grad * math.nan))  # type: ignore[no-untyped-call]
    return total + math.nan


def _log_partition_one(problem: Problem, b: int, over: Sum = safe_logsumexp) -> Tensor:
    """log Z of sequence `b`."""
    score_TC = frames_masked(problem)[b]
    # Common to all segmentations, so taking it out is exact; 1e30 would swallow every difference beside it.
    top_T = tops(problem, b)
    score_TC = score_TC - top_T[:, None]
    start_C, end_C = problem.start_C.double(), problem.end_C.double()
    alpha: list[Tensor] = []  # alpha[t - 1] belongs to boundary t
    for t in range(1, int(problem.lengths_B[b]) + 1):
        arcs = []
        for s in range(t - 1, max(t - problem.shape[2], 0) - 1, -1):
            segment_C = score_TC[s:t].sum(0) + segment_score(problem, b, s, t)
            if s == 0:
                arcs.append(segment_C + start_C)
            else:
                before_C1 = alpha[s - 1][:, None]
                into_CC = transition_score(problem, b, s, t).double()
                arcs.append(segment_C + over(before_C1 + into_CC, 0))
        alpha.append(over(torch.stack(arcs), 0))
    return over(alpha[-1] + end_C, 0) + math.fsum(top_T[: len(alpha)].tolist())


def segment_score(problem: Problem, b: int, s: int, t: int) -> Tensor:
    """What a segment over the frames s..t-1 of sequence `b` adds beside them, for each label: (C,)."""
    total_C = problem.duration_KC.double()[t - s - 1]
    if problem.seg_start_BTC is not None:
        total_C = total_C + problem.seg_start_BTC[b, s].double()
    if problem.seg_end_BTC is not None:
        total_C = total_C + problem.seg_end_BTC[b, t - 1].double()
    if problem.segment_BTKC is not None:
        total_C = total_C + problem.segment_BTKC[b, s, t - s - 1].double()
    return total_C


def transition_score(problem: Problem, b: int, s: int, t: int) -> Tensor:
    """The transition (C, C) into a segment over the frames s..t-1 of sequence `b`."""
    if problem.per_frame:
        return problem.transition[b, s]
    return problem.transition[t - s - 1] if problem.by_duration else problem.transition


LARGE = 1e6
"""Scores beyond it would leave too few digits of float64 to what stands beside them."""


def tops(problem: Problem, b: int) -> Tensor:
    """The largest score of each frame (T,) among labels that a segmentation gives it; 0 if none is large."""
    one = problem.detached().rows([b])
    score_TC = frames_masked(one)[0]
    large = torch.nan_to_num(score_TC, nan=0, posinf=0, neginf=0).abs() > LARGE
    return log_domain.tops(one)[0] if bool(large.any()) else torch.zeros_like(score_TC[:, 0])


@torch.enable_grad()
def posteriors(problem: Problem) -> Posteriors:
    """All expected counts by autograd, sequence by sequence."""
    plain = problem.detached()
    done = [_counts_of_one(plain.rows([b])) for b in range(problem.shape[0])]
    log_z_B, *counts = (torch.cat(column) for column in zip(*done, strict=True))
    checked = mass(counts[0], problem.lengths_B, log_z_B)
    return Posteriors.of_parts([log_z_B, *counts, *checked])


def _counts_of_one(problem: Problem, over: Sum = safe_logsumexp) -> list[Tensor]:
    """log Z and the counts of a batch of one, in the order of `Posteriors`: zeros where nothing fits."""
    zero_BTC = torch.zeros_like(problem.score_BTC)
    opens, closes = (
        zero_BTC if value is None else value for value in (problem.seg_start_BTC, problem.seg_end_BTC)
    )
    problem = replace(problem, seg_start_BTC=opens, seg_end_BTC=closes)
    names = ["score_BTC", "seg_start_BTC", "seg_end_BTC", "duration_KC", "transition"]
    names += ["segment_BTKC"] if problem.segment_BTKC is not None else []
    values = [getattr(problem, name).double().clone().requires_grad_() for name in names]
    log_z = log_partition(replace(problem, **dict(zip(names, values, strict=True))), over)[0]
    grads = [torch.zeros_like(value) for value in values]
    if bool(torch.isfinite(log_z)):
        found = torch.autograd.grad(log_z, values, allow_unused=True)
        grads = [g if f is None else f for g, f in zip(grads, found, strict=True)]
    shared = {"duration_KC"} if problem.per_frame else {"duration_KC", "transition"}
    counts = [grad[None] if name in shared else grad for name, grad in zip(names, grads, strict=True)]
    return [log_z.detach()[None], *counts]


def segmentations(length: int, longest: int, labels: int) -> Iterator[list[Segment]]:
    """Every way to tile `length` frames with labelled segments of at most `longest` frames."""
    if length == 0:
        yield []
        return
    for duration in range(1, min(longest, length) + 1):
        for head in segmentations(length - duration, longest, labels):
            for label in range(labels):
                yield [*head, (length - duration, length, label)]


def path_terms(problem: Problem, b: int, path: Sequence[Segment]) -> Iterator[Tensor]:
    """What one segmentation of sequence `b` adds up, in float64: scalars, and the frames of each segment."""
    yield problem.start_C.double()[path[0][2]]
    yield problem.end_C.double()[path[-1][2]]
    previous = None
    for start, end, label in path:
        yield problem.score_BTC[b, start:end, label].double()
        yield segment_score(problem, b, start, end)[label]
        if previous is not None:
            yield transition_score(problem, b, start, end).double()[previous, label]
        previous = label


def path_score(problem: Problem, b: int, path: Sequence[Segment]) -> Tensor:
    """The score of one segmentation of sequence `b`, a float64 scalar."""
    return torch.stack([term.sum() for term in path_terms(problem, b, path)]).sum()


def enumerate_segmentations(problem: Problem, b: int) -> tuple[list[list[Segment]], Tensor]:
    """All segmentations of sequence `b` and their scores (N,).

    Only for tiny cases: N grows like (C + 1)^L.
    """
    _, _, longest, labels = problem.shape
    paths = list(segmentations(int(problem.lengths_B[b]), longest, labels))
    return paths, torch.stack([path_score(problem, b, path) for path in paths])


@torch.enable_grad()
def viterbi(problem: Problem) -> tuple[Tensor, list[list[Segment]]]:
    """The best score (B,) and segmentation of each sequence; ties: smallest duration, then smallest label.

    The same recursion with a maximum for each sum: its counts are those of the best segmentation alone.
    """
    scores, paths = [], []
    for b in range(problem.shape[0]):
        one = problem.detached().rows([b])
        score_B, _, starts_BTC, ends_BTC, *_ = _counts_of_one(one, best)
        scores.append(float(score_B))
        ends = (ends_BTC[0].nonzero()[:, 0] + 1).tolist()
        starts = starts_BTC[0].nonzero().tolist()
        paths.append([(start, end, label) for (start, label), end in zip(starts, ends, strict=True)])
    return torch.tensor(scores, dtype=torch.float64, device=problem.score_BTC.device), paths
