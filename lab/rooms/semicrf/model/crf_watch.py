"""The validation points of one pass through the CRF: partition, posterior mass, gradients.

The mass is the main alarm. Guards that look for NaN see nothing of a stale message or a wrong scale, whose results are
finite; but then the labels of some frame no longer have probability 1 in sum, and that is looked at in every backward
pass, as the kernels computed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain, naive
from lab.rooms.semicrf.model.ledger import TOLERANCE
from lab.rooms.semicrf.model.problem import Posteriors, Problem, make_problem
from lab.rooms.semicrf.model.validation import Validator, counted, counts, first_place, not_finite, where

GRADIENTS = ("grad_cum_scores", "grad_transition", "grad_duration_bias")
NAIVE_ARCS = 10_000
"""Frames times durations that the definition itself is asked for; beyond that the log domain replays."""


@dataclass
class CRFWatch:
    """`given` are scores, transitions and durations as views that only this forward pass holds; `ends` start and end.

    What is found on a GPU is told a step later, when the optimizer has moved the parameters: copies are kept.
    """

    validator: Validator
    given: list[Tensor]
    lengths: Tensor | None
    ends: tuple[Tensor, Tensor]
    backend: str
    mass_error_B: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.parameters = [value.detach().clone() for value in (*self.given[1:], *self.ends)]

    def partition(self, logZ_B: Tensor) -> None:
        """The forward pass's result now, the backward pass's gradients when they come."""
        self.validator.watch("partition", logZ_B, not_finite, lambda: self.partition_error(logZ_B.detach()))
        for tensor, title in zip(self.given, GRADIENTS, strict=True):
            if tensor.requires_grad:
                tensor.register_hook(self._gradient_hook(title))  # type: ignore[no-untyped-call]

    def posteriors(self, found: Posteriors) -> None:
        """The mass of what the backward pass makes its gradients of; the alarm of `log_partition`."""
        self.mass_error_B = found.mass_error_B
        tolerance = TOLERANCE.get(found.label_BTC.dtype, TOLERANCE[torch.float32])
        kept = (found.log_z_B, found.label_BTC, found.mass_error_B, found.mass_frame_B)
        self.validator.watch(
            "posterior mass",
            found.mass_error_B,
            lambda low, high: not high <= tolerance,
            lambda: self.mass_error(*kept, tolerance),
        )

    def _gradient_hook(self, title: str) -> Callable[[Tensor], None]:
        def look(gradient: Tensor) -> None:
            self.validator.watch(title, gradient, not_finite, lambda: self.gradient_error(gradient, title))

        return look

    def partition_error(self, logZ_B: Tensor) -> RuntimeError:
        nans, infs = counts(logZ_B)
        b = first_place(~torch.isfinite(logZ_B))["b"]
        words = f"first b={b}; {self._replayed_partition(b)}"
        return RuntimeError(
            f"Non-finite partition from forward pass ({self.backend}): {nans} NaN, {infs} Inf [{words}]"
        )

    def mass_error(
        self, log_z_B: Tensor, label_BTC: Tensor, error_B: Tensor, frame_B: Tensor, tolerance: float
    ) -> RuntimeError:
        """Where and by how much; posteriors that are no numbers are told in the guide's words for gradients."""
        if not bool(torch.isfinite(label_BTC).all()):
            return self.gradient_error(label_BTC, GRADIENTS[0])
        b = int(error_B.argmax())
        t = int(frame_B[b])
        wrong = int((error_B > tolerance).sum())
        others = f", {wrong} of {len(error_B)} sequences" if wrong > 1 else ""
        replay = self._replayed_mass(b, t, float(log_z_B[b]), label_BTC[b].double().cpu(), tolerance)
        return RuntimeError(
            f"Posterior mass is not 1 in CRF backward ({self.backend}): worst error {float(error_B[b]):.1e} "
            f"[first b={b} t={t}{others}; {replay}]"
        )

    def gradient_error(self, gradient: Tensor, title: str) -> RuntimeError:
        known = self.mass_error_B is not None
        coverage = f"; coverage {float(self.mass_error_B.max()):.1e}" if known else ""  # type: ignore[union-attr]
        words = f"{where(~torch.isfinite(gradient))}{coverage}"
        return RuntimeError(
            f"Non-finite values in CRF backward ({self.backend}): {title} has {counted(gradient)} [{words}]"
        )

    def _sequence(self, b: int) -> Problem | None:
        """One sequence in float64 on the CPU, without its padding; None for a length of 0."""
        score_BTC = self.given[0].detach()
        length = score_BTC.shape[1] if self.lengths is None else int(self.lengths[b])
        values = (score_BTC[b : b + 1, :length], *self.parameters)
        score, transition, duration, start, end = (value.double().cpu() for value in values)
        return make_problem(score, transition, duration, None, start, end) if length > 0 else None

    def _replayed_partition(self, b: int) -> str:
        """What the plain float64 reference says of the log Z of sequence `b`."""
        problem = self._sequence(b)
        if problem is None:
            return "its length is 0"
        replay = float(naive.log_partition(problem))
        if replay == -math.inf:
            closed = (problem.score_BTC[0] == -math.inf).all(dim=1).nonzero()
            why = f": all scores are -inf at t={int(closed[0])}" if len(closed) else ""
            return f"fp64 replay is -inf: no segmentation is possible{why}"
        if math.isfinite(replay):
            return f"fp64 replay is finite, {replay:.6g}: the inputs are sound"
        return f"fp64 replay is {replay} too: look at the inputs"

    def _replayed_mass(self, b: int, t: int, log_z: float, label_TC: Tensor, tolerance: float) -> str:
        """What the float64 reference says of sequence `b`: its mass at frame `t`, log Z, and where posteriors part."""
        problem = self._sequence(b)
        if problem is None:
            return "its length is 0"
        _, frames, longest, _ = problem.shape
        plain = naive.posteriors if frames * longest <= NAIVE_ARCS else log_domain.posteriors
        exact = plain(problem)
        right = float(exact.log_z_B[0])
        apart = ((label_TC[:frames] - exact.label_BTC[0]).abs().amax(1) > tolerance).nonzero()
        differs = f"differs from t={int(apart[0])}" if len(apart) else "has the same posteriors"
        mass = float(exact.label_BTC[0, t].sum())
        return f"fp64 replay has mass {mass:.6g}, log Z {right:.6g} (here {log_z - right:+.2g}) and {differs}"
