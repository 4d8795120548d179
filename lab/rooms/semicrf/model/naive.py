"""The reference implementation: the semi-CRF in float64 from its definition, and by enumeration in tiny
cases.

Nothing here is optimised. `log_partition` is one logsumexp over all (duration, previous label) for each
position and label, differentiated by autograd; `enumerate_segmentations` lists every segmentation one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.log_domain import logsumexp
from lab.rooms.semicrf.model.problem import Posteriors, Problem, masked

Segment = tuple[int, int, int]
"""(start, end exclusive, label), in frames."""


def best(value: Tensor, dim: int) -> Tensor:
    """The largest; its gradient goes to the first of equals."""
    return value.max(dim).values


Sum = Callable[[Tensor, int], Tensor]


def log_partition(problem: Problem, over: Sum = logsumexp) -> Tensor:
    """log Z (B,), float64, differentiable: alpha[t, c] from all alpha[t-k, c'] as the definition says."""
    return torch.stack([_log_partition_of(problem, b, over) for b in range(problem.shape[0])])


def _log_partition_of(problem: Problem, b: int, over: Sum) -> Tensor:
    """log Z of sequence `b`."""
    score_TC = masked(problem, problem.score_BTC)[b]
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
                arcs.append(segment_C + over(before_C1 + problem.transition.double(), 0))
        alpha.append(over(torch.stack(arcs), 0))
    return over(alpha[-1] + end_C, 0)


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


@torch.enable_grad()
def posteriors(problem: Problem) -> Posteriors:
    """All expected counts by autograd, sequence by sequence."""
    plain = problem.detached()
    rows = [_counts_of(plain.rows([b])) for b in range(problem.shape[0])]
    columns = [torch.cat(column) for column in zip(*rows, strict=True)]
    log_z_B, label_BTC, starts_BTC, ends_BTC, duration_BKC, transition, *segments = columns
    checked = mass(label_BTC, problem.lengths_B, log_z_B)
    counts = (label_BTC, starts_BTC, ends_BTC, duration_BKC, transition)
    return Posteriors(log_z_B, *counts, *checked, segment_BTKC=segments[0] if segments else None)


def _counts_of(problem: Problem, over: Sum = logsumexp) -> list[Tensor]:
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
        used = torch.autograd.grad(log_z, values, allow_unused=True)
        grads = [zero if grad is None else grad for zero, grad in zip(grads, used, strict=True)]
    shared = {"duration_KC", "transition"}
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
            yield problem.transition[previous, label].double()
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
        score_B, _, starts_BTC, ends_BTC, *_ = _counts_of(problem.detached().rows([b]), best)
        scores.append(float(score_B))
        ends = (ends_BTC[0].nonzero()[:, 0] + 1).tolist()
        starts = starts_BTC[0].nonzero().tolist()
        paths.append([(start, end, label) for (start, label), end in zip(starts, ends, strict=True)])
    return torch.tensor(scores, dtype=torch.float64, device=problem.score_BTC.device), paths
