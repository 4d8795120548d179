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

    def nan_where_unknown(self) -> Posteriors:
        """Itself, with NaN for the counts of sequences whose log Z is NaN: zeros would look right."""
        unknown_B = torch.isnan(self.log_z_B)
        for name in COUNTS[:5]:
            value = getattr(self, name)
            value.masked_fill_(unknown_B.view(-1, *(1,) * (value.dim() - 1)), float("nan"))
        return self

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
    """Check kinds and shapes, and fill in defaults. Raises UsageError; never waits for a GPU.

    A shared parameter with a NaN or +inf makes every end NaN, and so every sequence's log Z.
    """
    given = {"score": score_BTC, "transition": transition, "duration": duration_KC}
    for name, value in (*given.items(), ("start", start_C), ("end", end_C)):
        if not isinstance(value, Tensor) and (value is not None or name in given):
            raise UsageError(f"{name} must be a tensor, got {type(value).__name__}")
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
    inside_B, wild_B = checked_lengths(lengths_B, batch, frames, score_BTC.device)
    if wild_B is not None:
        score_BTC = score_BTC.masked_fill(wild_B[:, None, None], float("nan"))
    end_C = nan_if_spoiled(end_C, (transition, duration_KC, start_C))
    return Problem(score_BTC, transition, duration_KC, inside_B, start_C, end_C)


def nan_if_spoiled(end_C: Tensor, others: tuple[Tensor, ...]) -> Tensor:
    """`end_C`, or NaN where another parameter holds a NaN or +inf, which a short sequence might not use.

    On the CPU, and without a branch on a value, which `vmap` and `compile` could not take. On a GPU it would
    be launches in every call: there the parameter itself reaches log Z wherever it is used.
    """
    if end_C.is_cuda:
        return end_C
    with torch.no_grad():
        highest = torch.cat([value.reshape(-1) for value in others]).max()
        zero = highest.clamp(min=0) * 0  # or NaN
    return end_C + zero


def checked_lengths(
    lengths_B: Tensor | None, batch: int, frames: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Lengths as int64 on `device`, and which of them were out of range.

    On the CPU a value out of range is an error. On a GPU, where reading one would wait for all queued work,
    it is held to 1..T, and its sequence gets log Z = NaN.
    """
    if lengths_B is None:
        return torch.full((batch,), frames, dtype=torch.int64, device=device), None
    check_kind_of_lengths(lengths_B, batch)
    if lengths_B.device.type == "cpu":
        if int(lengths_B.min()) < 1:
            raise UsageError(f"lengths must be positive, got min={int(lengths_B.min())}")
        if int(lengths_B.max()) > frames:
            raise UsageError(f"lengths cannot exceed T={frames}, got max={int(lengths_B.max())}")
        return onto(lengths_B, device).to(torch.int64), None
    return held_in_range(onto(lengths_B, device).to(torch.int64), frames)


def held_in_range(lengths_B: Tensor, frames: int) -> tuple[Tensor, Tensor]:
    """Lengths that no kernel can read out of bounds with, and which of them were out of 1..T."""
    held_B = lengths_B.clamp(1, frames)
    return held_B, held_B != lengths_B


def check_kind_of_lengths(lengths_B: object, batch: int) -> None:
    """Raises UsageError for what is not a tensor of `batch` integers; values are not read."""
    if not isinstance(lengths_B, Tensor):
        kind = type(lengths_B).__name__
        raise UsageError(f"lengths must be a tensor, got {kind}", fix="torch.tensor(lengths)")
    whole = not (lengths_B.is_floating_point() or lengths_B.is_complex() or lengths_B.dtype == torch.bool)
    if tuple(lengths_B.shape) != (batch,) or not whole:
        raise UsageError(f"lengths must be {batch} integers, got {lengths_B.dtype} {tuple(lengths_B.shape)}")


def onto(value: Tensor, device: torch.device) -> Tensor:
    """`value` on `device`, without waiting for a GPU: the wait would cover all work queued on it."""
    return value.to(device, non_blocking=device.type == "cuda")


def frames_masked(problem: Problem) -> Tensor:
    """Scores as float64 (B, T, C) with zeros in the padding, so that nothing there (NaN too) is ever used."""
    frames = problem.score_BTC.shape[1]
    inside_BT = torch.arange(frames, device=problem.lengths_B.device) < problem.lengths_B[:, None]
    score = problem.score_BTC.double()
    return torch.where(inside_BT[:, :, None], score, torch.zeros_like(score))


def unknown(problem: Problem) -> Tensor:
    """Sequences whose log Z is NaN, (B,) bool: NaN or +inf in a frame of theirs or in a shared parameter.

    A recursion alone would lose it beside -inf, where nothing reaches it or nothing follows.
    """
    highest_B = frames_masked(problem).detach().amax((1, 2))
    for value in problem.floats()[1:]:
        highest_B = torch.maximum(highest_B, value.detach().double().amax())
    return ~(highest_B < float("inf"))
