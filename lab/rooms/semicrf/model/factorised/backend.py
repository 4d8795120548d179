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

import torch

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.dual import log
from lab.rooms.semicrf.model.factorised.audit import audit
from lab.rooms.semicrf.model.factorised.counts import Counts
from lab.rooms.semicrf.model.factorised.messages import State, walk
from lab.rooms.semicrf.model.factorised.recount import recounted, unsound
from lab.rooms.semicrf.model.factorised.weights import weigh
from lab.rooms.semicrf.model.problem import Posteriors, Problem

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
        again = flagged_B.nonzero()[:, 0]
        log_z_B[again] = log_domain.forward(problem.rows(again)).log_z_B
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
