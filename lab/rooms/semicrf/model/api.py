"""The functions for users: log_partition, posteriors, marginals, viterbi, sample, kbest, entropy.

All take the model as `log_partition` does, in its order or by name; problem.py says what it is. `terms` are
`start_C`, `end_C`, `seg_start_BTC`, `seg_end_BTC` and `segment_BTKC`, each a tensor or None.

Values are float64 whatever the input's dtype, because at a log Z of 10^4 float32 has no digits left for its
error. Gradients have the dtype of their input. The same on every backend:

- -inf, and any score at or below -1e12, forbids. A sequence that nothing fits has log Z = -inf, no segments,
  and counts and gradients of zero.
- NaN, +inf and scores above 1e12 raise BadDataError with their place, where a sequence can meet them.
- Nothing in the padding reaches anything. Lengths out of 1..T raise UsageError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import autograd, decoding, information, log_domain, naive
from lab.rooms.semicrf.model.autograd import Alarm, uncompiled
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.native import choose as native
from lab.rooms.semicrf.model.problem import MAX_LABELS, NAMES, Posteriors, Problem, make_problem

BACKENDS = ("naive", "torch", "native", "auto")
F = TypeVar("F", bound=Callable[..., Any])


def spelt_out(function: F) -> F:
    """For `help`: the model's arguments, which these functions pass on, by their names."""
    signature = inspect.signature(function)
    options = [option for option in signature.parameters.values() if option.kind is option.KEYWORD_ONLY]
    model = list(inspect.signature(make_problem).parameters.values())[: 1 + len(NAMES)]
    terms = [term.replace(kind=term.KEYWORD_ONLY) for term in model[4:]]
    cast(Any, function).__signature__ = signature.replace(parameters=[*model[:4], *options, *terms])
    return function


def resolve_backend(backend: str, score_BTC: Tensor) -> str:
    """What "auto" means here: what is compiled for this device, else torch."""
    if backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}", fix=f"one of {', '.join(BACKENDS)}")
    if backend != "auto":
        return backend
    fits = not score_BTC.is_cuda or score_BTC.shape[-1] <= MAX_LABELS
    return "native" if fits and native.missing_reason(score_BTC.device.type) is None else "torch"


@spelt_out
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
    kernels = by_kernels(backend, score_BTC, transition_CC, terms)
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, **terms, for_kernels=kernels)
    resolved = resolve_backend(backend, problem.score_BTC)
    if resolved == "naive":
        return naive.log_partition(problem)
    return autograd.log_partition(engine_for(resolved, problem), alarm, problem)


def by_kernels(backend: str, score_BTC: Tensor, transition: Tensor, terms: dict[str, Tensor | None]) -> bool:
    """Whether the kernels of native/cuda.py compute this alone: `Problem.plain`, and no transform."""
    if not (isinstance(score_BTC, Tensor) and score_BTC.is_cuda and isinstance(transition, Tensor)):
        return False
    plain = terms.keys() <= {"start_C", "end_C"} and (score_BTC.dim(), transition.dim()) == (3, 2)
    return plain and not autograd.transforming() and resolve_backend(backend, score_BTC) == "native"


def engine_for(backend: str, problem: Problem) -> Any:
    """The module with `forward(problem, keep)` and `backward(state)`: only torch has the whole model."""
    return native.engine_for(problem.score_BTC) if backend == "native" and problem.plain else log_domain


@spelt_out
@uncompiled
def posteriors(*model: Any, backend: str = "auto", **terms: Any) -> Posteriors:
    """log Z and all expected counts, differentiable in every float input; see `Posteriors`."""
    problem = make_problem(*model, **terms)
    resolved = resolve_backend(backend, problem.score_BTC)
    engine = naive if resolved == "naive" else engine_for(resolved, problem)
    return autograd.posteriors(engine, problem).clamped()


@spelt_out
def marginals(*model: Any, backend: str = "auto", **terms: Any) -> Tensor:
    """posterior_BTC: the probability that frame t lies in a segment of label c; zero in the padding."""
    return posteriors(*model, backend=backend, **terms).label_BTC


@spelt_out
@uncompiled
def viterbi(*model: Any, backend: str = "auto", **terms: Any) -> tuple[Tensor, list[list[Segment]]]:
    """The best score (B,) and its segments [(start, end exclusive, label), ...] for each sequence.

    An infeasible sequence has score -inf and no segments. Ties: as in `kbest`.
    """
    problem = _decodable(*model, **terms)
    if backend == "naive":
        return naive.viterbi(problem)
    return decoding.viterbi(problem, resolve_backend(backend, problem.score_BTC))


@spelt_out
@uncompiled
def sample(
    *model: Any,
    samples: int = 1,
    generator: torch.Generator | None = None,
    backend: str = "auto",
    **terms: Any,
) -> list[list[list[Segment]]]:
    """`samples` exact, independent draws for each sequence: lists of (start, end exclusive, label).

    Random numbers come from `generator`, or torch's own stream (torch.manual_seed): each call draws anew,
    and equal sequences of a batch are drawn apart. An infeasible sequence gets empty draws. "naive" is torch.
    """
    problem = _decodable(*model, **terms)
    return decoding.sample(problem, samples, generator, resolve_backend(backend, problem.score_BTC))


@spelt_out
@uncompiled
def kbest(
    *model: Any, count: int = 5, backend: str = "auto", **terms: Any
) -> list[list[tuple[float, list[Segment]]]]:
    """The `count` best segmentations of each sequence with their scores, best first; fewer if fewer exist.

    Ties: read from the sequence's end, the smaller label, then the smaller duration where they differ first.
    "naive" is torch here.
    """
    problem = _decodable(*model, **terms)
    return decoding.best(problem, count, resolve_backend(backend, problem.score_BTC))


@spelt_out
@uncompiled
def entropy(*model: Any, backend: str = "auto", **terms: Any) -> Tensor:
    """H (B,) in nats of the distribution over segmentations, float64, differentiable; 0 where nothing is
    feasible.
    """
    problem = information.doubled(make_problem(*model, **terms))
    return information.entropy(problem, posteriors(**problem.arguments(), backend=backend))


def _decodable(*model: Any, **terms: Any) -> Problem:
    if autograd.transforming():
        raise UsageError(
            "segments are lists, which torch.func cannot transform",
            fix="decode outside of the transformed function",
        )
    return make_problem(*model, **terms).detached()
