"""Viterbi on a GPU: the best score and its segments, pass and backtrace by Triton kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import Problem
from lab.rooms.semicrf.model.triton import backend
from lab.rooms.semicrf.model.triton import linear as kernels
from lab.rooms.semicrf.model.triton.launch import launch

BEST_N = 8
"""Frames in a block of Viterbi's pass, which keeps durations beside float64 scores."""


def viterbi(problem: Problem) -> tuple[Tensor, list[list[Segment]]]:
    """Best score (B,) and path of each sequence, as `paths.viterbi`; the backtrace runs on the device too."""
    reason = backend.supports(problem) or (
        "transitions that depend on the duration" if problem.by_duration else None
    )
    if reason:
        raise UsageError(f"the Triton kernels do not take {reason}", fix="backend='torch' or 'auto'")
    batch, frames, longest, labels = problem.shape
    wide, device, far = (
        backend.padded_labels(labels),
        problem.score_BTC.device,
        backend.far_blocks(longest, BEST_N),
    )
    blocks, more = triton.cdiv(frames, BEST_N), wide - labels
    rows = batch * blocks * BEST_N

    def padded(value: Tensor, above: int = 0, below: int = 0) -> Tensor:
        sides = (0, more, above, below) if value.dim() == 2 else (0, more)
        return torch.nn.functional.pad(value.double(), sides, value=-float("inf"))

    # row d + BEST_N - 1: duration d
    table = padded(problem.duration_KC, BEST_N, (far + 2) * BEST_N - longest)
    gathered = torch.empty(rows, wide, dtype=torch.float64, device=device)
    arrived, durations = torch.empty_like(gathered), torch.empty_like(gathered, dtype=torch.int32)
    product = torch.empty_like(gathered[: batch * blocks])
    score_BTC, onward = problem.score_BTC.contiguous(), padded(problem.transition, 0, more)
    first, last = padded(problem.start_C), padded(problem.end_C)
    staged, parts = far > backend.STAGE, triton.cdiv(far, backend.STAGE)
    shape = {"N": BEST_N, "CP": wide, "STAGE": backend.STAGE if staged else 0}
    carried: tuple[Any, ...] = (0, 0, 0)
    if staged:
        partial = torch.empty(
            batch * parts * backend.STAGE * BEST_N, wide, dtype=torch.float64, device=device
        )
        partial_taken, betweens = (
            torch.empty_like(partial, dtype=torch.int32),
            torch.empty_like(partial[: batch * parts]),
        )
        outside = torch.empty_like(partial[: batch * backend.STAGE * BEST_N])
        carried = (outside, torch.empty_like(outside, dtype=torch.int32), torch.empty_like(outside[:batch]))
    for begin in range(0, blocks, backend.STAGE if staged else blocks):
        before = min(parts, begin // backend.STAGE)
        if before:
            launch(
                kernels.outside_bests,
                (batch, backend.STAGE * before),
                table,
                problem.lengths_B,
                gathered,
                product,
                partial,
                partial_taken,
                betweens,
                frames,
                far,
                blocks,
                begin,
                before,
                **shape,
                num_warps=backend.warps(wide),
            )
            launch(
                kernels.outside_best_of,
                (batch, backend.STAGE),
                partial,
                partial_taken,
                betweens,
                *carried[:2],
                before,
                **shape,
                num_warps=backend.warps(wide),
            )
        launch(
            kernels.best_messages,
            (batch,),
            score_BTC,
            onward,
            table,
            first,
            problem.lengths_B,
            gathered,
            product,
            arrived,
            durations,
            *carried,
            frames,
            labels,
            far,
            blocks,
            begin,
            backend.STAGE if staged else blocks,
            **shape,
            num_warps=backend.warps(wide),
        )
    segments = torch.empty(batch, frames, 3, dtype=torch.int32, device=device)
    count_B = torch.empty(batch, dtype=torch.int32, device=device)
    score_B = torch.empty(batch, dtype=torch.float64, device=device)
    launch(
        kernels.best_paths,
        (batch,),
        onward,
        last,
        problem.lengths_B,
        arrived,
        durations,
        segments,
        count_B,
        score_B,
        frames,
        blocks,
        N=BEST_N,
        CP=wide,
        num_warps=backend.warps(wide),
    )
    counts = count_B.tolist()
    backwards = segments[:, : max(counts)].cpu().numpy()
    return score_B, [
        [(s, e, c) for s, e, c in one[:n][::-1].tolist()] for one, n in zip(backwards, counts, strict=True)
    ]
