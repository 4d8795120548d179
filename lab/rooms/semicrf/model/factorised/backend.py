"""The semi-CRF in plain torch (1.12 or newer, CPU or GPU), float64: O(T (C^2 + K C)) instead of O(T K C^2).

Transitions do not depend on the duration, so they are applied once per boundary:

    gamma[s, c] = sum_c' alpha[s, c'] E[c', c]                           (start[c] at s = 0)
    alpha[t, c] = sum_k gamma[t-k, c] D[k, c] prod_{t-k<u<=t} w_u[c]

with E, D, w the exponentials of transition, duration and score (shifted per frame by its maximum over labels,
which is common to every segmentation). A window of K pending rows carries the product, so no sum ever spans
more than one segment. Values are linear; every `EVERY` frames a power of two moves from them into an integer
exponent. `audit` bounds what underflow can have lost; sequences over the bound are recomputed by
`log_domain.py`. The counts follow from a second pass of the same cost from the right. With transitions that
depend on the duration, gamma has one row per k: O(T K C^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.dual import STEP, log, real
from lab.rooms.semicrf.model.factorised.audit import audit
from lab.rooms.semicrf.model.factorised.counts import Counts
from lab.rooms.semicrf.model.factorised.messages import State, walk
from lab.rooms.semicrf.model.factorised.weights import weigh
from lab.rooms.semicrf.model.ledger import beyond, imbalance
from lab.rooms.semicrf.model.problem import Posteriors, Problem, by_sequence

ROUNDING = 1e-9
"""Allowed rounding of sums of probabilities in float64."""
ADDED_EXACTLY = 1e9
"""Shifts beyond it would swallow digits of log Z in their sum; the log domain adds them compensated."""


def forward(problem: Problem, keep: bool = True) -> State:
    """log Z and the left messages of every sequence; flagged ones get log Z from the log domain.

    `keep` is for the other backends: here the messages are computed with log Z in any case.
    """
    weights = weigh(problem)
    chain = walk(weights, problem.shape[2])
    rows = torch.arange(problem.shape[0], device=problem.lengths_B.device)
    z_B = (chain.alpha_TBC[problem.lengths_B, rows] * weights.end_C).sum(-1)
    log_z_B = log(z_B) + chain.exponent_TB[problem.lengths_B, rows] * math.log(2) + weights.log_shift_B
    flagged_B = audit(problem, chain, z_B, weights.gain_B) | (weights.most_shift_B > ADDED_EXACTLY)
    if bool(flagged_B.any()):
        log_z_B[flagged_B] = log_domain.forward(problem.rows(flagged_B)).log_z_B
    return State(problem, weights, chain, z_B, log_z_B, flagged_B)


def backward(state: State) -> Posteriors:
    """The pass from the right, and with it every expected count; flagged sequences from the log domain."""
    problem = state.problem
    counts = Counts(state)
    frames = problem.shape[1]
    for s in range(frames - 1, -1, -1):
        counts.step(s)
    found = counts.posteriors()
    return recounted(found, problem, state.flagged_B | unsound(problem, found))


def recounted(found: Posteriors, problem: Problem, redo_B: Tensor) -> Posteriors:
    """`found`, in place, with the counts of some sequences recomputed in the log domain."""
    if bool(redo_B.any()):
        counts = log_domain.posteriors(problem.rows(redo_B))
        found.replace_rows(redo_B, counts)
        elsewhere_B = beyond(real(found.log_z_B[redo_B]), real(counts.log_z_B), torch.float64)
        found.mass_error_B[redo_B] = torch.maximum(counts.mass_error_B, elsewhere_B)
    return found


def unsound(problem: Problem, found: Posteriors) -> Tensor:
    """Sequences whose pass from the right overflowed or lost mass, or that of a tangent, (B,) bool."""
    lost_B = ~(imbalance(problem, part(found, real)) <= ROUNDING)
    if found.label_BTC.is_complex():
        most_B = (found.label_BTC.imag.abs().flatten(1).amax(1) / STEP).clamp(min=1)
        moved = part(found, lambda x: x.imag / STEP / by_sequence(most_B, x))
        moved.mass_error_B.copy_(moved.label_BTC.sum(-1).abs().amax(1))
        lost_B |= ~(imbalance(problem, moved, whole=0) <= ROUNDING)
    return torch.isfinite(found.log_z_B) & lost_B


def part(found: Posteriors, take: Callable[[Tensor], Tensor]) -> Posteriors:
    """The counts by `take`, in float64; the mass is its own copy."""
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    taken = {name: take(x) for name, x in values.items() if x is not None and not name.startswith("mass")}
    return replace(found, **taken, mass_error_B=found.mass_error_B.clone())
