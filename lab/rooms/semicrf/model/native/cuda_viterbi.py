"""The best segmentation on NVIDIA GPUs: viterbi.cu, compiled at run time."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch

from lab.rooms.semicrf.model.native import cuda as native_cuda
from lab.rooms.semicrf.model.native.cuda_plan import (
    Launch,
    Plan,
    Shape,
    Sizes,
    Source,
    ceiling,
    made,
    shape_of,
)
from lab.rooms.semicrf.model.problem import Problem

SOURCE = Source("viterbi.cu")


@dataclass(frozen=True)
class ViterbiSizes(Sizes):
    """How the kernels divide the work."""

    block: int = 8
    """Frames in a block: fewer than in the linear pass, as what each block brings takes shared memory."""

    def constants(self, wide: int) -> dict[str, int]:
        return {"N": self.block, "THREADS": self.threads}


SIZES = ViterbiSizes()
ROWS_EACH = 4
"""Boundaries whose labels before them a thread finds: RUN in viterbi.cu."""


def best(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The best score of each sequence (B,), -inf where nothing is feasible, and (B, T) label + 1 where a
    segment ends with a frame, else 0; on the host.
    """
    model, doubles = as_read(problem)
    plan = plan_viterbi(shape_of(*model.shape, model.score_BTC.dtype, SIZES), doubles)
    workspace = torch.empty(plan.bytes, dtype=torch.uint8, device=model.score_BTC.device)
    machine = native_cuda.machine_for(model, SOURCE, SIZES)
    machine.run(plan, **native_cuda.bound_inputs(model), best=workspace)
    scores_B, ends_BT = (plan.buffers[name].view(workspace).cpu().numpy() for name in ("best_score", "ends"))
    return scores_B, ends_BT


@functools.lru_cache(maxsize=64)
def plan_viterbi(shape: Shape, doubles: bool) -> Plan:
    """The pass and the walk back. To be bound: score, transition, duration, start, end, lengths."""
    sizes, batch, frames, wide = shape.sizes, shape.batch, shape.frames, shape.wide
    rows = wide + 2 + shape.longest + 2 * sizes.block  # durations that a block looks at, there or not
    states = (batch, frames, shape.labels)
    wanted = {
        "model": (rows, wide),
        "gathered": (batch, shape.blocks * sizes.block, wide),
        "product": (batch, shape.blocks, wide),
        **dict.fromkeys(("lasts", "steps", "exits", "alpha"), states),
        **dict.fromkeys(("best_score", "last_label"), (batch,)),
        "ends": (batch, frames),
    }
    launches = [
        Launch("prepare", (ceiling(rows * wide, sizes.threads),)),
        Launch("best_messages", (batch,)),
        Launch("best_labels", (ceiling(frames, ROWS_EACH * sizes.threads // wide), batch)),
        Launch("best_path", (batch,)),
    ]
    return made("best", SOURCE, shape, wanted, launches, {"doubles": int(doubles), "rows": rows})


def as_read(problem: Problem) -> tuple[Problem, bool]:
    """The inputs as those of semicrf.cu; but where a parameter has another type than the scores all of them
    are float64, and the second value is true.
    """
    read = native_cuda.as_read(problem)
    parameters, score_BTC = problem.floats()[1:], read.score_BTC
    doubles = any(value.dtype != score_BTC.dtype for value in parameters)
    if doubles:
        floats = [value.detach().resolve_neg().double().contiguous() for value in parameters]
        read = read.with_floats([score_BTC, *floats])
    return read, doubles
