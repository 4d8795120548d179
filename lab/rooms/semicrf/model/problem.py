"""What every backend computes: the model, its conventions, and the checked inputs.

Segments (s, t, c) tile a sequence of length L (`lengths_B`; T where it is None): label c, frames s+1..t,
duration k = t - s in 1..K. The score of a segmentation is the sum over its segments of the frames' scores of
c, `score_BTC`, and `duration_KC[k-1, c]`, plus `transition_CC[i, j]` between neighbouring segments, plus
`start_C` of the first and `end_C` of the last label. The first segment has no transition. A transition may
also depend on the duration k of the segment it leads to (`[k-1, i, j]`, (K, C, C)) or on the sequence and
that segment's first frame, counted from 0 (`[b, s, i, j]`, (B, T, C, C), whose row s = 0 is not read). Three
more terms are optional: `seg_start_BTC[b, s, c]` of segments whose first frame is s, `seg_end_BTC[b, t-1, c]`
of those whose last frame is t-1, and `segment_BTKC[b, s, k-1, c]` of one segment. Any of these may be -inf,
which forbids exactly that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model.dual import real, wide

MAX_LABELS = 128
"""The GPU kernels keep a label per lane and a column of the transition in its registers."""


@dataclass(frozen=True)
class Problem:
    """One batch, checked: score (B, T, C), duration (K, C), lengths (B,) int64, start and end (C,).

    `transition` is (C, C), (K, C, C) or (B, T, C, C). The terms of single segments are None where not given.
    Second derivatives change the model of each sequence on its own: then duration is (B, K, C), transition
    (B, T or 1, K or 1, C, C), and all are complex (`derivatives/second.py`).
    `given_B` are lengths that nobody has looked at yet, and `lengths_B` these held to 1..T: where the two
    differ log Z is NaN, of which the kernels take care, who alone get such a problem.
    """

    score_BTC: Tensor
    transition: Tensor
    duration_KC: Tensor
    lengths_B: Tensor
    start_C: Tensor
    end_C: Tensor
    seg_start_BTC: Tensor | None = None
    seg_end_BTC: Tensor | None = None
    segment_BTKC: Tensor | None = None
    given_B: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, T, K, C)."""
        batch, frames, labels = self.score_BTC.shape
        return batch, frames, self.duration_KC.shape[-2], labels

    @property
    def by_duration(self) -> bool:
        """Whether the transition depends on the duration."""
        return self.transition.dim() == 3 or (self.transition.dim() == 5 and self.transition.shape[2] > 1)

    @property
    def per_frame(self) -> bool:
        """Whether the transition depends on the frame."""
        return self.transition.dim() == 4 or (self.transition.dim() == 5 and self.transition.shape[1] > 1)

    @property
    def plain(self) -> bool:
        """Whether the model has a (C, C) transition and no terms of single segments: what is compiled."""
        return self.transition.dim() == 2 and self.names() == FLOATS[:5]

    def names(self) -> tuple[str, ...]:
        """The differentiable inputs that are given, in the order of their gradients."""
        if self.segment_BTKC is None and self.seg_start_BTC is None and self.seg_end_BTC is None:
            return FLOATS[:5]  # in every training step: it has to be quick
        return tuple(name for name in FLOATS if getattr(self, name) is not None)

    def floats(self) -> tuple[Tensor, ...]:
        """The values of `names()`: five, and those terms of single segments that are given."""
        return attrgetter(*self.names())(self)

    def arguments(self) -> dict[str, Any]:
        """The model as the functions in api.py take it."""
        values = dict(zip(self.names(), self.floats(), strict=True))
        return {"transition_CC": values.pop("transition"), **values, "lengths_B": self.lengths_B}

    def with_floats(self, values: Sequence[Tensor]) -> Problem:
        """The same model with other values, in the order of `names()`."""
        return replace(self, **dict(zip(self.names(), values, strict=True)))

    def rows(self, which: Tensor | list[int]) -> Problem:
        """The same model over some sequences of the batch, by their numbers or a mask."""
        index = torch.as_tensor(which, device=self.lengths_B.device)
        own = ["score_BTC", "lengths_B", *self.names()[5:]]
        own += ["transition"] if self.transition.dim() > 3 else []
        own += ["duration_KC"] if self.duration_KC.dim() > 2 else []
        return replace(self, given_B=None, **{name: getattr(self, name)[index] for name in own})

    def detached(self) -> Problem:
        return self.with_floats([value.detach() for value in self.floats()])

    def allowed(self) -> Problem:
        """0 for every score that is not -inf, float64: log Z is the log of the number of segmentations."""
        values = map(real, self.detached().floats())
        return self.with_floats([(~torch.isneginf(value)).double().log() for value in values])


FLOATS = tuple(field.name for field in fields(Problem) if field.name not in ("lengths_B", "given_B"))


@dataclass(frozen=True)
class Posteriors:
    """log Z and the expected counts, in float64; every count is the derivative of log Z by its score.

    - `starts_BTC[b, t, c]`: a segment of c starts with frame t; `ends_BTC`: ends with it;
      `label_BTC`: covers it.
    - `duration_BKC`: expected segments of duration k+1 and label c.
    - `transition`: (B, C, C), (B, K, C, C), or (B, T, C, C) where the transition depends on the frame.
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

    @classmethod
    def of_parts(cls, values: Sequence[Tensor]) -> Posteriors:
        """The inverse of `parts`."""
        names = [name for name in PARTS if name != "segment_BTKC" or len(values) == len(PARTS)]
        return cls(**dict(zip(names, values, strict=True)))

    def parts(self) -> list[Tensor]:
        """log Z, the counts, last those of single segments if there are any, and the mass with its frame."""
        return [value for value in attrgetter(*PARTS)(self) if value is not None]

    def counts(self, problem: Problem) -> tuple[Tensor, ...]:
        """The count that belongs to each of `problem.floats()`."""
        first_BC, last_BC = self.starts_BTC[:, 0], self.end_BC(problem.lengths_B)
        extras = (self.starts_BTC, self.ends_BTC, self.segment_BTKC)
        every = (self.label_BTC, self.transition, self.duration_BKC, first_BC, last_BC, *extras)
        own = dict(zip(FLOATS, every, strict=True))
        return tuple(own[name] for name in problem.names())  # type: ignore[misc]  # given with its scores

    def replace_rows(self, rows: Tensor, counts: Posteriors) -> None:
        """Replace counts and masses of these sequences by those of `counts`, in place; log Z stays."""
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None:
                value[rows] = getattr(counts, name).to(value.dtype)

    def given_out(self) -> Posteriors:
        """The same after the audit: probabilities without what rounding takes beyond 0 and 1; and NaN for the
        counts of sequences whose log Z is NaN: zeros would look right.
        """
        unknown_B = torch.isnan(self.log_z_B)
        counts = {name: getattr(self, name) for name in COUNTS if not name.startswith("mass")}
        known = {name: value for name, value in counts.items() if value is not None}
        held = {n: x.clamp(0, 1) if n in PROBABILITIES else x for n, x in known.items()}
        return replace(
            self,
            **{n: x.masked_fill(by_sequence(unknown_B, x), float("nan")) for n, x in held.items()},
        )

    def end_BC(self, lengths_B: Tensor) -> Tensor:
        last_B11 = (lengths_B - 1)[:, None, None]
        return self.ends_BTC.gather(1, last_B11.expand(-1, 1, self.ends_BTC.shape[2]))[:, 0]


PARTS = (
    *("log_z_B", "label_BTC", "starts_BTC", "ends_BTC", "duration_BKC", "transition", "segment_BTKC"),
    *("mass_error_B", "mass_frame_B"),
)
PROBABILITIES = ("label_BTC", "starts_BTC", "ends_BTC", "segment_BTKC")
COUNTS = tuple(f.name for f in fields(Posteriors) if f.name not in ("log_z_B", "imbalance_B", "fetched"))

NAMES = ("score", "transition", "duration", "start", "end", "seg_start", "seg_end", "segment")
"""Of FLOATS, in messages."""


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
    """Check kinds and shapes, and fill in defaults. Raises UsageError; never waits for a GPU.

    A shared parameter with a NaN or +inf makes every end NaN, and so every sequence's log Z. For the kernels
    of native/cuda.py lengths that lie on a GPU also go as they are given, which saves two launches and a copy
    of the scores: the kernels see to those that are out of range.
    """
    extras = (seg_start_BTC, seg_end_BTC, segment_BTKC)
    values = (score_BTC, transition_CC, duration_KC, start_C, end_C, *extras)
    for name, value in zip(NAMES, values, strict=True):
        if not isinstance(value, Tensor) and (value is not None or name in NAMES[:3]):
            raise UsageError(f"{name} must be a tensor, got {type(value).__name__}")
        if value is not None and value.is_complex():
            raise UsageError(f"{name} must be real, got {value.dtype}")
    if score_BTC.dim() != 3:
        raise UsageError(f"score must be 3D (batch, T, labels), got {score_BTC.dim()}D")
    batch, frames, labels = score_BTC.shape
    if min(batch, frames, labels) < 1:
        raise UsageError(f"score must not be empty, got shape {tuple(score_BTC.shape)}")
    if duration_KC.dim() != 2 or duration_KC.shape[1] != labels or duration_KC.shape[0] < 1:
        raise UsageError(f"duration must be (K, {labels}), got {tuple(duration_KC.shape)}")
    longest, pairs = duration_KC.shape[0], (labels, labels)
    if tuple(transition_CC.shape) not in {pairs, (longest, *pairs), (batch, frames, *pairs)}:
        raise UsageError(
            f"transition must be (C, C), (K, C, C) or (B, T, C, C) with B={batch}, T={frames}, K={longest}, "
            f"C={labels}, got {tuple(transition_CC.shape)}"
        )
    if not score_BTC.is_floating_point():
        raise UsageError(f"score must be floating point, got {score_BTC.dtype}")
    if start_C is None or end_C is None:
        zero_C = default(score_BTC, labels)
        start_C, end_C = zero_C if start_C is None else start_C, zero_C if end_C is None else end_C
    per_frame = (batch, frames, labels)
    shapes = ((labels,), (labels,), per_frame, per_frame, (batch, frames, longest, labels))
    for name, value, shape in zip(NAMES[3:], (start_C, end_C, *extras), shapes, strict=True):
        if value is not None and tuple(value.shape) != shape:
            raise UsageError(f"{name} must be {shape}, got {tuple(value.shape)}")
    given_B = None
    if for_kernels and isinstance(lengths_B, Tensor) and lengths_B.is_cuda:
        given_B = whole_lengths(lengths_B, batch).detach().to(score_BTC.device)
        held_B = given_B.clamp(1, frames)
    else:
        held_B, wild_B = checked_lengths(lengths_B, batch, frames, score_BTC.device)
        if wild_B is not None:
            score_BTC = score_BTC.masked_fill(wild_B[:, None, None], float("nan"))
    end_C = nan_if_spoiled(end_C, tuple(x for x in (transition_CC, duration_KC, start_C) if x.dim() < 4))
    return Problem(score_BTC, transition_CC, duration_KC, held_B, start_C, end_C, *extras, given_B)


def default(score_BTC: Tensor, labels: int) -> Tensor:
    """Zeros (C,) for what is not given."""
    if score_BTC.device.type != "cuda" or is_recorded():
        return score_BTC.new_zeros(labels)
    return constant(score_BTC.device, score_BTC.dtype, labels, 0)


def is_recorded() -> bool:
    """Whether a tensor made now may not outlive the call: it would be traced, or belong to a CUDA graph."""
    modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
    transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
    compiler: Any = getattr(torch, "compiler", None)
    compiling = getattr(compiler, "is_compiling", lambda: False)
    return bool(modes() or transforms() or compiling() or torch.cuda.is_current_stream_capturing())


@functools.lru_cache(maxsize=64)
def constant(device: torch.device, dtype: torch.dtype, size: int, value: int) -> Tensor:
    """One tensor for all calls, never written to: a kernel and an allocation less in each on a GPU."""
    with torch.inference_mode(False):
        made = torch.full((size,), value, dtype=dtype, device=device)
    torch.cuda.current_stream(device).synchronize()  # once: other streams will read it
    return made


def nan_if_spoiled(end_C: Tensor, others: tuple[Tensor, ...]) -> Tensor:
    """`end_C`, or NaN where another parameter holds a NaN or +inf, which a short sequence might not use.

    On the CPU, and by a sum where `vmap` takes no branch on a value. On a GPU it would be launches in every
    call: there the parameter itself reaches log Z wherever it is used.
    """
    if end_C.is_cuda:
        return end_C
    with torch.no_grad():
        highest = torch.cat([value.reshape(-1) for value in others]).max()
        if not hidden(highest) and highest < torch.inf:
            return end_C  # itself: changes of it in place are seen
        zero = torch.maximum(highest, torch.zeros_like(highest)) * 0  # or NaN
    return end_C + zero


def checked_lengths(
    lengths_B: Tensor | None, batch: int, frames: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Lengths as int64 on `device`, and which of them were out of range.

    On the CPU a value out of range is an error, under vmap, which hides it, once it is back. On a GPU, where
    reading one would wait for all queued work, it is held to 1..T, and its sequence gets log Z = NaN.
    """
    if lengths_B is None:
        if device.type == "cuda" and not is_recorded():
            return constant(device, torch.int64, batch, frames), None
        return torch.full((batch,), frames, dtype=torch.int64, device=device), None
    lengths_B = whole_lengths(lengths_B, batch)
    whole_B = onto(lengths_B, device)
    if lengths_B.device.type != "cpu":
        return held_in_range(whole_B, frames)
    if not hidden(lengths_B):
        if int(lengths_B.min()) < 1:
            raise UsageError(f"lengths must be positive, got min={int(lengths_B.min())}")
        if int(lengths_B.max()) > frames:
            raise UsageError(f"lengths cannot exceed T={frames}, got max={int(lengths_B.max())}")
    return whole_B, None


def held_in_range(lengths_B: Tensor, frames: int) -> tuple[Tensor, Tensor]:
    """Lengths that no kernel can read out of bounds with, and which of them were out of 1..T."""
    held_B = lengths_B.clamp(1, frames)
    return held_B, held_B != lengths_B


def whole_lengths(lengths_B: object, batch: int) -> Tensor:
    """As int64. Raises UsageError for what is not a tensor of `batch` integers; values are not read."""
    if not isinstance(lengths_B, Tensor):
        kind = type(lengths_B).__name__
        raise UsageError(f"lengths must be a tensor, got {kind}", fix="torch.tensor(lengths)")
    whole = not (lengths_B.is_floating_point() or lengths_B.is_complex() or lengths_B.dtype == torch.bool)
    if tuple(lengths_B.shape) != (batch,) or not whole:
        raise UsageError(f"lengths must be {batch} integers, got {lengths_B.dtype} {tuple(lengths_B.shape)}")
    return lengths_B.to(torch.int64)


def hidden(value: Tensor) -> bool:
    """Whether vmap holds the values: they are checked where it gives them back (`autograd.folded`)."""
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


def by_sequence(value_B: Tensor, like_BX: Tensor) -> Tensor:
    """A value per sequence in the dimensions of another tensor, (B, 1, ...)."""
    return value_B.view(-1, *(1,) * (like_BX.dim() - 1))


def frames_masked(problem: Problem) -> Tensor:
    """Scores as float64 (B, T, C) with zeros in the padding, so that nothing there (NaN too) is ever used."""
    return masked(problem, problem.score_BTC)


def masked(problem: Problem, value_BTX: Tensor) -> Tensor:
    """Float64, with zeros at the frames of the padding."""
    inside_BT = inside(problem.shape[1], problem.lengths_B)
    value = wide(value_BTX)
    kept = inside_BT.view(*inside_BT.shape, *(1,) * (value.dim() - 2))
    return torch.where(kept, value, torch.zeros_like(value))


def inside(frames: int, lengths_B: Tensor, device: torch.device | None = None) -> Tensor:
    """Which frames belong to their sequence, (B, T) bool, on `device`; lengths may lie on the CPU."""
    lengths_B = onto(lengths_B, device or lengths_B.device)
    return torch.arange(frames, device=lengths_B.device) < lengths_B[:, None]
