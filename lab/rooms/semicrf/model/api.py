"""The functions for users: log_partition, marginals, viterbi, sample, entropy; and their gradient.

- `score_BTC` (B, T, C): score of label c at frame t.
- `duration_KC[k-1, c]`: bias of a segment of k frames.
- `transition_CC[i, j]`: from label i to j between neighbouring segments; (K, C, C) where it depends on the
  duration of the segment it leads to, (B, T, C, C) where on its first frame (row 0 is not read).
- Keywords, each a tensor or None, `terms` below: `start_C`, `end_C`, added to the first and to the last
  segment; `seg_start_BTC`, `seg_end_BTC`, added to a segment that starts, or ends, with frame t;
  `segment_BTKC[b, t, k-1, c]`, added to the segment of k frames that starts with frame t.

-inf forbids. Values are float64 whatever the input's dtype, because at a log Z of 10^4 float32 has no digits
left for its error. Gradients have the dtype of their input. An infeasible sequence has log Z = -inf and zero
gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import autograd, decoding, naive
from lab.rooms.semicrf.model.autograd import Alarm, expected_score
from lab.rooms.semicrf.model.factorised import backend as torch_factorised
from lab.rooms.semicrf.model.log_domain import finite_or_zero
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.native import choose as native
from lab.rooms.semicrf.model.problem import MAX_LABELS, Posteriors, Problem, make_problem

BACKENDS = ("naive", "torch", "native", "auto")


def resolve_backend(backend: str, score_BTC: Tensor) -> str:
    """What "auto" means here: what is compiled for this device, else torch."""
    if backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}", fix=f"one of {', '.join(BACKENDS)}")
    if backend != "auto":
        return backend
    fits = not score_BTC.is_cuda or score_BTC.shape[-1] <= MAX_LABELS
    return "native" if fits and native.missing_reason(score_BTC) is None else "torch"


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
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, **terms)
    chosen = resolve_backend(backend, problem.score_BTC)
    if chosen == "naive":
        return naive.log_partition(problem)
    return autograd.log_partition(engine_for(chosen, problem), alarm, problem)


def engine_for(backend: str, problem: Problem) -> Any:
    """The module with `forward(problem, keep)` and `backward(state)`: only torch has the whole model."""
    return engine_of(backend if problem.plain else "torch")


def engine_of(backend: str) -> Any:
    """The module with `forward(problem, keep)` and `backward(state)` of a backend."""
    return {"torch": torch_factorised, "native": native}[backend]


def posteriors(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    backend: str = "auto",
    **terms: Tensor | None,
) -> Posteriors:
    """log Z and all expected counts, differentiable once in every float input; see `Posteriors`."""
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, **terms)
    return _posteriors(problem, resolve_backend(backend, problem.score_BTC))


def _posteriors(problem: Problem, chosen: str) -> Posteriors:
    if chosen == "naive":
        return naive.posteriors(problem)
    return autograd.posteriors(engine_for(chosen, problem), problem)


def marginals(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    backend: str = "auto",
    **terms: Tensor | None,
) -> Tensor:
    """posterior_BTC: the probability that frame t lies in a segment of label c; zero in the padding."""
    return posteriors(score_BTC, transition_CC, duration_KC, lengths_B, backend=backend, **terms).label_BTC


def viterbi(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    backend: str = "auto",
    **terms: Tensor | None,
) -> tuple[Tensor, list[list[Segment]]]:
    """The best score (B,) and its segments [(start, end exclusive, label), ...] for each sequence.

    An infeasible sequence has score -inf and no segments. Ties: the smallest duration, then the smallest
    label. Raises BadDataError for NaN and +inf.
    """
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, **terms).detached()
    if backend == "naive":
        return naive.viterbi(problem)
    return decoding.viterbi(problem, resolve_backend(backend, problem.score_BTC))


def sample(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    samples: int = 1,
    seed: int = 0,
    backend: str = "auto",
    **terms: Tensor | None,
) -> list[list[list[Segment]]]:
    """`samples` exact draws for each sequence: lists of (start, end exclusive, label).

    They depend on the seed, the backend, the model and the sequence's own scores, never on the batch or the
    padding: two equal sequences of a batch get the same draws. An infeasible sequence gets empty ones.
    Raises BadDataError for NaN and +inf. "naive" draws as torch does.
    """
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, **terms).detached()
    return decoding.sample(problem, samples, seed, resolve_backend(backend, problem.score_BTC))


def kbest(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    count: int = 5,
    backend: str = "auto",
    **terms: Tensor | None,
) -> list[list[tuple[float, list[Segment]]]]:
    """The `count` best segmentations of each sequence with their scores, best first; fewer if fewer exist.

    Ties: read from the sequence's end, the smaller label, then the smaller duration where they differ first.
    Raises BadDataError for NaN and +inf. "naive" is torch here.
    """
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, **terms).detached()
    return decoding.best(problem, count, resolve_backend(backend, problem.score_BTC))


def entropy(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    *,
    backend: str = "auto",
    **terms: Tensor | None,
) -> Tensor:
    """H (B,) in nats of the distribution over segmentations: log Z minus the expected score.

    Differentiable once in every float input. A number added to all labels of a frame is common to all
    segmentations, so each frame's largest score that counts is taken out first: beside 1e30 no digit of H
    would be left. An infeasible sequence has -inf.
    """
    problem = make_problem(score_BTC, transition_CC, duration_KC, lengths_B, **terms)
    chosen = resolve_backend(backend, problem.score_BTC)
    problem = _centred(problem, torch.ones_like(problem.score_BTC, dtype=torch.bool))
    found = _posteriors(problem, chosen)
    counted_BTC = found.label_BTC > 0
    if bool((problem.score_BTC.abs() * counted_BTC > naive.LARGE).any()):  # the largest leads nowhere
        problem = _centred(problem, counted_BTC)
        found = _posteriors(problem, chosen)
    return found.log_z_B - expected_score(problem, found)


def _centred(problem: Problem, counted_BTC: Tensor) -> Problem:
    """Float64 scores less the largest of those that count in each frame."""
    score_BTC = problem.score_BTC.double()
    top_BT = score_BTC.detach().masked_fill(~counted_BTC, -torch.inf).amax(-1)
    return replace(problem, score_BTC=score_BTC - finite_or_zero(top_BT)[..., None])
