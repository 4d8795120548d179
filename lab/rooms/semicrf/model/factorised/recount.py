"""Which counts cannot be trusted, and their replacement from the log domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.dual import STEP, real
from lab.rooms.semicrf.model.ledger import beyond, imbalance
from lab.rooms.semicrf.model.problem import Posteriors, Problem

ROUNDING = 1e-9
"""Allowed rounding of sums of probabilities in float64."""


def recounted(found: Posteriors, problem: Problem, redo_B: Tensor) -> Posteriors:
    """`found`, in place, with the counts of some sequences recomputed in the log domain."""
    if bool(redo_B.any()):
        again = redo_B.nonzero()[:, 0]
        counts = log_domain.posteriors(problem.rows(again))
        found.replace_rows(again, counts)
        elsewhere_B = beyond(real(found.log_z_B[again]), real(counts.log_z_B), torch.float64)
        found.mass_error_B[again] = torch.maximum(counts.mass_error_B, elsewhere_B)
    return found


def unsound(problem: Problem, found: Posteriors) -> Tensor:
    """Sequences whose pass from the right overflowed or lost mass, or that of a tangent, (B,) bool."""
    lost_B = ~(imbalance(problem, part(found, real)) <= ROUNDING)
    if found.label_BTC.is_complex():
        most_B = (found.label_BTC.imag.abs().flatten(1).amax(1) / STEP).clamp(min=1)
        moved = part(found, lambda x: x.imag / STEP / most_B.view(-1, *(1,) * (x.dim() - 1)))
        moved.mass_error_B.copy_(moved.label_BTC.sum(-1).abs().amax(1))
        lost_B |= ~(imbalance(problem, moved, whole=0) <= ROUNDING)
    return torch.isfinite(found.log_z_B) & lost_B


def part(found: Posteriors, take: Callable[[Tensor], Tensor]) -> Posteriors:
    """The counts by `take`, in float64; the mass is its own copy."""
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    taken = {name: take(x) for name, x in values.items() if x is not None and not name.startswith("mass")}
    return replace(found, **taken, mass_error_B=found.mass_error_B.clone())
