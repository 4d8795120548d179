"""Decoding, entropy and sampling against enumeration and posteriors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from lab.rooms.semicrf.model import api, naive
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import make_problem
from lab.rooms.semicrf.workload.cases.solution import solve
from lab.rooms.semicrf.workload.checks.subject import Row, Subject, as_row, drawn


def decoding(subject: Subject) -> Iterator[Row]:
    """The best score equals the definition's, and the returned segments have that score."""
    for number, shape in enumerate(subject.shapes()):
        case = drawn(subject.seed + 200 + number, shape)
        on = case.to(subject.device)
        scores, paths = api.viterbi(**on.inputs(), backend=subject.backend)
        problem = make_problem(*case.inputs().values())
        right, _ = naive.viterbi(problem)
        path_scores = torch.stack([naive.path_score(problem, b, path) for b, path in enumerate(paths)])
        worst = float(torch.maximum((scores.double().cpu() - right).abs(), (path_scores - right).abs()).max())
        yield as_row("viterbi", shape, torch.float64, worst, 1e-9, f"scores and paths within {worst:.2g}")


def further(subject: Subject) -> Iterator[Row]:
    """The 12 best segmentations have the 12 best scores of all that there are."""
    case = drawn(subject.seed + 400, (2, 6, 4, 3))
    ranked = api.kbest(**case.to(subject.device).inputs(), count=12, backend=subject.backend)
    problem = make_problem(*case.inputs().values())
    worst = 0.0
    for b, pairs in enumerate(ranked):
        right = naive.enumerate_segmentations(problem, b)[1].sort(descending=True).values[:12]
        scores = torch.tensor([score for score, _ in pairs], dtype=torch.float64)
        path_scores = torch.stack([naive.path_score(problem, b, path) for _, path in pairs])
        worst = max(worst, float(torch.maximum((scores - right).abs(), (path_scores - right).abs()).max()))
        worst = worst if len({tuple(path) for _, path in pairs}) == len(pairs) else float("inf")
    yield as_row("k best", (2, 6, 4, 3), torch.float64, worst, 1e-9, f"scores and paths within {worst:.2g}")


def entropies(subject: Subject) -> Iterator[Row]:
    """Entropy against the enumeration of every segmentation."""
    shape = (2, 5, 3, 2)
    case = replace(drawn(subject.seed + 500, shape), lengths_B=torch.tensor([5, 4]))
    on = case.to(subject.device)
    entropy_B = api.entropy(**on.inputs(), backend=subject.backend)
    problem = make_problem(*case.inputs().values())
    right = []
    for b in range(2):
        logs = torch.log_softmax(naive.enumerate_segmentations(problem, b)[1], 0)
        right.append(-(logs.exp() * logs).sum())
    worst = float((entropy_B.double().cpu() - torch.stack(right)).abs().max())
    yield as_row("entropy", shape, torch.float64, worst, 1e-10, f"within {worst:.2g} of the enumeration")


def sampling(subject: Subject) -> Iterator[Row]:
    """What 2,000 draws count of labels by frame, durations, transitions, first and last labels: each mean
    within 5 standard deviations of the definition's expected count.
    """
    shape = (1, 8, 4, 3)
    case = drawn(subject.seed + 600, shape)
    count = 2000
    inputs = case.to(subject.device).inputs()
    generator = torch.Generator().manual_seed(subject.seed)
    paths = api.sample(**inputs, samples=count, generator=generator, backend=subject.backend)[0]
    drawn_counts = torch.stack([counts(path, *shape[1:]) for path in paths])
    solution = solve(case, "naive")
    expected = (
        solution.score_BTC,
        solution.duration_KC,
        solution.transition_CC,
        solution.start_C,
        solution.end_C,
    )
    right = torch.cat([value.flatten() for value in expected])
    sigma = (drawn_counts.std(0) / count**0.5).clamp(min=1e-3)
    worst = float(((drawn_counts.mean(0) - right).abs() / sigma).max())
    text = f"frequencies within {worst:.1f} standard deviations"
    yield as_row("samples", shape, torch.float64, worst, 5.0, text)


def counts(path: Sequence[Segment], frames: int, longest: int, labels: int) -> Tensor:
    """Of one segmentation (N,): labels by frame, durations, transitions, its first label and its last."""
    sizes = (frames * labels, longest * labels, labels * labels, labels, labels)
    label, duration, transition, starts, ends = (sum(sizes[:indices]) for indices in range(len(sizes)))
    indices = [label + t * labels + c for start, end, c in path for t in range(start, end)]
    indices += [duration + (end - start - 1) * labels + c for start, end, c in path]
    indices += [transition + a * labels + c for (_, _, a), (_, _, c) in pairwise(path)]
    indices += [starts + path[0][2], ends + path[-1][2]]
    return torch.bincount(torch.tensor(indices), minlength=sum(sizes)).double()
