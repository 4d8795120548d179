"""Which counts cannot be trusted, and their replacement from the log domain."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import imbalance
from lab.rooms.semicrf.model.problem import Posteriors, Problem

ROUNDING = 1e-9
"""Allowed rounding of sums of probabilities in float64."""
ROUNDING_LOG_Z = 1e-12
"""Allowed rounding of log Z, relative to its size."""


def recounted(found: Posteriors, problem: Problem, redo_B: Tensor) -> Posteriors:
    """`found`, in place, with the counts of some sequences recomputed in the log domain."""
    if bool(redo_B.any()):
        again = redo_B.nonzero()[:, 0]
        counts = log_domain.posteriors(problem.rows(again))
        found.replace_rows(again, counts)
        elsewhere_B = beyond(found.log_z_B[again], counts.log_z_B)
        found.mass_error_B[again] = torch.maximum(counts.mass_error_B, elsewhere_B)
    return found


def beyond(log_z_B: Tensor, mended_B: Tensor) -> Tensor:
    """The mass error of recomputed counts in terms of the log Z that was returned: |Z' / Z - 1| beyond
    rounding.

    Underflow in the pass from the right leaves log Z unchanged. Where the two differ, the pass from the left
    was wrong, which shares of the log domain, summing to 1 whatever Z is, could not show.
    """
    apart_B = torch.where(log_z_B == mended_B, torch.zeros_like(log_z_B), (log_z_B - mended_B).abs())
    return torch.expm1(torch.relu(apart_B - ROUNDING_LOG_Z * mended_B.abs() - 1e-11))


def unsound(problem: Problem, found: Posteriors) -> Tensor:
    """Sequences whose pass from the right overflowed or lost mass, (B,) bool."""
    return torch.isfinite(found.log_z_B) & ~(imbalance(problem, found) <= ROUNDING)
