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
from lab.rooms.semicrf.model.problem import FLOATS, Posteriors, Problem, make_problem, onto
from lab.rooms.semicrf.model.validation.points import FINITE, Validator, counted, first_place, where

GRADIENTS = {
    "score_BTC": "grad_cum_scores",
    "transition_CC": "grad_transition",
    "duration_KC": "grad_duration_bias",
}
NAIVE_ARCS = 10_000
"""Frames times durations up to which the definition itself replays; beyond, the log domain does."""


@dataclass(frozen=True)
class Counted:
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
        self, validator: Validator, model: dict[str, Tensor], lengths: Tensor | None, backend: str
    ) -> None:
        """`model` are scores and parameters by the names of api.py."""
        self.validator, self.backend = validator, backend
        self.lengths = None if lengths is None else lengths.long()
        by_sequence = ("score_BTC", *FLOATS[5:])
        self.by_sequence = {name: model[name].detach() for name in by_sequence if name in model}
        shared = [name for name in model if name not in by_sequence]
        self.shared = {name: model[name].detach().clone() for name in shared}
        self.mass_error_B: Tensor | None = None

    def partition(self, logZ_B: Tensor, model: dict[str, Tensor]) -> None:
        """Watch the forward pass's result now, and the backward pass's gradients when they come.

        `model` are views that only this pass holds: a hook on a parameter itself would stay for good.
        """
        value_B = logZ_B.detach()
        self.validator.watch("partition", value_B, FINITE, lambda: self.partition_error(value_B))
        for name, title in GRADIENTS.items():
            if model[name].requires_grad:
                model[name].register_hook(partial(self.gradient, title))  # type: ignore[no-untyped-call]

    def posteriors(self, posteriors: Posteriors) -> None:
        """The mass of the counts that become gradients; the `alarm` of `log_partition`."""
        label_BTC = posteriors.label_BTC
        tolerance = tolerance_of(label_BTC.dtype, label_BTC.shape[1])
        lengths_B = label_BTC.shape[1] if self.lengths is None else onto(self.lengths, label_BTC.device)
        covered_B = mass_by_durations(posteriors.duration_BKC, lengths_B, posteriors.log_z_B)
        self.mass_error_B = torch.maximum(posteriors.mass_error_B, covered_B)
        sums = (posteriors.mass_error_B, posteriors.mass_frame_B, covered_B, tolerance)
        watched = Counted(posteriors.log_z_B, label_BTC, *sums)
        for name, value, allowed in (
            ("posterior mass", self.mass_error_B, (-math.inf, tolerance)),
            ("posteriors", label_BTC, (-tolerance, 1 + tolerance)),
        ):
            self.validator.watch(name, value, allowed, lambda: self.mass_error(watched))

    def gradient(self, title: str, gradient: Tensor) -> None:
        self.validator.watch(title, gradient, FINITE, lambda: self.gradient_error(gradient, title))

    def partition_error(self, logZ_B: Tensor) -> RuntimeError:
        b = first_place(~torch.isfinite(logZ_B))["b"]
        words = f"first b={b}; {self._replayed_partition(b)}"
        return RuntimeError(
            f"Non-finite partition from forward pass ({self.backend}): {counted(logZ_B)} [{words}]"
        )

    def mass_error(self, counts: Counted) -> RuntimeError:
        """Where and by how much; non-finite posteriors are reported in the guide's words for gradients."""
        if not bool(torch.isfinite(counts.label_BTC).all()):
            return self.gradient_error(counts.label_BTC, GRADIENTS["score_BTC"])
        beyond_B = torch.maximum(counts.label_BTC - 1, -counts.label_BTC).flatten(1).amax(1).double()
        lines = {
            "": counts.frames_B,
            " by its durations": counts.covered_B,
            " beyond 0 to 1": beyond_B,
        }
        wrong = int((torch.stack(list(lines.values())).amax(0) > counts.tolerance).sum())
        name = next(name for name, error_B in lines.items() if bool((error_B > counts.tolerance).any()))
        b = int(lines[name].argmax())
        place = f"b={b} t={int(counts.frame_B[b])}" if not name else f"b={b}"
        among = f", {wrong} of {len(beyond_B)} sequences" if wrong > 1 else ""
        return RuntimeError(
            f"Posterior mass is not 1 in CRF backward ({self.backend}): "
            f"worst error {float(lines[name][b]):.1e}{name} "
            f"[first {place}{among}; {self._replayed_mass(b, counts)}]"
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
        length = self.by_sequence["score_BTC"].shape[1] if self.lengths is None else int(self.lengths[b])
        rows = {name: value[b : b + 1, :length].cpu() for name, value in self.by_sequence.items()}
        shared = {name: value.cpu() for name, value in self.shared.items()}
        return make_problem(**rows, **shared) if length > 0 else None

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

    def _replayed_mass(self, b: int, counts: Counted) -> str:
        """What the float64 reference gives for sequence `b`: its mass, log Z, and the first frame that
        differs.
        """
        problem = self._sequence(b)
        if problem is None:
            return "its length is 0"
        _, frames, longest, _ = problem.shape
        plain = naive.posteriors if frames * longest <= NAIVE_ARCS else log_domain.posteriors
        exact = plain(problem)
        right, computed = float(exact.log_z_B[0]), float(counts.log_z_B[b])
        gap_TC = (counts.label_BTC[b, :frames].double().cpu() - exact.label_BTC[0]).abs()
        apart = (gap_TC.amax(1) > counts.tolerance).nonzero()
        differs = f"differs from t={int(apart[0])}" if len(apart) else "has the same posteriors"
        mass = float(exact.label_BTC[0, int(counts.frame_B[b])].sum())
        return (
            f"fp64 replay has mass {mass:.6g}, log Z {right:.6g} (here {computed - right:+.2g}) and {differs}"
        )
