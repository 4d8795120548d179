"""The functions for users: log_partition, marginals, viterbi, sample, entropy; and their gradient.

- `score_BTC` (B, T, C): score of label c at frame t.
- `duration_KC[k-1, c]`: bias of a segment of k frames.
- `transition_CC[i, j]`: from label i to j between neighbouring segments; (K, C, C) where it depends on the
  duration of the segment it leads to.
- `start_C`, `end_C`: added to the first and to the last segment.

-inf forbids. Values are float64 whatever the input's dtype, because at a log Z of 10^4 float32 has no digits
left for its error. Gradients have the dtype of their input. An infeasible sequence has log Z = -inf and zero
gradient.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lab.errors import MissingError, UsageError
from lab.rooms.semicrf.model import decoding, naive
from lab.rooms.semicrf.model.factorised import backend as torch_factorised
from lab.rooms.semicrf.model.finish import finish
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.native import choose as native
from lab.rooms.semicrf.model.problem import MAX_LABELS, Posteriors, Problem, make_problem

BACKENDS = ("naive", "torch", "native", "triton", "auto")
Alarm = Callable[[Posteriors], None]


def resolve_backend(backend: str, score_BTC: Tensor) -> str:
    """What "auto" means here: Triton on a GPU that has it, else what is compiled for it, else torch."""
    if backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}", fix=f"one of {', '.join(BACKENDS)}")
    if backend != "auto":
        return backend
    fits = not score_BTC.is_cuda or score_BTC.shape[-1] <= MAX_LABELS
    if fits and score_BTC.is_cuda and has_triton() and new_enough(score_BTC.device):
        return "triton"
    return "native" if fits and native.missing_reason(score_BTC) is None else "torch"


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def new_enough(device: torch.device) -> bool:
    """Whether Triton supports this GPU: NVIDIA's from Volta on, and all that torch for ROCm supports."""
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (7, 0)


def log_partition(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
    backend: str = "auto",
    alarm: Alarm | None = None,
) -> Tensor:
    """log Z (B,), float64, differentiable once in every float input: a second derivative raises.

    `alarm` is called with the expected counts in the backward pass, before they become gradients; an
    exception that it raises ends the pass. The naive form has no counts of its own and calls nothing.
    """
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, start_C, end_C)
    chosen = resolve_backend(backend, problem.score_BTC)
    if chosen == "naive":
        return naive.log_partition(problem)
    log_z_B: Tensor = LogPartition.apply(  # type: ignore[no-untyped-call]
        chosen, alarm, problem.lengths_B, *problem.floats()
    )
    return log_z_B


class LogPartition(torch.autograd.Function):
    """log Z with its hand-written gradient: the expected counts."""

    @staticmethod
    def forward(ctx: Any, backend: str, alarm: Alarm | None, lengths_B: Tensor, *floats: Tensor) -> Tensor:
        score_BTC, transition, duration_KC, start_C, end_C = (value.detach() for value in floats)
        problem = Problem(score_BTC, transition, duration_KC, lengths_B, start_C, end_C)
        engine = engine_of(backend)
        state = engine.forward(problem, keep=any(ctx.needs_input_grad[3:]))
        ctx.engine, ctx.state, ctx.problem, ctx.alarm = engine, state, problem, alarm
        ctx.save_for_backward(*floats)
        log_z_B: Tensor = state.log_z_B.detach()  # the output itself in ctx would keep all messages till a gc
        return log_z_B

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_B: Tensor) -> Any:
        _ = (
            ctx.saved_tensors
        )  # raises where one was changed in place since: the counts read some of them again
        found = ctx.engine.backward(ctx.state)
        if ctx.alarm is not None:
            ctx.alarm(found)  # before what is wrong is mended: a fault is to be seen
        found = finish(ctx.problem, found)
        return (None, None, None, *gradients(ctx.problem, found, grad_B, ctx.needs_input_grad[3:]))


def engine_of(backend: str) -> Any:
    """The module with `forward(problem, keep)` and `backward(state)` of a backend."""
    if backend == "torch":
        return torch_factorised
    if backend == "native":
        return native
    if not has_triton():
        raise MissingError("triton is not installed", fix="backend='torch', or pip install triton")
    from lab.rooms.semicrf.model.triton import backend as triton_backend

    return triton_backend


def gradients(
    problem: Problem, found: Posteriors, grad_B: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Counts weighted by the incoming gradient, in the dtype of each input and the order of `floats()`."""
    grad_B = torch.where(found.log_z_B.abs() < torch.inf, grad_B.double(), 0.0)

    def summed(count: Tensor) -> Tensor:
        return (grad_B @ count.double().flatten(1)).view(count.shape[1:])

    ways: tuple[Callable[[], Tensor], ...] = (
        lambda: found.label_BTC * grad_B.to(found.label_BTC.dtype)[:, None, None],
        lambda: summed(found.transition),
        lambda: summed(found.duration_BKC),
        lambda: summed(found.start_BC()),
        lambda: summed(found.end_BC(problem.lengths_B)),
    )
    inputs = zip(ways, problem.floats(), wanted, strict=True)
    return [way().to(given.dtype) if want else None for way, given, want in inputs]


def posteriors(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
    backend: str = "auto",
) -> Posteriors:
    """log Z and all expected counts (no gradient); see `Posteriors`."""
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, start_C, end_C).detached()
    chosen = resolve_backend(backend, problem.score_BTC)
    if chosen == "naive":
        return naive.posteriors(problem)
    engine = engine_of(chosen)
    return finish(problem, engine.backward(engine.forward(problem)))


def marginals(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """posterior_BTC: the probability that frame t lies in a segment of label c; zero in the padding."""
    return posteriors(
        score_BTC, transition_CC, duration_KC, lengths_B, start_C=start_C, end_C=end_C, backend=backend
    ).label_BTC


def viterbi(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, list[list[Segment]]]:
    """The best score (B,) and its segments [(start, end exclusive, label), ...] for each sequence.

    An infeasible sequence has score -inf and no segments. Ties: the smallest duration, then the smallest
    label. Raises BadDataError for NaN and +inf.
    """
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, start_C, end_C).detached()
    if backend == "naive":
        return naive.viterbi(problem)
    return decoding.viterbi(problem, decoder(backend, problem))


def decoder(backend: str, problem: Problem) -> str:
    """The form that decodes: what is compiled for this device, or torch."""
    chosen = resolve_backend(backend, problem.score_BTC)
    if chosen == "triton":
        return "native" if native.missing_reason(problem.score_BTC) is None else "torch"
    return "torch" if chosen == "naive" else chosen


def sample(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
    samples: int = 1,
    seed: int = 0,
    backend: str = "auto",
) -> list[list[list[Segment]]]:
    """`samples` exact draws for each sequence: lists of (start, end exclusive, label).

    They depend on the seed, the backend, the model and the sequence's own scores, never on the batch or the
    padding: two equal sequences of a batch get the same draws. An infeasible sequence gets empty ones.
    Raises BadDataError for NaN and +inf. "naive" draws as torch does.
    """
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, start_C, end_C).detached()
    return decoding.sample(problem, samples, seed, decoder(backend, problem))


def kbest(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
    count: int = 5,
    backend: str = "auto",
) -> list[list[tuple[float, list[Segment]]]]:
    """The `count` best segmentations of each sequence with their scores, best first; fewer if fewer exist.

    Ties: read from the sequence's end, the smaller label, then the smaller duration where they differ first.
    Raises BadDataError for NaN and +inf. "naive" is torch here.
    """
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, start_C, end_C).detached()
    return decoding.best(problem, count, decoder(backend, problem))


def entropy(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """H (B,) in nats of the distribution over segmentations: log Z minus the expected score, exact."""
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, start_C, end_C).detached()
    found = posteriors(
        score_BTC, transition_CC, duration_KC, lengths_B, start_C=start_C, end_C=end_C, backend=backend
    )
    return found.log_z_B - expected_score(problem, found)


def expected_score(problem: Problem, found: Posteriors) -> Tensor:
    """<theta, counts> (B,): a term with count zero adds zero, even if its score is -inf."""
    counts = (
        found.label_BTC,
        found.transition,
        found.duration_BKC,
        found.start_BC(),
        found.end_BC(problem.lengths_B),
    )
    total_B = torch.zeros_like(found.log_z_B)
    for value, count in zip(problem.floats(), counts, strict=True):
        term = torch.where(count == 0, torch.zeros_like(count), count * value.double())
        total_B = total_B + term.flatten(1).sum(1)
    return total_B
