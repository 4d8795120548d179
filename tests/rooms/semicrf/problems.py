"""Small random problems that the numerics' tests share."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch

from lab.rooms.semicrf.model import ledger
from lab.rooms.semicrf.model.problem import Posteriors, Problem, make_problem

NEEDS_NVIDIA = pytest.mark.skipif(
    not torch.cuda.is_available() or bool(torch.version.hip), reason="torch sees no NVIDIA GPU"
)
COUNTS = ("label_BTC", "starts_BTC", "ends_BTC", "duration_BKC", "transition")


def on_the_gpu(problem: Problem) -> Problem:
    score, transition, duration, start, end = (value.cuda() for value in problem.floats())
    return make_problem(score, transition, duration, problem.lengths_B.cuda(), start, end)


def random_problem(
    batch: int,
    frames: int,
    longest: int,
    labels: int,
    *,
    scale: float = 1.0,
    masked: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    tilt: float = 0.0,
) -> Problem:
    """Normal scores times `scale`; `masked` is the share of forbidden transitions; lengths vary, the first is
    T.

    With `tilt` segments of about K / 2 frames score best, more than many short ones do.
    """
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=g, dtype=torch.float64) * scale).to(dtype)

    transition = normal(labels, labels)
    forbidden = torch.rand(labels, labels, generator=g) < masked
    transition = torch.where(forbidden, torch.full_like(transition, -math.inf), transition)
    lengths = torch.randint(1, frames + 1, (batch,), generator=g)
    lengths[0] = frames
    return make_problem(
        normal(batch, frames, labels),
        transition,
        normal(longest, labels) + tilted(longest, tilt).to(dtype)[:, None],
        lengths,
        normal(labels),
        normal(labels),
    )


def extended_problem(
    batch: int,
    frames: int,
    longest: int,
    labels: int,
    *,
    terms: tuple[str, ...] = (),
    masked: float = 0.0,
    soft: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """A random problem with terms of its segments.

    A share `masked` of all values but frames, starts and ends is -inf; a fifth pays the penalty `soft`.
    """
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        value = torch.randn(*shape, generator=g, dtype=torch.float64)
        value = value - soft * (torch.rand(shape, generator=g) < 0.2)
        return torch.where(torch.rand(shape, generator=g) < masked, -math.inf, value).to(dtype)

    plain = random_problem(batch, frames, longest, labels, seed=seed, dtype=dtype)
    given = {
        "seg_start_BTC": normal(batch, frames, labels) if "start" in terms else None,
        "seg_end_BTC": normal(batch, frames, labels) if "end" in terms else None,
        "segment_BTKC": normal(batch, frames, longest, labels) if "segment" in terms else None,
    }
    return make_problem(
        **{**inputs_of(plain), "transition_CC": normal(labels, labels), **given}  # type: ignore[arg-type]
    )


def inputs_of(problem: Problem) -> dict[str, torch.Tensor | None]:
    """The arguments of the functions in api.py, and of make_problem."""
    return {field.name: getattr(problem, field.name) for field in fields(problem)}


def tilted(longest: int, tilt: float) -> torch.Tensor:
    beyond = torch.arange(longest, dtype=torch.float64)
    return tilt * (beyond - 2 * (beyond - longest // 2).clamp(min=0)) * beyond


def worst(a: object, b: object, names: tuple[str, ...] = COUNTS) -> float:
    """The largest difference of two Posteriors."""
    return max(float((getattr(a, n).double() - getattr(b, n).double()).abs().max()) for n in names)


def parts(found: Posteriors) -> list[torch.Tensor]:
    """log Z and every count."""
    counts = [getattr(found, name) for name in (*COUNTS, "segment_BTKC")]
    return [found.log_z_B, *(count for count in counts if count is not None)]


def balanced(problem: Problem, found: Posteriors, dtype: torch.dtype = torch.float64) -> bool:
    """Whether the counts of the feasible sequences obey every line of the ledger; NaN does not."""
    error_B = ledger.imbalance(problem, found)[torch.isfinite(found.log_z_B)]
    return bool((error_B <= ledger.tolerance_of(dtype, 1)).all())


def starts_of(segments: list[list[tuple[int, int, int]]], frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(labels_BT, starts_BT) of lists of (start, end_exclusive, label), zeros past the last segment."""
    labels_BT = torch.zeros(len(segments), frames, dtype=torch.int64)
    starts_BT = torch.zeros(len(segments), frames, dtype=torch.bool)
    for at, found in enumerate(segments):
        for start, end, label in found:
            labels_BT[at, start:end] = label
            starts_BT[at, start] = True
    return labels_BT, starts_BT
