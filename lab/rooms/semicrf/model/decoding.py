"""Segmentations instead of sums: the best one, the `count` best, and exact draws, by the form of a backend.

The C++ form takes plain models on the CPU, the CUDA form the best segmentation of plain models on a GPU;
k best and draws of a GPU's tensors go to the host. The rest is paths.py's.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import paths
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.native import choose as native
from lab.rooms.semicrf.model.problem import MAX_LABELS, Problem


def viterbi(problem: Problem, backend: str) -> tuple[Tensor, list[list[Segment]]]:
    """The best score (B,) and its segments; -inf and [] where nothing is feasible."""
    device = problem.score_BTC.device
    if backend == "native" and problem.plain and device.type == "cuda" and problem.shape[3] <= MAX_LABELS:
        best_B, ends_BT = native.engine_for(problem.score_BTC).best(problem)  # raises what is missing
        return torch.from_numpy(best_B).to(device), [segments_of(ends_T) for ends_T in ends_BT]
    tops = [pairs[0] if pairs else (-math.inf, []) for pairs in best(problem, 1, backend)]
    scores_B = torch.tensor([score for score, _ in tops], dtype=torch.float64, device=device)
    return scores_B, [path for _, path in tops]


def best(problem: Problem, count: int, backend: str) -> list[list[tuple[float, list[Segment]]]]:
    """The `count` best segmentations of each sequence with their scores, best first; fewer if fewer exist."""
    count = operator.index(count)
    if count < 1:
        raise UsageError(f"count must be at least 1, got {count}")
    # No sequence has more segmentations; after 64 frames their number is beyond any count.
    _, frames, _, labels = problem.shape
    count = min(count, labels * (labels + 1) ** (min(frames, 64) - 1))
    library = compiled_form(problem, backend)
    if library is None:
        return paths.best(problem, count)
    score_BN, ends_BNT = library.best(on_host(problem), count)
    return [
        [
            (score, segments_of(ends_T))
            for score, ends_T in zip(scores, ends_NT, strict=True)
            if score > -math.inf
        ]
        for scores, ends_NT in zip(score_BN.tolist(), ends_BNT, strict=True)
    ]


def sample(
    problem: Problem, samples: int, generator: torch.Generator | None, backend: str
) -> list[list[list[Segment]]]:
    """`samples` draws of each sequence; [] for each where nothing is feasible."""
    samples = operator.index(samples)
    if samples < 0:
        raise UsageError(f"samples must not be negative, got {samples}")
    seed = drawn_seed(generator)
    library = compiled_form(problem, backend) if samples else None
    if library is None:
        return paths.sample(problem, samples, seed)
    problem = on_host(problem)
    ends_BNT, lost_B = library.draws(problem, samples, seed)
    draws = [[segments_of(ends_T) for ends_T in ends_NT] for ends_NT in ends_BNT]
    for b in lost_B.nonzero()[:, 0].tolist():
        draws[b] = paths.sample(problem.rows([b]), samples, seed + b)[0]
    return draws


def drawn_seed(generator: torch.Generator | None) -> int:
    """A seed from torch's own stream, or from a generator, which may be a GPU's."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (1,), generator=generator, device=device))


def compiled_form(problem: Problem, backend: str) -> Any:
    """native/decode.py where this model goes there, else None."""
    if backend != "native" or not problem.plain or native.missing_reason("cpu"):
        return None
    from lab.rooms.semicrf.model.native import decode

    return decode


def on_host(problem: Problem) -> Problem:
    if problem.score_BTC.device.type == "cpu":
        return problem
    moved = problem.with_floats([value.cpu() for value in problem.floats()])
    return Problem(**{**vars(moved), "lengths_B": problem.lengths_B.cpu()})


def segments_of(ends_T: np.ndarray) -> list[Segment]:
    """(start, end exclusive, label) from label + 1 where a segment ends with a frame, else 0."""
    (last_N,) = ends_T.nonzero()
    ends = (last_N + 1).tolist()
    labels = (ends_T[last_N].astype(np.int64) - 1).tolist()
    return list(zip([0, *ends], ends, labels, strict=False))
