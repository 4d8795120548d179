"""The posterior-mass ledger: identities that the expected counts of any segment model must satisfy.

Every frame is covered once, every boundary is left as often as it is entered, durations add up to the length.
A stale message, a lost term or a wrong scale breaks a line, and the line says where. The ledger proves that
the counts belong together, not that they belong to the right model: that is for the naive form and the
linter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.rooms.semicrf.model.problem import Posteriors, Problem

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}
"""Allowed error of a line by the dtype that computed; sums over frames are divided by their size."""
TOLERATED_FRAMES = 100_000
"""What rounding makes of a mass walks at random with the frames: 1e-5 at this many in float32, measured."""


def tolerance_of(dtype: torch.dtype, frames: int) -> float:
    """The allowed error after so many frames; all types but float64 compute in float32."""
    allowed = TOLERANCE.get(dtype, TOLERANCE[torch.float32])
    return float(allowed * max(1.0, frames / TOLERATED_FRAMES) ** 0.5)


LOG_Z_TOLERANCE = {torch.float64: (1e-12, 1e-11), torch.float32: (1e-8, 2e-5)}
"""Allowed rounding of log Z by the dtype that computed: relative to its size, and absolute."""


def beyond(log_z_B: Tensor, right_B: Tensor, dtype: torch.dtype) -> Tensor:
    """The mass error |Z' / Z - 1| of a log Z that is wrong by more than rounding, else 0, (B,).

    Counts computed again by shares that sum to 1 whatever Z is cannot show that the pass from the left was
    wrong; that log Z moved can.
    """
    relative, absolute = LOG_Z_TOLERANCE.get(dtype, LOG_Z_TOLERANCE[torch.float32])
    apart_B = torch.where(log_z_B == right_B, torch.zeros_like(log_z_B), (log_z_B - right_B).abs())
    return torch.expm1(torch.relu(apart_B - relative * right_B.abs() - absolute))


def mass(label_BTC: Tensor, lengths_B: Tensor, log_z_B: Tensor) -> tuple[Tensor, Tensor]:
    """Worst |sum_c P(t, c) - 1| of each sequence, (B,) float64, and the first frame that has it, (B,) int64.

    NaN counts as inf, and a sequence that nothing fits has no mass to miss. Never waits for a GPU. Where
    labels are made of starts less ends, as all fast forms do, this follows the boundaries: a boundary whose
    starts and ends are scaled alike leaves it at 1. That is for `mass_by_durations`.
    """
    error_BT = (label_BTC.sum(-1, dtype=torch.float64) - 1).abs()
    error_BT = torch.where(torch.isnan(error_BT), torch.full_like(error_BT, float("inf")), error_BT)
    frame_T = torch.arange(error_BT.shape[1], device=error_BT.device)
    counted_BT = (frame_T < lengths_B[:, None]) & ~torch.isneginf(log_z_B)[:, None]
    worst = torch.where(counted_BT, error_BT, torch.zeros_like(error_BT)).max(1)
    return worst.values, worst.indices


def mass_by_durations(duration_BKC: Tensor, lengths_B: Tensor | int, log_z_B: Tensor) -> Tensor:
    """|sum of k P(k, c) / L - 1| of each sequence, (B,) float64; 0 where nothing is feasible: the mean mass
    of a frame, as the segments that cover it count it.
    """
    k = torch.arange(1, duration_BKC.shape[1] + 1, dtype=torch.float64, device=duration_BKC.device)
    error_B = ((duration_BKC.sum(-1, dtype=torch.float64) @ k) / lengths_B - 1).abs()
    return error_B.masked_fill(torch.isneginf(log_z_B), 0.0)


def imbalance(problem: Problem, posteriors: Posteriors) -> Tensor:
    """The worst error of what each sequence's counts must add up to, (B,), on any device; NaN where one is.

    What a pass loses is missing from the mass of a frame, from the mass that starts at the first, from the
    frames that segments cover, or from the balance of a label: as many of its segments have a duration as
    start and as end, and no frame belongs to it with more than certainty or less than none.
    """
    starts_BTC, ends_BTC, label_BTC = posteriors.starts_BTC, posteriors.ends_BTC, posteriors.label_BTC
    lasting_BC = posteriors.duration_BKC.sum(1, dtype=torch.float64)
    begun_BC, ended_BC = (count.sum(1, dtype=torch.float64) for count in (starts_BTC, ends_BTC))
    into_BC = posteriors.transition.sum(1, dtype=torch.float64) + starts_BTC[:, 0]
    from_BC = posteriors.transition.sum(2, dtype=torch.float64) + posteriors.end_BC(problem.lengths_B)
    size_BC = begun_BC.clamp(min=1)
    errors = [
        posteriors.mass_error_B,
        mass_by_durations(posteriors.duration_BKC, problem.lengths_B, posteriors.log_z_B),
        starts_BTC[:, 0].sum(1, dtype=torch.float64) - 1,
        ((lasting_BC - begun_BC) / size_BC).abs().amax(1),
        ((begun_BC - ended_BC) / size_BC).abs().amax(1),
        ((into_BC - begun_BC) / size_BC).abs().amax(1),
        ((from_BC - ended_BC) / size_BC).abs().amax(1),
    ]
    low_B, high_B = label_BTC.flatten(1).aminmax(dim=1)
    errors += [torch.relu(high_B.double() - 1), torch.relu(-low_B.double())]
    if posteriors.segment_BTKC is not None:
        per_duration, per_start = posteriors.segment_BTKC.sum(1), posteriors.segment_BTKC.sum(2)
        errors += [
            ((per_duration - posteriors.duration_BKC) / size_BC[:, None]).abs().amax((1, 2)),
            (per_start - starts_BTC).abs().amax((1, 2)),
        ]
    return torch.stack([error.abs() for error in errors]).amax(0)
