"""The validation points of one pass through the CRF: partition, posterior mass, gradients.

The mass is the main alarm. Guards against NaN miss a stale message or a wrong scale, because the results stay
finite. But then the labels of some frame no longer sum to probability 1, which is checked in every backward
pass on the counts that the kernels computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain, naive
from lab.rooms.semicrf.model.ledger import mass_by_durations, tolerance_of
from lab.rooms.semicrf.model.problem import Posteriors, Problem, make_problem, onto
from lab.rooms.semicrf.model.validation.points import FINITE, Validator, counted, first_place, where

GRADIENTS = ("grad_cum_scores", "grad_transition", "grad_duration_bias")
NAIVE_ARCS = 10_000
"""Frames times durations up to which the definition itself replays; beyond, the log domain does."""


@dataclass(frozen=True)
class Kept:
    """The parts of the posteriors that a message needs.

    `frames_B` is the mass error by frames, `covered_B` the error by durations.
    """

    log_z_B: Tensor
    label_BTC: Tensor
    frames_B: Tensor
    frame_B: Tensor
    covered_B: Tensor
    tolerance: float


class CRFWatch:
    """The points of one forward and backward pass.

    What is found on a GPU is reported one step later, when the optimizer has moved the parameters: so
    parameters are copied, and scores are kept detached, because a graph that its own hooks hold is never
    freed.
    """

    def __init__(
        self,
        validator: Validator,
        given: list[Tensor],
        lengths: Tensor | None,
        ends: tuple[Tensor, Tensor],
        backend: str,
    ) -> None:
        """`given` are scores, transitions and durations; `ends` are start and end."""
        self.validator, self.backend = validator, backend
        self.lengths = None if lengths is None else lengths.long()
        self.score_BTC = given[0].detach()
        self.parameters = [value.detach().clone() for value in (*given[1:], *ends)]
        self.mass_error_B: Tensor | None = None

    def partition(self, logZ_B: Tensor, given: list[Tensor]) -> None:
        """Watch the forward pass's result now, and the backward pass's gradients when they come.

        `given` are views that only this pass holds: a hook on a parameter itself would stay for good.
        """
        value_B = logZ_B.detach()
        self.validator.watch("partition", value_B, FINITE, lambda: self.partition_error(value_B))
        for tensor, title in zip(given, GRADIENTS, strict=True):
            if tensor.requires_grad:
                tensor.register_hook(partial(self.gradient, title))  # type: ignore[no-untyped-call]

    def posteriors(self, found: Posteriors) -> None:
        """The mass of the counts that become gradients; the `alarm` of `log_partition`."""
        label_BTC = found.label_BTC
        tolerance = tolerance_of(label_BTC.dtype, label_BTC.shape[1])
        lengths_B = label_BTC.shape[1] if self.lengths is None else onto(self.lengths, label_BTC.device)
        covered_B = mass_by_durations(found.duration_BKC, lengths_B, found.log_z_B)
        self.mass_error_B = torch.maximum(found.mass_error_B, covered_B)
        kept = Kept(found.log_z_B, label_BTC, found.mass_error_B, found.mass_frame_B, covered_B, tolerance)
        for name, value, allowed in (
            ("posterior mass", self.mass_error_B, (-math.inf, tolerance)),
            ("posteriors", label_BTC, (-tolerance, 1 + tolerance)),
        ):
            self.validator.watch(name, value, allowed, lambda: self.mass_error(kept))

    def gradient(self, title: str, gradient: Tensor) -> None:
        self.validator.watch(title, gradient, FINITE, lambda: self.gradient_error(gradient, title))

    def partition_error(self, logZ_B: Tensor) -> RuntimeError:
        b = first_place(~torch.isfinite(logZ_B))["b"]
        words = f"first b={b}; {self._replayed_partition(b)}"
        return RuntimeError(
            f"Non-finite partition from forward pass ({self.backend}): {counted(logZ_B)} [{words}]"
        )

    def mass_error(self, kept: Kept) -> RuntimeError:
        """Where and by how much; non-finite posteriors are reported in the guide's words for gradients."""
        if not bool(torch.isfinite(kept.label_BTC).all()):
            return self.gradient_error(kept.label_BTC, GRADIENTS[0])
        beyond_B = torch.maximum(kept.label_BTC - 1, -kept.label_BTC).flatten(1).amax(1).double()
        lines = {
            "": kept.frames_B,
            " by its durations": kept.covered_B,
            " beyond 0 to 1": beyond_B,
        }
        wrong = int((torch.stack(list(lines.values())).amax(0) > kept.tolerance).sum())
        name = next(name for name, error_B in lines.items() if bool((error_B > kept.tolerance).any()))
        b = int(lines[name].argmax())
        place = f"b={b} t={int(kept.frame_B[b])}" if not name else f"b={b}"
        among = f", {wrong} of {len(beyond_B)} sequences" if wrong > 1 else ""
        return RuntimeError(
            f"Posterior mass is not 1 in CRF backward ({self.backend}): "
            f"worst error {float(lines[name][b]):.1e}{name} "
            f"[first {place}{among}; {self._replayed_mass(b, kept)}]"
        )

    def gradient_error(self, gradient: Tensor, title: str) -> RuntimeError:
        measured = self.mass_error_B is not None
        coverage = f"; coverage {float(self.mass_error_B.max()):.1e}" if measured else ""  # type: ignore[union-attr]
        words = f"{where(~torch.isfinite(gradient))}{coverage}"
        return RuntimeError(
            f"Non-finite values in CRF backward ({self.backend}): {title} has {counted(gradient)} [{words}]"
        )

    def _sequence(self, b: int) -> Problem | None:
        """One sequence on the CPU, without its padding; None for a length of 0."""
        length = self.score_BTC.shape[1] if self.lengths is None else int(self.lengths[b])
        values = (self.score_BTC[b : b + 1, :length], *self.parameters)
        score, transition, duration, start, end = (value.cpu() for value in values)
        return make_problem(score, transition, duration, None, start, end) if length > 0 else None

    def _replayed_partition(self, b: int) -> str:
        """What the plain float64 reference gives for the log Z of sequence `b`."""
        problem = self._sequence(b)
        if problem is None:
            return "its length is 0"
        replay = float(naive.log_partition(problem))
        if replay == -math.inf:
            closed = (problem.score_BTC[0] == -math.inf).all(dim=1).nonzero()
            reason = f": all scores are -inf at t={int(closed[0])}" if len(closed) else ""
            return f"fp64 replay is -inf: no segmentation is possible{reason}"
        return f"fp64 replay is finite, {replay:.6g}: the inputs are sound"

    def _replayed_mass(self, b: int, kept: Kept) -> str:
        """What the float64 reference gives for sequence `b`: its mass, log Z, and the first frame that
        differs.
        """
        problem = self._sequence(b)
        if problem is None:
            return "its length is 0"
        _, frames, longest, _ = problem.shape
        plain = naive.posteriors if frames * longest <= NAIVE_ARCS else log_domain.posteriors
        exact = plain(problem)
        right, computed = float(exact.log_z_B[0]), float(kept.log_z_B[b])
        gap_TC = (kept.label_BTC[b, :frames].double().cpu() - exact.label_BTC[0]).abs()
        apart = (gap_TC.amax(1) > kept.tolerance).nonzero()
        differs = f"differs from t={int(apart[0])}" if len(apart) else "has the same posteriors"
        mass = float(exact.label_BTC[0, int(kept.frame_B[b])].sum())
        return (
            f"fp64 replay has mass {mass:.6g}, log Z {right:.6g} (here {computed - right:+.2g}) and {differs}"
        )
