"""The functions for users: log_partition, posteriors, marginals, viterbi, sample, kbest, entropy.

All take the model as `log_partition` does, in its order or by name; problem.py says what it is. `terms` are
`start_C`, `end_C`, `seg_start_BTC`, `seg_end_BTC` and `segment_BTKC`, each a tensor or None.

Values are float64 whatever the input's dtype, because at a log Z of 10^4 float32 has no digits left for its
error. Gradients have the dtype of their input.

What is not finite, the same on every backend:

- -inf forbids. A sequence that nothing fits has log Z = -inf, no segments, and counts and gradients of zero.
- NaN or +inf in a frame of a sequence makes that sequence's log Z, counts and gradients NaN; in a shared
  parameter (transition, duration, start, end) it does so to every sequence. It is never decoded. The gradient
  is NaN so that no optimizer mistakes it for one, and zero where the loss leaves the sequence out. On a GPU,
  where looking would wait, a parameter reaches the sequences that can use it.
- Nothing in the padding reaches anything.
- Lengths out of 1..T are an error on the CPU; on a GPU they make their sequence's log Z NaN.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import decoding, information, naive
from lab.rooms.semicrf.model.derivatives import autograd, compiled
from lab.rooms.semicrf.model.derivatives.autograd import Alarm
from lab.rooms.semicrf.model.derivatives.compiled import compiling
from lab.rooms.semicrf.model.factorised import backend as torch_factorised
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.native import choose as native
from lab.rooms.semicrf.model.problem import MAX_LABELS, NAMES, Posteriors, Problem, make_problem

LISTS = "segments are lists, not tensors: decode outside of what is compiled with fullgraph=True"
BACKENDS = ("naive", "torch", "native", "auto")
F = TypeVar("F", bound=Callable[..., Any])


def spelt_out(function: F) -> F:
    """For `help`: the model's arguments, which these functions pass on, by their names."""
    shown = inspect.signature(function)
    own = [one for one in shown.parameters.values() if one.kind is one.KEYWORD_ONLY]
    model = list(inspect.signature(make_problem).parameters.values())[: 1 + len(NAMES)]
    terms = [one.replace(kind=one.KEYWORD_ONLY) for one in model[4:]]
    cast(Any, function).__signature__ = shown.replace(parameters=[*model[:4], *own, *terms])
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
    """log Z (B,), float64, differentiable twice in every float input: a third derivative raises.

    `alarm` is called with the expected counts in the backward pass, before they become gradients; an
    exception that it raises ends the pass. The naive form has no counts of its own and calls nothing.
    """
    if alarm is not None:
        return _with_alarm(alarm, backend, score_BTC, transition_CC, duration_KC, lengths_B, **terms)
    if compiling():
        return compiled.log_partition(backend, score_BTC, transition_CC, duration_KC, lengths_B, **terms)
    kernels = by_kernels(backend, score_BTC, transition_CC, terms)
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, **terms, for_kernels=kernels)
    return _log_partition(problem, backend)


def by_kernels(backend: str, score_BTC: Tensor, transition: Tensor, terms: dict[str, Tensor | None]) -> bool:
    """Whether the kernels of native/cuda.py compute this alone: `Problem.plain`, and no transform."""
    if not (isinstance(score_BTC, Tensor) and score_BTC.is_cuda and isinstance(transition, Tensor)):
        return False
    plain = terms.keys() <= {"start_C", "end_C"} and (score_BTC.dim(), transition.dim()) == (3, 2)
    return plain and not autograd.transforming() and resolve_backend(backend, score_BTC) == "native"


@compiled.uncompiled("log_partition calls its alarm, which may raise (SemiCRF: validate=False has none)")
def _with_alarm(alarm: Alarm, backend: str, *inputs: Any, **terms: Any) -> Tensor:
    return _log_partition(make_problem(*inputs, **terms), backend, alarm)


def _log_partition(problem: Problem, backend: str, alarm: Alarm | None = None) -> Tensor:
    chosen = resolve_backend(backend, problem.score_BTC)
    if chosen == "naive":
        return naive.log_partition(problem)
    return autograd.log_partition(engine_for(chosen, problem), alarm, problem)


def engine_for(backend: str, problem: Problem) -> Any:
    """The module with `forward(problem, keep)` and `backward(state)`: only torch has the whole model."""
    return engine_of(backend if problem.plain else "torch", problem.score_BTC)


def engine_of(backend: str, score_BTC: Tensor) -> Any:
    return native.engine_for(score_BTC) if backend == "native" else torch_factorised


@spelt_out
def posteriors(*model: Any, backend: str = "auto", **terms: Any) -> Posteriors:
    """log Z and all expected counts, differentiable once in every float input; see `Posteriors`."""
    if compiling():
        return compiled.posteriors(backend, *model, **terms).given_out()
    return _posteriors(make_problem(*model, **terms), backend).given_out()


def _posteriors(problem: Problem, backend: str) -> Posteriors:
    chosen = resolve_backend(backend, problem.score_BTC)
    return autograd.posteriors(naive if chosen == "naive" else engine_for(chosen, problem), problem)


compiled.register(_log_partition, _posteriors)


@spelt_out
def marginals(*model: Any, backend: str = "auto", **terms: Any) -> Tensor:
    """posterior_BTC: the probability that frame t lies in a segment of label c; zero in the padding."""
    return posteriors(*model, backend=backend, **terms).label_BTC


@spelt_out
@compiled.uncompiled(LISTS)
def viterbi(*model: Any, backend: str = "auto", **terms: Any) -> tuple[Tensor, Sequence[Sequence[Segment]]]:
    """The best score (B,) and its segments [(start, end exclusive, label), ...] for each sequence.

    An infeasible sequence has score -inf and no segments. Ties: as in `kbest`. Raises BadDataError for NaN
    and +inf.
    """
    problem = _decodable(*model, **terms)
    if backend == "naive":
        decoding.reject_nan(problem)
        return naive.viterbi(problem)
    return decoding.viterbi(problem, resolve_backend(backend, problem.score_BTC))


@spelt_out
@compiled.uncompiled(LISTS)
def sample(
    *model: Any, samples: int = 1, seed: int = 0, backend: str = "auto", **terms: Any
) -> Sequence[Sequence[Sequence[Segment]]]:
    """`samples` exact draws for each sequence: lists of (start, end exclusive, label).

    They depend on the seed, the backend, the model and the sequence's own scores, never on the batch or the
    padding: two equal sequences of a batch get the same draws. An infeasible sequence gets empty ones.
    Raises BadDataError for NaN and +inf. "naive" draws as torch does.
    """
    problem = _decodable(*model, **terms)
    return decoding.sample(problem, samples, seed, resolve_backend(backend, problem.score_BTC))


@spelt_out
@compiled.uncompiled(LISTS)
def kbest(
    *model: Any, count: int = 5, backend: str = "auto", **terms: Any
) -> Sequence[Sequence[tuple[float, Sequence[Segment]]]]:
    """The `count` best segmentations of each sequence with their scores, best first; fewer if fewer exist.

    Ties: read from the sequence's end, the smaller label, then the smaller duration where they differ first.
    Raises BadDataError for NaN and +inf. "naive" is torch here.
    """
    problem = _decodable(*model, **terms)
    return decoding.best(problem, count, resolve_backend(backend, problem.score_BTC))


@spelt_out
def entropy(*model: Any, backend: str = "auto", **terms: Any) -> Tensor:
    """H (B,) in nats of the distribution over segmentations, float64, differentiable once; see `information`.

    Exact with -inf and with large scores; 0 where nothing is feasible. In torch.func and in compiled code,
    which cannot branch on values, it is NaN where only the chain rule would be exact.
    """
    problem = (
        compiled.unchecked(compiled.in_order(*model, **terms))
        if compiling()
        else make_problem(*model, **terms)
    )
    problem = information.precise(problem)
    return information.entropy(problem, posteriors(**problem.arguments(), backend=backend))


def _decodable(*model: Any, **terms: Any) -> Problem:
    if autograd.transforming():
        raise UsageError(
            "segments are lists, which torch.func cannot transform",
            fix="decode outside of the transformed function",
        )
    problem = make_problem(*model, **terms)
    return problem.detached() if any(one.requires_grad for one in problem.floats()) else problem
