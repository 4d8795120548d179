"""Segmentations instead of sums: the best one, the `count` best, and exact draws, by the form of a backend.

The compiled forms take transitions of (C, C); the others are paths.py's. What is the same for every form is
here: NaN is refused, and scores that would swallow the digits of others are taken out of their frames.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lab.errors import BadDataError, UsageError
from lab.rooms.semicrf.model import log_domain, naive, paths
from lab.rooms.semicrf.model.naive import LARGE, Segment
from lab.rooms.semicrf.model.native import choose as native
from lab.rooms.semicrf.model.native.path import ScoredPaths
from lab.rooms.semicrf.model.problem import Problem, inside, masked
from lab.rooms.semicrf.model.terms import has_far_edges, without_far_edges

Segmentation = Sequence[Segment]
Scored = Sequence[tuple[float, Segmentation]]


def viterbi(problem: Problem, backend: str) -> tuple[Tensor, Sequence[Segmentation]]:
    """The best score (B,) and its segments; -inf and [] where nothing is feasible."""
    tops = list(map(top, best(problem, 1, backend)))
    scores = [score for score, _ in tops]
    score_B = torch.tensor(scores, dtype=torch.float64, device=problem.score_BTC.device)
    return score_B, [path for _, path in tops]


def top(found: Scored) -> tuple[float, Segmentation]:
    if isinstance(found, ScoredPaths):  # without the way over pairs
        return (found.scores[0], found.paths.at(0)) if found.scores else (-math.inf, [])
    return found[0] if found else (-math.inf, [])


def best(problem: Problem, count: int, backend: str) -> Sequence[Scored]:
    """The `count` best segmentations of each sequence with their scores, best first; fewer if fewer exist."""
    count = operator.index(count)
    if count < 1:
        raise UsageError(f"count must be at least 1, got {count}")
    looked = is_compiled(problem, backend) and problem.score_BTC.is_cuda  # at all numbers, by the kernels
    top_BT = None if looked else reject_nan(problem)
    # No sequence has more segmentations; after 64 frames their number is beyond any count.
    _, frames, _, labels = problem.shape
    count = min(count, labels * (labels + 1) ** (min(frames, 64) - 1))
    found, ordinary = best_by_form(problem, count, backend)
    if not ordinary:
        top_BT = reject_nan(problem)
    large_B = None if top_BT is None else (torch.isfinite(top_BT) & (top_BT.abs() > LARGE)).any(1)
    far = not (looked and ordinary) and has_far_edges(problem)
    large = [far] * len(found) if large_B is None else [far or one for one in large_B.tolist()]
    again = [b for b, one in enumerate(found) if one and (large[b] or has_large(problem, b, one))]
    if again:
        rows = problem.rows(again)
        redone, _ = best_by_form(without_tops(rows), count, backend)
        for at, (b, one) in enumerate(zip(again, redone, strict=True)):
            scored = [(exact_score(rows, at, path), path) for _, path in one]
            found[b] = sorted(scored, key=lambda pair: -pair[0])  # below the tops, sums have fewer digits
    return found


def sample(problem: Problem, samples: int, seed: int, backend: str) -> Sequence[Sequence[Segmentation]]:
    """`samples` draws of each sequence; [] for each where nothing is feasible."""
    samples, seed = operator.index(samples), operator.index(seed)  # numpy's, too
    if samples < 0:
        raise UsageError(f"samples must not be negative, got {samples}")
    compiled = is_compiled(problem, backend) and samples > 0
    if not compiled:
        reject_nan(problem)
        return paths.sample(problem, samples, seed)
    decoded, lost_B = compiled_form(problem).draws(problem, samples, seed)
    drawn: Sequence[Sequence[Segmentation]] = decoded.paths()
    again = [b for b, lost in enumerate(lost_B.tolist()) if lost]
    if not again:
        return drawn
    reject_nan(problem)  # a NaN or +inf loses its sequence, so nobody looked before
    redone = paths.sample(problem.rows(again), samples, seed)
    found = [*drawn]
    for b, one in zip(again, redone, strict=True):
        found[b] = one
    return found


def best_by_form(problem: Problem, count: int, backend: str) -> tuple[list[Scored], bool]:
    """The form's best, and whether it saw no number that is NaN, +inf or large."""
    if is_compiled(problem, backend):
        score_BN, decoded = compiled_form(problem).best(problem, count)
        scores_BN = score_BN.tolist()
        if -math.inf in (scores[-1] for scores in scores_BN):
            scores_BN = [[score for score in scores if score > -math.inf] for scores in scores_BN]
        return list(map(ScoredPaths, decoded.paths(), scores_BN)), decoded.ordinary
    return list(paths.best(problem, count)), True


def is_compiled(problem: Problem, backend: str) -> bool:
    return backend == "native" and problem.plain


def compiled_form(problem: Problem) -> Any:
    """The module with `best` and `draws` for the device of the scores. Raises MissingError."""
    native.engine_for(problem.score_BTC)
    if problem.score_BTC.is_cuda:
        from lab.rooms.semicrf.model.native import decode_cuda

        return decode_cuda
    from lab.rooms.semicrf.model.native import decode

    return decode


def reject_nan(problem: Problem) -> Tensor | None:
    """The largest score of each frame (B, T), 0 in the padding; None if no frame's is large.

    Raises BadDataError for NaN and +inf: no comparison with them means anything, so any path could come out.
    """
    score_BTC = problem.score_BTC.detach()
    if score_BTC.dtype not in (torch.float32, torch.float64):
        score_BTC = score_BTC.float()
    if problem.plain and not score_BTC.is_cuda and is_ordinary(problem, score_BTC):
        return None  # one look at all numbers takes a tenth of the time that each frame's largest does
    top_BT = score_BTC.amax(-1)
    if problem.plain and is_ordinary(problem, top_BT):
        return None
    top_BT = top_BT.double()
    top_BT = torch.where(inside(problem.shape[1], problem.lengths_B), top_BT, torch.zeros_like(top_BT))
    others = [read(problem, name) for name in problem.names()[1:]]
    tops = torch.stack([top_BT.amax(), *(value.amax() for value in others)])
    if bool((tops < torch.inf).all()):
        return top_BT
    fix = "only finite numbers and -inf can be decoded; look for where it came from before decoding"
    for name, value in zip(problem.names()[1:], others, strict=True):
        bad = ~(value < torch.inf)
        if bool(bad.any()):
            name = name.rpartition("_")[0] or name
            raise BadDataError(f"NaN or +inf in {name}", location=f"{name}{first(bad)}", fix=fix)
    b, t = first(~(top_BT < torch.inf))
    raise BadDataError(f"NaN or +inf in the scores of sequence {b}", location=f"frame {t}", fix=fix)


def is_ordinary(problem: Problem, scores: Tensor) -> bool:
    """Whether none of `scores` is large or NaN, and nothing else is NaN or +inf: one wait for a GPU."""
    others = torch.cat([value.detach().reshape(-1).to(scores.dtype) for value in problem.floats()[1:]])
    low, high, other = torch.stack([*torch.aminmax(scores), others.amax()]).tolist()
    return bool(low >= -LARGE and high <= LARGE and other < math.inf)


def read(problem: Problem, name: str) -> Tensor:
    """The values of an input in float64, with 0 where a decoding never looks: in the padding, in the
    transition into the first frame, in segments beyond the end.
    """
    value: Tensor = getattr(problem, name).detach().double()
    if not (name.startswith("seg") or (name == "transition" and problem.per_frame)):
        return value
    frame_T = torch.arange(value.shape[1], device=value.device)
    looked = inside(problem.shape[1], problem.lengths_B).view(*value.shape[:2], *(1,) * (value.dim() - 2))
    if name == "transition":
        looked = looked & (frame_T > 0)[:, None, None]
    if name == "segment_BTKC":
        last_TK = frame_T[:, None] + torch.arange(value.shape[2], device=value.device)
        looked = looked & (last_TK < problem.lengths_B[:, None, None])[..., None]
    return torch.where(looked, value, torch.zeros_like(value))


def first(bad: Tensor) -> list[int]:
    return [int(i) for i in bad.nonzero()[0].tolist()]


def has_large(problem: Problem, b: int, found: Scored) -> bool:
    """Whether the best path pays a score so large that sums with it lose digits."""
    if abs(found.scores[0] if isinstance(found, ScoredPaths) else found[0][0]) <= LARGE:
        return False  # without making the path
    path = found[0][1]
    large_TC = (problem.score_BTC[b].abs() > LARGE).cpu().numpy()
    return bool(large_TC.any()) and any(large_TC[s:e, c].any() for s, e, c in path)


def without_tops(problem: Problem) -> Problem:
    """The same problem less each frame's largest score among labels that some segmentation gives it, and less
    the largest start and end where these are large.

    All segmentations pay them alike, so their order stays; 1e30 would swallow every difference beside it.
    """
    score_BTC = masked(problem, problem.score_BTC) - log_domain.tops(problem)[..., None]
    return without_far_edges(replace(problem, score_BTC=score_BTC))


def exact_score(problem: Problem, b: int, path: Segmentation) -> float:
    """The score of one segmentation, summed without rounding."""
    return math.fsum(x for term in naive.path_terms(problem, b, path) for x in term.reshape(-1).tolist())
