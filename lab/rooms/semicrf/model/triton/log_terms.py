"""What the log domain's kernels share: running sums of terms in logs, shares, lengths; and their launch.

A sum of terms is kept as (the largest term, the sum of all in its units): no NaN where all are -inf, and
nothing is lost.
"""

# Triton's language is not typed Python.
# mypy: ignore-errors
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lab.rooms.semicrf.model.problem import Problem
from lab.rooms.semicrf.model.triton.launch import launch

TILE = 32
"""Rows of a tile: frames, or segments by their other end. Half of it from 33 labels on."""
PARTIAL_BYTES = 1 << 28
"""Memory for partial sums of counts; more of them are added up in several launches, to the same bits."""


@triton.jit
def finite_or_zero(value):
    return tl.where(tl.abs(value) < float("inf"), value, 0.0)


@triton.jit
def joined(top, total, value):
    """One more term: the largest so far, and the sum of all in its units.

    One exp; any -inf, and NaN, as they are.
    """
    apart = tl.where(value == top, 0.0, tl.abs(value - top))  # two -inf are not apart
    less = tl.exp(-apart)
    total = tl.where(value > top, total * less + 1.0, total + less)
    return tl.maximum(top, value), total


@triton.jit
def shares(value, axis: tl.constexpr):
    """softmax; all zero where all entries are -inf."""
    top = tl.max(value, axis, keep_dims=True)
    part = tl.exp(value - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(part, axis, keep_dims=True)
    return part / tl.where(total == 0, 1.0, total)


@triton.jit
def logsumexp(value, axis: tl.constexpr):
    top = tl.max(value, axis)
    safe = tl.where(top == float("-inf"), 0.0, top)
    return tl.log(tl.sum(tl.exp(value - tl.expand_dims(safe, axis)), axis)) + safe


@triton.jit
def length_of(lengths, b, frames):
    return tl.minimum(tl.maximum(tl.load(lengths + b).to(tl.int32), 0), frames)


@triton.jit
def usable_length(lengths, log_z, b, frames):
    """0 for a sequence that nothing fits, or with NaN: its counts are zero."""
    usable = tl.abs(tl.load(log_z + b)) < float("inf")
    return tl.where(usable, length_of(lengths, b, frames), 0)


@triton.jit(do_not_specialize=["size", "chunks"])
def add_chunks(partial, total, size, chunks, BLOCK: tl.constexpr):
    """total (B, size) += the chunks of partial (B, chunks, size), one after the other."""
    b = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    sums = tl.load(total + b * size + at, mask=mask)
    tl.debug_barrier()  # each element is one lane's own; the lint knows arguments, not lanes
    for chunk in range(chunks):
        sums += tl.load(partial + (b * chunks + chunk) * size + at, mask=mask)
    tl.store(total + b * size + at, sums, mask=mask)


@dataclass
class LogState:
    """What the pass from the left leaves on the device: the model's tables, and the messages if kept."""

    problem: Problem
    model: dict[str, Tensor]
    kept: dict[str, Tensor]

    @property
    def log_z_B(self) -> Tensor:
        return self.kept["log_z"]


@dataclass(frozen=True)
class Shape:
    """Padded labels, rows per tile and warps: by C alone, so that bits are too. About 4 numbers per lane."""

    wide: int
    rows: int
    warps: int

    @classmethod
    def of(cls, problem: Problem) -> Shape:
        wide = max(16, int(triton.next_power_of_2(problem.shape[3])))
        rows = TILE if wide <= 32 else TILE // 2
        return cls(wide, rows, min(16, max(4, rows * wide // 128)))


def padded(value: Tensor, more: int, rows: bool = False) -> Tensor:
    """float64 with `more` labels that are forbidden, in the last dimension, with `rows` in the last two."""
    sides = (0, more, 0, more) if rows else (0, more)
    return torch.nn.functional.pad(value.detach().double(), sides, value=-float("inf")).contiguous()


def added(durations, given: tuple, shape: Shape, problem: Problem, depth: int, **options: int) -> Tensor:
    """The sums of the kernel `durations` over all tiles of frames: (B, K, depth, CP), in pieces that fit."""
    batch, frames, longest, labels = problem.shape
    total = given[-1].new_zeros(batch, longest, depth, shape.wide)
    size, tiles = total[0].numel(), triton.cdiv(frames, shape.rows)
    most = max(1, min(tiles, PARTIAL_BYTES // (8 * batch * size)))
    for first in range(0, tiles, most):
        chunks = min(most, tiles - first)
        partial = total.new_zeros(batch, chunks, size)
        launch(
            durations,
            (batch, chunks),
            *given,
            partial,
            frames,
            labels,
            longest,
            first,
            chunks,
            ROWS=shape.rows,
            CP=shape.wide,
            num_warps=shape.warps,
            **options,
        )
        launch(
            add_chunks,
            (batch, triton.cdiv(size, 1024)),
            partial,
            total,
            size,
            chunks,
            BLOCK=1024,
            num_warps=4,
        )
    return total
