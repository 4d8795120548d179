"""What every backend computes: the model, its conventions, and the checked inputs.

Segments (s, t, c) tile a sequence of length L (`lengths_B`; T where it is None): label c, frames s+1..t,
duration k = t - s in 1..K. The score of a segmentation is the sum over its segments of the frames' scores of
c, `score_BTC`, and `duration_KC[k-1, c]`, plus `transition_CC[i, j]` between neighbouring segments, plus
`start_C` of the first and `end_C` of the last label. The first segment has no transition. Three
more terms are optional: `seg_start_BTC[b, s, c]` of segments whose first frame is s, `seg_end_BTC[b, t-1, c]`
of those whose last frame is t-1, and `segment_BTKC[b, s, k-1, c]` of one segment.

Every number passes one door, `admitted`. A score at or below -1e12 (in float16, at its lowest number) forbids
exactly what it belongs to, as -inf does: masks are often large finite numbers, and a sum that holds one has
no digits left for the rest. A frame whose labels all have such a number, short of -inf, is masked as a whole:
its largest is taken out first, which changes no probability, and log Z counts the frame without it. NaN, +inf
and numbers above 1e12 are refused, with their place.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from lab.errors import BadDataError, UsageError

MAX_LABELS = 128
"""The GPU kernels keep a label per lane and a column of the transition in its registers."""
LIMIT = 1e12
"""Scores at or below -LIMIT forbid; above LIMIT they are refused. semicrf.cu has the same number."""
FAR_BELOW = -1e6
"""Losses and log p take the largest score out of a frame where it is at most this: at -1e9, a common mask, a
sum of frames has no digits left behind the fifth."""


transforming = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
"""Whether torch.func is at work, under which no branch may depend on a value."""


@dataclass(frozen=True)
class Problem:
    """One batch, checked, by the names of api.py's arguments; terms of single segments may be None.

    Counts are derivatives by each sequence's model: for them duration is (B, K, C) and transition (B, C, C).
    Numbers and lengths are `admitted`, but not for the CUDA kernels, which look at them on their way.
    """

    score_BTC: Tensor
    transition_CC: Tensor
    duration_KC: Tensor
    lengths_B: Tensor
    start_C: Tensor
    end_C: Tensor
    seg_start_BTC: Tensor | None = None
    seg_end_BTC: Tensor | None = None
    segment_BTKC: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, T, K, C)."""
        batch, frames, labels = self.score_BTC.shape
        return batch, frames, self.duration_KC.shape[-2], labels

    @property
    def plain(self) -> bool:
        """Whether the model has no terms of single segments: what is compiled."""
        return self.names() == FLOATS[:5]

    def names(self) -> tuple[str, ...]:
        """The differentiable inputs that are given, in the order of their gradients."""
        if self.segment_BTKC is None and self.seg_start_BTC is None and self.seg_end_BTC is None:
            return FLOATS[:5]  # in every training step: it has to be quick
        return tuple(name for name in FLOATS if getattr(self, name) is not None)

    def floats(self) -> tuple[Tensor, ...]:
        """The values of `names()`."""
        return attrgetter(*self.names())(self)

    def arguments(self) -> dict[str, Any]:
        """The model as the functions in api.py take it."""
        return {**self.by_name(), "lengths_B": self.lengths_B}

    def by_name(self) -> dict[str, Tensor]:
        return dict(zip(self.names(), self.floats(), strict=True))

    def with_floats(self, values: Sequence[Tensor]) -> Problem:
        """The model with other values, in the order of `names()`."""
        return replace(self, **dict(zip(self.names(), values, strict=True)))

    def rows(self, numbers: Tensor | list[int]) -> Problem:
        """Some sequences of the batch, by their numbers or a mask."""
        index = torch.as_tensor(numbers, device=self.lengths_B.device)
        model = [name for name in ("transition_CC", "duration_KC") if getattr(self, name).dim() > 2]
        per_sequence = ("score_BTC", "lengths_B", *model, *self.names()[5:])
        return replace(self, **{name: getattr(self, name)[index] for name in per_sequence})

    def detached(self) -> Problem:
        return self.with_floats([value.detach() for value in self.floats()])


FLOATS = tuple(field.name for field in fields(Problem) if field.name != "lengths_B")


@dataclass(frozen=True)
class Posteriors:
    """log Z and the expected counts, in float64; every count is the derivative of log Z by its score.

    - `starts_BTC[b, t, c]`: a segment of c starts with frame t; `ends_BTC`: ends with it;
      `label_BTC`: covers it.
    - `duration_BKC`: expected segments of duration k+1 and label c.
    - `transition`: (B, C, C), each pair of neighbours.
    - `segment_BTKC`: the probability of each segment, (B, T, K, C); None unless segments have scores of
      their own.
    - `mass_error_B`: worst |sum_c P(t, c) - 1| over a sequence's frames as computed; inf for NaN, 0 where
      nothing is feasible. `mass_frame_B`: the first frame where it is reached.
    - `imbalance_B`: what `ledger.imbalance` would compute, from forms that compute it beside the counts; and
      `fetched`, where it is on its way to the host, gives it there.

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
    segment_BTKC: Tensor | None = None
    fetched: Any = None

    def counts(self, problem: Problem) -> tuple[Tensor, ...]:
        """The count that belongs to each of `problem.floats()`."""
        first_BC, last_BC = self.starts_BTC[:, 0], self.end_BC(problem.lengths_B)
        extras = (self.starts_BTC, self.ends_BTC, self.segment_BTKC)
        counts = (self.label_BTC, self.transition, self.duration_BKC, first_BC, last_BC, *extras)
        by_name = dict(zip(FLOATS, counts, strict=True))
        return tuple(by_name[name] for name in problem.names())  # type: ignore[misc]  # given with its scores

    def replace_rows(self, rows: Tensor, counts: Posteriors) -> None:
        """Put the counts and masses of these sequences in place; log Z stays."""
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None:
                value[rows] = getattr(counts, name).to(value.dtype)

    def clamped(self) -> Posteriors:
        """Clamp after the audit: probabilities without what rounding takes beyond 0 and 1."""
        values = {name: getattr(self, name) for name in PROBABILITIES}
        return replace(self, **{name: x.clamp(0, 1) for name, x in values.items() if x is not None})

    def end_BC(self, lengths_B: Tensor) -> Tensor:
        last_B11 = (lengths_B - 1)[:, None, None]
        return self.ends_BTC.gather(1, last_B11.expand(-1, 1, self.ends_BTC.shape[2]))[:, 0]


PROBABILITIES = ("label_BTC", "starts_BTC", "ends_BTC", "segment_BTKC")
COUNTS = tuple(f.name for f in fields(Posteriors) if f.name not in ("log_z_B", "imbalance_B", "fetched"))


def make_problem(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    lengths_B: Tensor | None = None,
    start_C: Tensor | None = None,
    end_C: Tensor | None = None,
    seg_start_BTC: Tensor | None = None,
    seg_end_BTC: Tensor | None = None,
    segment_BTKC: Tensor | None = None,
    *,
    for_kernels: object = False,  # a bool: beside it callers unpack a dict of tensors
) -> Problem:
    """Check kinds, shapes and numbers, and fill in defaults. Raises UsageError and BadDataError.

    For the kernels of native/cuda.py numbers and lengths are not looked at here, which would wait for the
    GPU: the kernels flag what is odd, and the flags are waited for in any case.
    """
    extras = (seg_start_BTC, seg_end_BTC, segment_BTKC)
    values = (score_BTC, transition_CC, duration_KC, start_C, end_C, *extras)
    for name, value in zip(FLOATS, values, strict=True):
        if not isinstance(value, Tensor) and (value is not None or name in FLOATS[:3]):
            raise UsageError(f"{plain_name(name)} must be a tensor, got {type(value).__name__}")
        if value is not None and value.is_complex():
            raise UsageError(f"{plain_name(name)} must be real, got {value.dtype}")
    if score_BTC.dim() != 3:
        raise UsageError(f"score must be 3D (batch, T, labels), got {score_BTC.dim()}D")
    batch, frames, labels = score_BTC.shape
    if min(batch, frames, labels) < 1:
        raise UsageError(f"score must not be empty, got shape {tuple(score_BTC.shape)}")
    if duration_KC.dim() != 2 or duration_KC.shape[1] != labels or duration_KC.shape[0] < 1:
        raise UsageError(f"duration must be (K, {labels}), got {tuple(duration_KC.shape)}")
    longest = duration_KC.shape[0]
    if tuple(transition_CC.shape) != (labels, labels):
        raise UsageError(f"transition must be ({labels}, {labels}), got {tuple(transition_CC.shape)}")
    if not score_BTC.is_floating_point():
        raise UsageError(f"score must be floating point, got {score_BTC.dtype}")
    start_C = score_BTC.new_zeros(labels) if start_C is None else start_C
    end_C = score_BTC.new_zeros(labels) if end_C is None else end_C
    per_frame = (batch, frames, labels)
    shapes = ((labels,), (labels,), per_frame, per_frame, (batch, frames, longest, labels))
    for name, value, shape in zip(FLOATS[3:], (start_C, end_C, *extras), shapes, strict=True):
        if value is not None and tuple(value.shape) != shape:
            raise UsageError(f"{plain_name(name)} must be {shape}, got {tuple(value.shape)}")
    lengths_B = checked_lengths(lengths_B, batch, frames, score_BTC.device, look=not for_kernels)
    problem = Problem(score_BTC, transition_CC, duration_KC, lengths_B, start_C, end_C, *extras)
    return problem if for_kernels else admitted(problem)


def plain_name(name: str) -> str:
    """Of an input, in messages."""
    return name.rpartition("_")[0]


def admitted(problem: Problem) -> Problem:
    """The problem with -inf for every score that forbids. Raises BadDataError for what is refused.

    Nothing is refused that no sequence can reach: padding may hold anything. torch.func, where no branch may
    depend on a value, refuses nothing: there log Z is NaN.
    """
    changes = {}
    for name, value in problem.by_name().items():
        limit = highest_forbidden(value.dtype)
        if not hidden(value):
            low, high = (float(extreme) for extreme in torch.aminmax(value.detach()))
            if not high <= LIMIT:
                refuse(problem, name)
            if low > limit:  # NaN is not, and may be padding
                continue
        level = levelled(value, limit) if name == "score_BTC" else value
        changes[name] = level.masked_fill(level <= limit, -torch.inf)
    return replace(problem, **changes) if changes else problem


def levelled(score_BTC: Tensor, below: float) -> Tensor:
    """The scores less the largest of each frame where that is finite and at most `below`: a number common to
    all labels of a frame cancels in every probability, but takes the digits of the sums that hold it.
    """
    # A frame of -inf alone must stay so: -inf less -inf would be NaN.
    top_BT1 = score_BTC.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(score_BTC.dtype).min)
    return score_BTC - top_BT1.masked_fill(top_BT1 > below, 0)


@functools.cache
def highest_forbidden(dtype: torch.dtype) -> float:
    """The largest score that forbids: -LIMIT as the dtype rounds it, or its lowest number."""
    if not dtype.is_floating_point:
        return -LIMIT
    return max(float(torch.tensor(-LIMIT, dtype=dtype, device="cpu")), torch.finfo(dtype).min)


def refuse(problem: Problem, name: str) -> None:
    """Raise BadDataError where a sequence meets a number that is refused, so not in the padding, nor in
    segments beyond the end.
    """
    value: Tensor = getattr(problem, name).detach().double()
    if name not in FLOATS[1:5]:
        value = masked(problem, value)
    if name == "segment_BTKC":
        frame_T = torch.arange(value.shape[1], device=value.device)
        last_TK = frame_T[:, None] + torch.arange(value.shape[2], device=value.device)
        beyond_BTK = last_TK >= problem.lengths_B[:, None, None]
        value = value.masked_fill(beyond_BTK[..., None], 0.0)
    refused = ~(value <= LIMIT)
    if not bool(refused.any()):
        return
    index = [int(i) for i in refused.nonzero()[0].tolist()]
    number, title = float(value[tuple(index)]), plain_name(name)
    location = f"sequence {index[0]}, frame {index[1]}" if name == "score_BTC" else f"{title}{index}"
    raise BadDataError(
        f"{title} is {number:g}, and numbers must not be NaN or above {LIMIT:g}",
        location=location,
        fix="look for where it came from; to forbid something use -inf",
    )


def checked_lengths(
    lengths_B: Tensor | None, batch: int, frames: int, device: torch.device, *, look: bool = True
) -> Tensor:
    """Lengths as int64 on `device`. Raises UsageError for one out of 1..T, which is not seen on a GPU unless
    `look`, or under vmap.
    """
    if lengths_B is None:
        return torch.full((batch,), frames, dtype=torch.int64, device=device)
    lengths_B = whole_lengths(lengths_B, batch)
    if (look or lengths_B.device.type == "cpu") and not hidden(lengths_B):
        reject_lengths(lengths_B, frames)
    return onto(lengths_B, device)


def reject_lengths(lengths_B: Tensor, frames: int) -> None:
    low, high = (int(extreme) for extreme in torch.aminmax(lengths_B))
    if low < 1:
        raise UsageError(f"lengths must be positive, got min={low}")
    if high > frames:
        raise UsageError(f"lengths cannot exceed T={frames}, got max={high}")


def whole_lengths(lengths_B: object, batch: int) -> Tensor:
    """Lengths as int64. Raises UsageError unless a tensor of `batch` integers; values are not read."""
    if not isinstance(lengths_B, Tensor):
        kind = type(lengths_B).__name__
        raise UsageError(f"lengths must be a tensor, got {kind}", fix="torch.tensor(lengths)")
    integers = not (lengths_B.is_floating_point() or lengths_B.is_complex() or lengths_B.dtype == torch.bool)
    if tuple(lengths_B.shape) != (batch,) or not integers:
        raise UsageError(f"lengths must be {batch} integers, got {lengths_B.dtype} {tuple(lengths_B.shape)}")
    return lengths_B.to(torch.int64)


def hidden(value: Tensor) -> bool:
    """Whether vmap holds the values, so that none can be looked at."""
    functorch: Any = getattr(torch._C, "_functorch", None)
    wrapped = getattr(functorch, "is_functorch_wrapped_tensor", lambda value: False)
    while wrapped(value):
        if functorch.is_batchedtensor(value):
            return True
        value = functorch.get_unwrapped(value)
    return False


def onto(value: Tensor, device: torch.device) -> Tensor:
    """`value` on `device`, without waiting for a GPU: the wait would cover all work queued on it."""
    return value.to(device, non_blocking=device.type == "cuda")


def masked(problem: Problem, value_BTX: Tensor) -> Tensor:
    """Float64, with zeros in the padding, so that nothing there (NaN too) is ever used."""
    inside_BT = inside(problem.shape[1], problem.lengths_B)
    value = value_BTX.double()
    inside_BTX = inside_BT.view(*inside_BT.shape, *(1,) * (value.dim() - 2))
    return torch.where(inside_BTX, value, torch.zeros_like(value))


def inside(frames: int, lengths_B: Tensor, device: torch.device | None = None) -> Tensor:
    """Which frames belong to their sequence, (B, T) bool, on `device`; lengths may lie on the CPU."""
    lengths_B = onto(lengths_B, device or lengths_B.device)
    return torch.arange(frames, device=lengths_B.device) < lengths_B[:, None]
