"""Launches of the Triton kernels: forward and backward of one batch, and the fallback to the log domain.

Works on CUDA and, through Triton's AMD backend, on ROCm (not run there); with TRITON_INTERPRET=1 on the CPU.
float64 scores are computed in float64, all others in float32 with float64 offsets. One wait per call, for the
flags.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model.problem import MAX_LABELS, Posteriors, Problem
from lab.rooms.semicrf.model.triton import linear as kernels
from lab.rooms.semicrf.model.triton import log as log_kernels
from lab.rooms.semicrf.model.triton.launch import launch
from lab.rooms.semicrf.model.triton.log_terms import LogState

N = 16
"""Frames in a block."""
STAGE = 16
"""Blocks per stage. Where a segment can reach farther back, stages follow each other. What earlier stages
contribute to a stage is computed before it, one program per block and block distance.
"""
ROUNDING = 2.0**-10
"""A frame's mass that is off by less is what rounding of the messages makes of it, and is divided out."""
COUNT_FRAMES = 64
"""Frames in a chunk of the label and transition counts."""
COUNT_BLOCKS = 16
"""Blocks per chunk of the duration counts, more for long durations: partial sums take K / chunk rows."""
LIMITS = {torch.float32: (2.0**-126, 2.0**36), torch.float64: (2.0**-1022, 2.0**80)}
"""Smallest number that keeps its digits, and by how much a message must exceed what may be lost."""


@dataclass
class State:
    """What the passes leave on the device for the counts."""

    problem: Problem
    model: dict[str, Tensor]
    kept: dict[str, Tensor]
    log_z_B: Tensor
    again: Tensor | None
    logs: LogState | None
    """The log domain's messages of the flagged sequences."""


def supports(problem: Problem) -> str | None:
    """Why this problem cannot go through the kernels, or None."""
    if not problem.score_BTC.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return "tensors on the CPU"
    if problem.shape[3] > MAX_LABELS:
        return f"{problem.shape[3]} labels, more than {MAX_LABELS}"
    return None


def padded_labels(labels: int) -> int:
    """A lane for each label; never less than a warp, so that a tile's rows stay within one lane."""
    return max(32, int(triton.next_power_of_2(labels)))


def far_blocks(longest: int, block: int | None = None) -> int:
    """How many blocks back a segment of K frames can start."""
    return (longest - 2) // (block or N) + 1 if longest >= 2 else 0


def working_dtype(problem: Problem) -> torch.dtype:
    return torch.float64 if problem.score_BTC.dtype == torch.float64 else torch.float32


def weigh(problem: Problem, saturate: bool = False) -> dict[str, Tensor]:
    """The model's weights on the device."""
    _, _, longest, labels = problem.shape
    wide, dtype, device = padded_labels(labels), working_dtype(problem), problem.score_BTC.device
    rows = (far_blocks(longest) + 2) * N
    programs = triton.cdiv(rows, 64)
    model = {
        "onward": torch.empty(2, wide, wide, dtype=dtype, device=device),
        "table": torch.empty(rows, wide, dtype=dtype, device=device),
        "first": torch.empty(wide, dtype=dtype, device=device),
        "last": torch.empty(wide, dtype=dtype, device=device),
        "slack": torch.empty(programs, dtype=dtype, device=device),
        "shift": torch.empty(1, dtype=torch.float64, device=device),
    }
    parameters = (problem.transition, problem.duration_KC, problem.start_C, problem.end_C)
    launch(
        kernels.prepare,
        (programs,),
        *(value.contiguous() for value in parameters),
        *model.values(),
        labels,
        longest,
        rows,
        N=N,
        CP=wide,
        ROWS=64,
        SATURATE=saturate,
        MARGIN=LIMITS[dtype][1],
        num_warps=4,
    )
    return model


def run_messages(
    problem: Problem, model: dict[str, Tensor], directions: int, keep: bool, saturate: bool = False
) -> dict[str, Tensor]:
    """The passes: what they leave, by name. With one direction, or without `keep`, only log Z and flags."""
    batch, frames, longest, labels = problem.shape
    wide, dtype, device = padded_labels(labels), working_dtype(problem), problem.score_BTC.device
    blocks, lanes = triton.cdiv(frames, N), batch * directions
    rows = lanes * blocks * N
    kept = {
        "gathered": torch.empty(rows, wide, dtype=dtype, device=device),
        "product": torch.empty(lanes * blocks, wide, dtype=dtype, device=device),
        "z_value": torch.empty(lanes, dtype=dtype, device=device),
        "z_power": torch.empty(lanes, dtype=torch.int32, device=device),
        "log_z": torch.empty(lanes, dtype=torch.float64, device=device),
        "flags": torch.empty(lanes, dtype=torch.int32, device=device),
        "count": torch.empty(lanes, dtype=torch.int32, device=device),
    }
    if keep:
        kept["source"] = torch.empty(rows, wide, dtype=dtype, device=device)
        kept["arrived"] = torch.empty(rows, wide, dtype=dtype, device=device)
        kept["exponent"] = torch.empty(rows, dtype=torch.int32, device=device)
    far = far_blocks(longest)
    staged = far > STAGE  # by K alone: the batch must not regroup a sum
    parts = triton.cdiv(far, STAGE)
    carried: tuple[Any, ...] = (0, 0, 0, 0)
    if staged:
        partial = torch.empty(lanes * parts * STAGE * N, wide, dtype=dtype, device=device)
        betweens = torch.empty(lanes * parts, wide, dtype=dtype, device=device)
        carried = (
            torch.empty(lanes * STAGE * N, wide, dtype=dtype, device=device),
            torch.empty(lanes * 4, wide, dtype=dtype, device=device),
            torch.empty(lanes * 4, wide, dtype=torch.int32, device=device),
            torch.empty(lanes, dtype=torch.float64, device=device),
        )
    for begin in range(0, blocks, STAGE if staged else blocks):
        before = min(parts, begin // STAGE)
        if before:
            launch(
                kernels.outside_parts,
                (batch, directions, STAGE * before),
                model["table"],
                problem.lengths_B,
                kept["gathered"],
                kept["product"],
                partial,
                betweens,
                frames,
                far,
                blocks,
                begin,
                before,
                N=N,
                CP=wide,
                STAGE=STAGE,
                DTYPE=TYPES[dtype],
                num_warps=warps(wide),
            )
            launch(
                kernels.outside_sums,
                (lanes, STAGE),
                partial,
                betweens,
                carried[0],
                before,
                N=N,
                CP=wide,
                STAGE=STAGE,
                DTYPE=TYPES[dtype],
                num_warps=warps(wide),
            )
        launch(
            kernels.messages,
            (batch, directions),
            problem.score_BTC,
            *model.values(),
            problem.lengths_B,
            *(kept.get(name, 0) for name in KEPT),
            *carried,
            frames,
            labels,
            far,
            blocks,
            len(model["slack"]),
            begin,
            STAGE if staged else blocks,
            N=N,
            CP=wide,
            SP=1024,
            STAGE=STAGE if staged else 0,
            DTYPE=TYPES[dtype],
            KEEP=keep,
            SATURATE=saturate,
            TINY=LIMITS[dtype][0],
            num_warps=warps(wide),
        )
    return kept


KEPT = [
    "gathered",
    "product",
    "source",
    "arrived",
    "exponent",
    "z_value",
    "z_power",
    "log_z",
    "flags",
    "count",
]
"""What the passes write, in the order of their arguments; messages and exponents only for the counts."""
TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def warps(wide: int) -> int:
    """A lane for each label: one warp up to 32 labels."""
    return max(1, wide // 32)


def forward(problem: Problem, keep: bool = True) -> State | LogState:
    """log Z (B,); with `keep` both passes run side by side and leave what `backward` needs.

    Transitions that depend on the duration do not factorise: the log domain takes them as they are.
    """
    reason = supports(problem)
    if reason:
        raise UsageError(f"the Triton kernels do not take {reason}", fix="backend='torch' or 'auto'")
    if problem.by_duration:
        return log_kernels.forward(problem, keep)
    problem = replace(problem, score_BTC=problem.score_BTC.contiguous())
    model = weigh(problem)
    directions = 2 if keep else 1
    kept = run_messages(problem, model, directions, keep)
    log_z_B = kept["log_z"][::directions]
    again, logs = flagged(problem, kept, directions), None
    if again is not None:
        logs = log_kernels.forward(problem.rows(again), keep)
        log_z_B = log_z_B.clone()
        log_z_B[again] = logs.log_z_B
    return State(problem, model, kept, log_z_B, again, logs)


def flagged(problem: Problem, kept: dict[str, Tensor], directions: int) -> Tensor | None:
    """Sequences to recompute, or None. A message of zero is right only where the model forbids it."""
    flags = kept["flags"].cpu()
    if not flags.numpy().any():
        return None
    bad = (flags & 1) > 0
    if bool((flags & 2).any()):
        reach = run_messages(problem, weigh(problem, saturate=True), directions, keep=False, saturate=True)
        bad |= reach["count"].cpu() != kept["count"].cpu()
    rows = bad.view(-1, directions).any(1).nonzero()[:, 0]
    return rows.to(kept["flags"].device) if len(rows) else None


def backward(state: State | LogState) -> Posteriors:
    """All expected counts; flagged sequences from the log domain."""
    if isinstance(state, LogState):
        return log_kernels.counts(state)
    label_BTC, starts_BTC, ends_BTC, error_B, frame_B = count_labels(state)
    counts = (label_BTC, starts_BTC, ends_BTC, count_durations(state), count_transitions(state))
    found = Posteriors(state.log_z_B, *counts, error_B, frame_B)
    if state.again is not None and state.logs is not None:
        found.replace_rows(state.again, log_kernels.counts(state.logs))
    return found


def count_labels(state: State) -> tuple[Tensor, ...]:
    """label, starts, ends (B, T, C), and per sequence the ledger's worst error and its first frame (B,)."""
    problem, kept = state.problem, state.kept
    batch, frames, _, labels = problem.shape
    wide, device = padded_labels(labels), problem.score_BTC.device
    blocks, chunks = triton.cdiv(frames, N), triton.cdiv(frames, COUNT_FRAMES)
    both = (
        *(kept[name] for name in ("source", "arrived", "exponent", "z_value", "z_power")),
        problem.lengths_B,
    )
    shape = {"N": N, "CP": wide, "F": COUNT_FRAMES}
    totals = torch.empty(batch * chunks, wide, dtype=torch.float64, device=device)
    launch(
        kernels.label_totals,
        (batch, chunks),
        *both,
        totals,
        frames,
        blocks,
        chunks,
        **shape,
        num_warps=4,
    )
    label_BTC = torch.empty(batch, frames, labels, dtype=working_dtype(problem), device=device)
    starts_BTC = torch.empty_like(label_BTC)
    ends_BTC = torch.empty_like(label_BTC)
    mass_error_BX = torch.empty(batch, chunks, dtype=torch.float64, device=device)
    mass_frame_BX = torch.empty(batch, chunks, dtype=torch.int64, device=device)
    launch(
        kernels.label_counts,
        (batch, chunks),
        *both,
        totals,
        label_BTC,
        starts_BTC,
        ends_BTC,
        mass_error_BX,
        mass_frame_BX,
        frames,
        labels,
        blocks,
        chunks,
        **shape,
        ALL=True,
        ROUNDING=ROUNDING,
        num_warps=4,
    )
    worst = mass_error_BX.max(1)
    frame_B = mass_frame_BX.gather(1, worst.indices[:, None])[:, 0]
    return label_BTC, starts_BTC, ends_BTC, worst.values, frame_B


def count_durations(state: State) -> Tensor:
    """Expected segments of each duration and label, (B, K, C) float64."""
    problem, kept = state.problem, state.kept
    batch, frames, longest, labels = problem.shape
    wide, dtype, device = padded_labels(labels), working_dtype(problem), problem.score_BTC.device
    blocks, far = triton.cdiv(frames, N), far_blocks(longest)
    chunk = max(COUNT_BLOCKS, far // 2)  # by K alone: padding must not regroup a sum
    pieces = triton.cdiv(blocks, chunk)
    z = (kept["z_value"], kept["z_power"], problem.lengths_B)
    partial = torch.empty(batch * pieces * (far + 1) * 2 * N, wide, dtype=dtype, device=device)
    shape = {"N": N, "CP": wide, "DTYPE": TYPES[dtype]}
    if far:
        launch(
            kernels.far_durations,
            (batch, pieces, far),
            kept["gathered"],
            kept["product"],
            kept["exponent"],
            *z,
            partial,
            frames,
            blocks,
            pieces,
            far,
            chunk,
            **shape,
            num_warps=warps(wide),
        )
    launch(
        kernels.near_durations,
        (batch, pieces),
        problem.score_BTC,
        kept["source"],
        kept["exponent"],
        *z,
        partial,
        frames,
        labels,
        blocks,
        pieces,
        far,
        chunk,
        **shape,
        num_warps=warps(wide),
    )
    duration_BKC = torch.empty(batch, longest, labels, dtype=torch.float64, device=device)
    launch(
        kernels.sum_durations,
        (batch, longest),
        partial,
        state.model["table"],
        duration_BKC,
        labels,
        longest,
        pieces,
        far,
        N=N,
        CP=wide,
        num_warps=1,
    )
    return duration_BKC


def count_transitions(state: State) -> Tensor:
    """Expected transitions between labels, (B, C, C) float64."""
    problem, kept = state.problem, state.kept
    batch, frames, _, labels = problem.shape
    wide, dtype, device = padded_labels(labels), working_dtype(problem), problem.score_BTC.device
    chunks = triton.cdiv(frames, COUNT_FRAMES)
    crossed = torch.empty(batch * chunks, wide, wide, dtype=dtype, device=device)
    launch(
        kernels.transitions,
        (batch, chunks),
        kept["arrived"],
        kept["exponent"],
        kept["z_value"],
        kept["z_power"],
        problem.lengths_B,
        crossed,
        frames,
        triton.cdiv(frames, N),
        chunks,
        N=N,
        CP=wide,
        DTYPE=TYPES[dtype],
        F=COUNT_FRAMES,
        num_warps=warps(wide),
    )
    transition_BCC = torch.empty(batch, labels, labels, dtype=torch.float64, device=device)
    launch(
        kernels.sum_transitions,
        (batch, labels),
        crossed,
        state.model["onward"],
        transition_BCC,
        labels,
        chunks,
        CP=wide,
        num_warps=1,
    )
    return transition_BCC
