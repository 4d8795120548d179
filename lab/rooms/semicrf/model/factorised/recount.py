"""Which counts cannot be trusted, and their replacement from the log domain."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import mass_by_durations
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


def unsound(found: Posteriors, lengths_B: Tensor) -> Tensor:
    """Sequences whose pass from the right overflowed or lost mass, (B,) bool.

    What that pass loses is missing from the mass of a frame, from the mass that starts at the first, from the
    frames that segments cover, or from the balance of a label: as many of its segments have a duration as
    start and as end, and no frame belongs to it with more than certainty.
    """
    feasible_B = torch.isfinite(found.log_z_B)
    counts = (found.label_BTC, found.ends_BTC, found.duration_BKC, found.transition)
    finite_B = torch.stack([torch.isfinite(count).flatten(1).all(1) for count in counts]).all(0)
    lasting_BC, begun_BC, ended_BC = (
        count.sum(1) for count in (found.duration_BKC, found.starts_BTC, found.ends_BTC)
    )
    uneven_BC = torch.maximum((lasting_BC - begun_BC).abs(), (begun_BC - ended_BC).abs())
    beyond_B = torch.maximum(found.label_BTC - 1, -found.label_BTC).flatten(1).amax(1)
    uneven_BC = uneven_BC / begun_BC.clamp(min=1)
    started_B = (found.start_BC().sum(-1) - 1).abs()
    covered_B = mass_by_durations(found.duration_BKC, lengths_B, found.log_z_B)
    worst_B = torch.stack([found.mass_error_B, covered_B, started_B, uneven_BC.amax(1), beyond_B]).amax(0)
    return (feasible_B & (worst_B > ROUNDING)) | ~finite_B
