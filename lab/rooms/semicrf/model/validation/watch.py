"""The validation points of one pass through the CRF: partition, posterior mass, gradients.

The mass is the main alarm. Guards against NaN miss a stale message or a wrong scale, because the results stay
finite. But then the labels of some frame no longer sum to probability 1, which is checked in every backward
pass on the counts that the kernels computed.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import mass_by_durations, tolerance_of
from lab.rooms.semicrf.model.problem import FLOATS, Posteriors, make_problem, onto
from lab.rooms.semicrf.model.validation.points import FINITE, Validator, counted, first_place, where

GRADIENTS = {
    "score_BTC": "grad_cum_scores",
    "transition_CC": "grad_transition",
    "duration_KC": "grad_duration_bias",
}


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
        error = partial(self.mass_error, label_BTC, self.mass_error_B, posteriors.mass_frame_B)
        self.validator.watch("posterior mass", self.mass_error_B, (-math.inf, tolerance), error)
        self.validator.watch("posteriors", label_BTC, (-tolerance, 1 + tolerance), error)

    def gradient(self, title: str, gradient: Tensor) -> None:
        self.validator.watch(title, gradient, FINITE, lambda: self.gradient_error(gradient, title))

    def partition_error(self, logZ_B: Tensor) -> RuntimeError:
        b = first_place(~torch.isfinite(logZ_B))["b"]
        words = f"first b={b}; {self._replayed(b)}"
        return RuntimeError(
            f"Non-finite partition from forward pass ({self.backend}): {counted(logZ_B)} [{words}]"
        )

    def mass_error(self, label_BTC: Tensor, mass_error_B: Tensor, frame_B: Tensor) -> RuntimeError:
        """Where and by how much; non-finite posteriors are reported in the guide's words for gradients."""
        if not bool(torch.isfinite(label_BTC).all()):
            return self.gradient_error(label_BTC, GRADIENTS["score_BTC"])
        beyond_B = torch.maximum(label_BTC - 1, -label_BTC).flatten(1).amax(1).double()
        error_B = torch.maximum(mass_error_B, beyond_B)
        b = int(error_B.argmax())
        return RuntimeError(
            f"Posterior mass is not 1 in CRF backward ({self.backend}): worst error {float(error_B[b]):.1e} "
            f"[first b={b} t={int(frame_B[b])}; {self._replayed(b)}]"
        )

    def gradient_error(self, gradient: Tensor, title: str) -> RuntimeError:
        measured = self.mass_error_B is not None
        coverage = f"; coverage {float(self.mass_error_B.max()):.1e}" if measured else ""  # type: ignore[union-attr]
        words = f"{where(~torch.isfinite(gradient))}{coverage}"
        return RuntimeError(
            f"Non-finite values in CRF backward ({self.backend}): {title} has {counted(gradient)} [{words}]"
        )

    def _replayed(self, b: int) -> str:
        """Recompute by the plain float64 reference the log Z of sequence `b`."""
        length = self.by_sequence["score_BTC"].shape[1] if self.lengths is None else int(self.lengths[b])
        if length < 1:
            return "its length is 0"
        rows = {name: value[b : b + 1, :length].cpu() for name, value in self.by_sequence.items()}
        problem = make_problem(**rows, **{name: value.cpu() for name, value in self.shared.items()})
        replay = float(log_domain.log_partition(problem))
        if replay == -math.inf:
            closed = (problem.score_BTC[0] == -math.inf).all(dim=1).nonzero()
            reason = f": all scores are -inf at t={int(closed[0])}" if len(closed) else ""
            return f"fp64 replay is -inf: no segmentation is possible{reason}"
        return f"fp64 replay is finite, {replay:.6g}: the inputs are sound"
