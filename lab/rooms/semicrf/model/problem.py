"""What every backend computes: the model, its conventions, and the checked inputs.

Segments (s, t, c) tile a sequence of length L: label c, frames s+1..t, duration k = t - s in 1..K. The score
of a segmentation is the sum over its segments of the frames' scores of c and `duration_KC[k-1, c]`, plus
`transition_CC[i, j]` between neighbouring segments (`transition_KCC[k-1, i, j]` where the transition depends
on the duration k of the segment it leads to), plus `start_C` of the first and `end_C` of the last label. The
first segment has no transition. Any of these may be -inf, which forbids exactly that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lab.errors import UsageError

MAX_LABELS = 128
"""The GPU kernels keep a label per lane and a column of the transition in its registers."""


@dataclass(frozen=True)
class Problem:
    """One batch, checked: score (B, T, C), transition (C, C) or (K, C, C), duration (K, C), lengths (B,)."""

    score_BTC: Tensor
    transition: Tensor
    duration_KC: Tensor
    lengths_B: Tensor
    start_C: Tensor
    end_C: Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, T, K, C)."""
        batch, frames, labels = self.score_BTC.shape
        return batch, frames, self.duration_KC.shape[0], labels

    @property
    def by_duration(self) -> bool:
        """Whether the transition depends on the duration."""
        return self.transition.dim() == 3

    def floats(self) -> tuple[Tensor, ...]:
        """The five differentiable inputs, in the order of their gradients."""
        return self.score_BTC, self.transition, self.duration_KC, self.start_C, self.end_C

    def rows(self, index: Tensor) -> Problem:
        """The same model over some sequences of the batch."""
        return replace(self, score_BTC=self.score_BTC[index], lengths_B=self.lengths_B[index])

    def detached(self) -> Problem:
        names = ("score_BTC", "transition", "duration_KC", "start_C", "end_C")
        return replace(self, **{name: getattr(self, name).detach() for name in names})


@dataclass(frozen=True)
class Posteriors:
    """log Z and the expected counts, in float64; every count is the derivative of log Z by its score.

    - `starts_BTC[b, t, c]`: a segment of c starts with frame t; `ends_BTC`: ends with it;
      `label_BTC`: covers it.
    - `duration_BKC`: expected segments of duration k+1 and label c.
    - `transition`: (B, C, C), or (B, K, C, C).
    - `mass_error_B`: worst |sum_c P(t, c) - 1| over a sequence's frames as computed; inf for NaN, 0 where
      nothing is feasible. `mass_frame_B`: the first frame where it is reached.

    - `imbalance_B`: what `ledger.imbalance` would compute, from forms that compute it beside the counts.

    `ledger.mass` computes the masses from `label_BTC`.
    """

    log_z_B: Tensor
    label_BTC: Tensor
    starts_BTC: Tensor
    ends_BTC: Tensor
    duration_BKC: Tensor
    transition: Tensor
    mass_error_B: Tensor
    mass_frame_B: Tensor
    imbalance_B: Tensor | None = None

    def replace_rows(self, rows: Tensor, counts: Posteriors) -> None:
        """Replace counts and masses of these sequences by those of `counts`, in place; log Z stays."""
        for name in COUNTS:
            value = getattr(self, name)
            value[rows] = getattr(counts, name).to(value.dtype)

    def start_BC(self) -> Tensor:
        return self.starts_BTC[:, 0]

    def end_BC(self, lengths_B: Tensor) -> Tensor:
        last_B11 = (lengths_B - 1)[:, None, None]
        return self.ends_BTC.gather(1, last_B11.expand(-1, 1, self.ends_BTC.shape[2]))[:, 0]


COUNTS = tuple(f.name for f in fields(Posteriors) if f.name not in ("log_z_B", "imbalance_B"))


def make_problem(
    score_BTC: Tensor,
    transition: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
) -> Problem:
    """Check shapes and fill in defaults. Raises UsageError; never waits for a GPU."""
    if score_BTC.dim() != 3:
        raise UsageError(f"score must be 3D (batch, T, labels), got {score_BTC.dim()}D")
    batch, frames, labels = score_BTC.shape
    if min(batch, frames, labels) < 1:
        raise UsageError(f"score must not be empty, got shape {tuple(score_BTC.shape)}")
    if duration_KC.dim() != 2 or duration_KC.shape[1] != labels or duration_KC.shape[0] < 1:
        raise UsageError(f"duration must be (K, {labels}), got {tuple(duration_KC.shape)}")
    wanted = {(labels, labels), (duration_KC.shape[0], labels, labels)}
    if tuple(transition.shape) not in wanted:
        raise UsageError(
            f"transition must be (C, C) or (K, C, C) with K={duration_KC.shape[0]}, C={labels}, "
            f"got {tuple(transition.shape)}"
        )
    if not score_BTC.is_floating_point():
        raise UsageError(f"score must be floating point, got {score_BTC.dtype}")
    start_C = score_BTC.new_zeros(labels) if start_C is None else start_C
    end_C = score_BTC.new_zeros(labels) if end_C is None else end_C
    for name, value in (("start", start_C), ("end", end_C)):
        if tuple(value.shape) != (labels,):
            raise UsageError(f"{name} must be ({labels},), got {tuple(value.shape)}")
    lengths_B = checked_lengths(lengths_B, batch, frames, score_BTC.device)
    return Problem(score_BTC, transition, duration_KC, lengths_B, start_C, end_C)


def checked_lengths(lengths_B: Tensor | None, batch: int, frames: int, device: torch.device) -> Tensor:
    """Lengths as int64 on `device`. Values are checked only on the CPU, where reading them costs no wait."""
    if lengths_B is None:
        return torch.full((batch,), frames, dtype=torch.int64, device=device)
    if tuple(lengths_B.shape) != (batch,) or lengths_B.is_floating_point():
        raise UsageError(f"lengths must be {batch} integers, got {lengths_B.dtype} {tuple(lengths_B.shape)}")
    if lengths_B.device.type == "cpu":
        if int(lengths_B.min()) < 1:
            raise UsageError(f"lengths must be positive, got min={int(lengths_B.min())}")
        if int(lengths_B.max()) > frames:
            raise UsageError(f"lengths cannot exceed T={frames}, got max={int(lengths_B.max())}")
    return onto(lengths_B, device).to(torch.int64)


def onto(value: Tensor, device: torch.device) -> Tensor:
    """`value` on `device`, without waiting for a GPU: the wait would cover all work queued on it."""
    return value.to(device, non_blocking=device.type == "cuda")


def frames_masked(problem: Problem) -> Tensor:
    """Scores as float64 (B, T, C) with zeros in the padding, so that nothing there (NaN too) is ever used."""
    frames = problem.score_BTC.shape[1]
    inside_BT = torch.arange(frames, device=problem.lengths_B.device) < problem.lengths_B[:, None]
    score = problem.score_BTC.double()
    return torch.where(inside_BT[:, :, None], score, torch.zeros_like(score))
