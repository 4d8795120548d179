"""The functions for users; all take the model as `log_partition` does, in its order or by name. `terms` are
`start_C`, `end_C`, `seg_start_BTC`, `seg_end_BTC` and `segment_BTKC`; problem.py says what they are.

Values are float64 whatever the input's dtype, because at a log Z of 10^4 float32 has no digits left for its
error. Gradients have the dtype of their input. The same on every backend:

- -inf, and any score at or below -1e12, forbids. A sequence that nothing fits has log Z = -inf, no segments,
  and counts and gradients of zero.
- NaN, +inf and scores above 1e12 raise BadDataError with their place, where a sequence can meet them.
- Nothing in the padding reaches anything. Lengths out of 1..T raise UsageError.
"""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import autograd, log_domain, naive, native, paths
from lab.rooms.semicrf.model.autograd import Alarm, uncompiled
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import (
    FAR_BELOW,
    MAX_LABELS,
    Posteriors,
    Problem,
    levelled,
    make_problem,
    transforming,
)

BACKENDS = ("naive", "torch", "native", "auto")


def resolve_backend(backend: str, score_BTC: Tensor) -> str:
    """What "auto" means here: what is compiled for this device, else torch."""
    if backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}", fix=f"one of {', '.join(BACKENDS)}")
    if backend != "auto":
        return backend
    return "native" if fits(score_BTC) and native.missing_reason(score_BTC.device.type) is None else "torch"


def fits(score_BTC: Tensor) -> bool:
    """Whether the compiled form for this device takes so many labels."""
    return not score_BTC.is_cuda or score_BTC.shape[-1] <= MAX_LABELS


@uncompiled
def log_partition(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    backend: str = "auto",
    alarm: Alarm | None = None,
    **terms: Tensor | None,
) -> Tensor:
    """log Z (B,), float64, differentiable in every float input, by the log domain from the second time on.

    `alarm` is called with the expected counts in the backward pass, before they become gradients; an
    exception that it raises ends the pass. The naive form has no counts of its own and calls nothing.
    """
    kernels = by_kernels(backend, score_BTC, terms)
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, **terms, for_kernels=kernels)
    return partition_of(problem, backend, alarm)


def partition_of(problem: Problem, backend: str, alarm: Alarm | None = None) -> Tensor:
    """`log_partition` of a checked problem."""
    resolved = resolve_backend(backend, problem.score_BTC)
    if resolved == "naive":
        return naive.log_partition(problem)
    return autograd.log_partition(engine_for(resolved, problem), alarm, problem)


def by_kernels(backend: str, score_BTC: Tensor, terms: dict[str, Tensor | None]) -> bool:
    """Whether the kernels of native/cuda.py compute this alone."""
    if not (isinstance(score_BTC, Tensor) and score_BTC.is_cuda):
        return False
    plain = terms.keys() <= {"start_C", "end_C"} and score_BTC.dim() == 3
    return plain and not transforming() and resolve_backend(backend, score_BTC) == "native"


def engine_for(backend: str, problem: Problem) -> Any:
    """The module with `forward(problem, keep)` and `backward(state)`: only torch has the whole model."""
    return native.engine_for(problem.score_BTC) if backend == "native" and problem.plain else log_domain


def problem_of(*model: Any, **terms: Any) -> Problem:
    """The checked problem; one that is checked stays."""
    return model[0] if model and isinstance(model[0], Problem) else make_problem(*model, **terms)


@uncompiled
def posteriors(*model: Any, backend: str = "auto", **terms: Any) -> Posteriors:
    """log Z and all expected counts, differentiable in every float input; see `Posteriors`."""
    problem = problem_of(*model, **terms)
    resolved = resolve_backend(backend, problem.score_BTC)
    engine = naive if resolved == "naive" else engine_for(resolved, problem)
    return autograd.posteriors(engine, problem).clamped()


def marginals(*model: Any, backend: str = "auto", **terms: Any) -> Tensor:
    """posterior_BTC: P(frame t lies in a segment of label c); zero in the padding."""
    return posteriors(*model, backend=backend, **terms).label_BTC


@uncompiled
def viterbi(*model: Any, backend: str = "auto", **terms: Any) -> tuple[Tensor, list[list[Segment]]]:
    """The best score (B,) and its segments [(start, end exclusive, label), ...]; -inf and none where nothing
    is feasible. Ties: as in `kbest`.
    """
    problem = _decodable(*model, **terms)
    if backend == "naive":
        return naive.viterbi(problem)
    compiled = resolve_backend(backend, problem.score_BTC) == "native" and fits(problem.score_BTC)
    if compiled and problem.plain:
        best_B, ends_BT = native.engine_for(problem.score_BTC).best(problem)  # raises what is missing
        scores_B, segments = torch.from_numpy(best_B), list(map(segments_of, ends_BT))
    else:
        tops = [pairs[0] if pairs else (-math.inf, []) for pairs in paths.best(problem, 1)]
        scores_B = torch.tensor([score for score, _ in tops], dtype=torch.float64, device="cpu")
        segments = [path for _, path in tops]
    return scores_B.to(problem.score_BTC.device), segments


def segments_of(ends_T: np.ndarray) -> list[Segment]:
    """(start, end exclusive, label) from label + 1 where a segment ends with a frame, else 0."""
    (last_N,) = ends_T.nonzero()
    ends = (last_N + 1).tolist()
    labels = (ends_T[last_N].astype(np.int64) - 1).tolist()
    return list(zip([0, *ends], ends, labels, strict=False))


@uncompiled
def sample(
    *model: Any,
    samples: int = 1,
    generator: torch.Generator | None = None,
    backend: str = "auto",
    **terms: Any,
) -> list[list[list[Segment]]]:
    """`samples` exact, independent draws for each sequence: lists of (start, end exclusive, label).

    Random numbers come from `generator`, or torch's own stream: each call draws anew. An infeasible sequence
    gets empty draws. Every backend draws by the torch form.
    """
    problem = _decodable(*model, **terms)
    resolve_backend(backend, problem.score_BTC)
    samples = operator.index(samples)
    if samples < 0:
        raise UsageError(f"samples must not be negative, got {samples}")
    device = "cpu" if generator is None else generator.device
    seed = int(torch.randint(2**62, (1,), generator=generator, device=device))
    return paths.sample(problem, samples, seed)


@uncompiled
def kbest(
    *model: Any, count: int = 5, backend: str = "auto", **terms: Any
) -> list[list[tuple[float, list[Segment]]]]:
    """The `count` best segmentations of each sequence with their scores, best first; fewer if fewer exist.

    Ties: read from the sequence's end, the smaller label, then the smaller duration where they differ first.
    Every backend ranks by the torch form.
    """
    problem = _decodable(*model, **terms)
    resolve_backend(backend, problem.score_BTC)
    count = operator.index(count)
    if count < 1:
        raise UsageError(f"count must be at least 1, got {count}")
    return paths.best(problem, count)


@uncompiled
def entropy(*model: Any, backend: str = "auto", **terms: Any) -> Tensor:
    """H (B,) in nats, float64, differentiable; 0 where nothing is feasible."""
    problem = level(problem_of(*model, **terms))
    # Differences of float32 sums have few digits left.
    problem = problem.with_floats([value.double() for value in problem.floats()])
    return entropy_of(problem, posteriors(problem, backend=backend))


def level(problem: Problem) -> Problem:
    """Without what is common to all labels of a frame and far below 0: a mask, which cancels in every
    probability and costs sums their digits.
    """
    return replace(problem, score_BTC=levelled(problem.score_BTC, FAR_BELOW))


def entropy_of(problem: Problem, posteriors: Posteriors) -> Tensor:
    """log Z less the expected score (B,). Digits are lost as in any difference: the rounding is some 1e-16
    times the largest score times the frames. What it takes below 0 is left out, and the gradient stays.
    """
    expected_B = torch.zeros_like(posteriors.log_z_B)
    for score, count in zip(problem.floats(), posteriors.counts(problem), strict=True):
        # 0 * -inf is NaN: what has no count adds nothing.
        used = torch.where(count == 0, torch.zeros_like(count), score.double())
        expected_B = expected_B + (used * count).flatten(1).sum(1)
    infeasible_B = torch.isneginf(posteriors.log_z_B.detach())
    entropy_B = posteriors.log_z_B.masked_fill(infeasible_B, 0.0) - expected_B.masked_fill(infeasible_B, 0.0)
    return torch.where(entropy_B < 0, entropy_B - entropy_B.detach(), entropy_B)


def _decodable(*model: Any, **terms: Any) -> Problem:
    if transforming():
        raise UsageError(
            "segments are lists, which torch.func cannot transform",
            fix="decode outside of the transformed function",
        )
    return problem_of(*model, **terms).detached()
