"""The reference implementation: the semi-CRF in float64 from its definition, and by enumeration in tiny
cases.

Nothing here is optimised. `log_partition` is one logsumexp over all (duration, previous label) for each
position and label, differentiated by autograd; `enumerate_segmentations` lists every segmentation one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lab.rooms.semicrf.model.log_domain import derived_posteriors, logsumexp
from lab.rooms.semicrf.model.problem import Posteriors, Problem, masked

Segment = tuple[int, int, int]
"""(start, end exclusive, label), in frames."""


def best(value: Tensor, dim: int) -> Tensor:
    """The largest; its gradient goes to the first of equals."""
    return value.max(dim).values


Sum = Callable[[Tensor, int], Tensor]


def log_partition(problem: Problem, over: Sum = logsumexp) -> Tensor:
    """log Z (B,), float64, differentiable: alpha[t, c] from all alpha[t-k, c'] as the definition says."""
    return torch.stack([_log_partition_of(alone(problem, b), over) for b in range(problem.shape[0])])


def alone(problem: Problem, b: int) -> Problem:
    """Sequence `b` as a batch of one, with the model where each sequence has its own."""
    row = problem.rows([b])
    model = {name: getattr(row, name) for name in ("transition_CC", "duration_KC")}
    return replace(row, **{name: value[0] if value.dim() > 2 else value for name, value in model.items()})


def _log_partition_of(problem: Problem, over: Sum) -> Tensor:
    """log Z of a batch of one."""
    score_TC = masked(problem, problem.score_BTC)[0]
    start_C, end_C = problem.start_C.double(), problem.end_C.double()
    alpha: list[Tensor] = []  # alpha[t - 1] belongs to boundary t
    for t in range(1, int(problem.lengths_B[0]) + 1):
        arcs = []
        for s in range(t - 1, max(t - problem.shape[2], 0) - 1, -1):
            segment_C = score_TC[s:t].sum(0) + segment_score(problem, 0, s, t)
            if s == 0:
                arcs.append(segment_C + start_C)
            else:
                before_C1 = alpha[s - 1][:, None]
                arcs.append(segment_C + over(before_C1 + problem.transition_CC.double(), 0))
        alpha.append(over(torch.stack(arcs), 0))
    return over(alpha[-1] + end_C, 0)


def segment_score(problem: Problem, b: int, s: int, t: int) -> Tensor:
    """What a segment over the frames s..t-1 of sequence `b` adds beside them, (C,)."""
    total_C = problem.duration_KC.double()[t - s - 1]
    if problem.seg_start_BTC is not None:
        total_C = total_C + problem.seg_start_BTC[b, s].double()
    if problem.seg_end_BTC is not None:
        total_C = total_C + problem.seg_end_BTC[b, t - 1].double()
    if problem.segment_BTKC is not None:
        total_C = total_C + problem.segment_BTKC[b, s, t - s - 1].double()
    return total_C


@torch.no_grad()
def posteriors(problem: Problem) -> Posteriors:
    return derived_posteriors(problem.detached(), log_partition)


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
            yield problem.transition_CC[previous, label].double()
        previous = label


def path_score(problem: Problem, b: int, path: Sequence[Segment]) -> Tensor:
    return torch.stack([term.sum() for term in path_terms(problem, b, path)]).sum()


def enumerate_segmentations(problem: Problem, b: int) -> tuple[list[list[Segment]], Tensor]:
    """All segmentations of sequence `b` and their scores (N,). N grows like (C + 1)^L."""
    _, _, longest, labels = problem.shape
    paths = list(segmentations(int(problem.lengths_B[b]), longest, labels))
    return paths, torch.stack([path_score(problem, b, path) for path in paths])


def viterbi(problem: Problem) -> tuple[Tensor, list[list[Segment]]]:
    """The best score (B,) and segmentation of each sequence; ties: smallest duration, then smallest label.

    The same recursion with a maximum for each sum: its counts are those of the best segmentation alone.
    """
    counts = derived_posteriors(problem.detached(), partial(log_partition, over=best))
    paths: list[list[Segment]] = []
    for score, starts_TC, ends_TC in zip(counts.log_z_B, counts.starts_BTC, counts.ends_BTC, strict=True):
        starts = starts_TC.nonzero().tolist() if score > -torch.inf else []
        ends = (ends_TC.nonzero()[:, 0] + 1).tolist()
        paths.append([(start, end, label) for (start, label), end in zip(starts, ends, strict=False)])
    return counts.log_z_B, paths
