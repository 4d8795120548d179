"""Best segmentations and draws on NVIDIA GPUs: decode.cu, compiled at run time.

A call waits for the device only for what it returns. Draws walk back through the messages of semicrf.cu
(cuda.py), in float64.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lab.rooms.semicrf.model.native import cuda as native_cuda
from lab.rooms.semicrf.model.native.cuda_driver import Machine
from lab.rooms.semicrf.model.native.cuda_plan import (
    Launch,
    Plan,
    Shape,
    Sizes,
    Source,
    ceiling,
    made,
    plan_messages,
    shape_of,
)
from lab.rooms.semicrf.model.native.path import BatchPaths, Decoded
from lab.rooms.semicrf.model.problem import Problem

SOURCE = Source("decode.cu")


@dataclass(frozen=True)
class DecodeSizes(Sizes):
    """How the kernels divide the work."""

    block: int = 8
    """Frames in a block: fewer than in the linear pass, as what each block brings takes shared memory."""
    tile_bytes: int = 16384
    """Shared memory for the rows that a walk back goes through."""
    apart: int = 32
    """Threads that a walk of a draw has to itself: a warp, not to wait for what the others bring."""
    draws: int = 5
    """Draws whose choices a thread makes at once."""
    choice_bytes: int = 2**28
    """Memory for the choices of a group of draws, if it is more than one."""

    def constants(self, wide: int) -> dict[str, int]:
        numbers = {"N": self.block, "THREADS": self.threads, "APART": self.apart, "DRAWS": self.draws}
        return {**numbers, "TILE": self.tile_bytes // (8 * wide) // 2 * 2}


SIZES = DecodeSizes()
ROWS_EACH = 4
"""Boundaries whose labels before them a thread finds: RUN in decode.cu."""
MOST_GROUP = 65535
"""Draws in a group: thread blocks in a grid's last dimension."""
HELD: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
"""Pinned memory of paths that somebody still has, by its address."""
MOST_HELD_BYTES = 2**26
"""Results up to this size are copied into pinned memory that torch keeps, while no more of it is held."""


@dataclass(frozen=True)
class Marked(Decoded):
    """The same as the kernels leave it, in memory that may be pinned."""

    pinned: bool = False

    def paths(self) -> BatchPaths:
        """In memory of their own: a copy, which can take long, or the pinned memory while there is room."""
        rows = self.ends_BNT
        whole = (
            rows.base if isinstance(rows.base, np.ndarray) else rows
        )  # what numpy's views of views hold on to
        if not self.pinned or sum(one.nbytes for one in [*HELD.values()]) + whole.nbytes > MOST_HELD_BYTES:
            rows = np.array(rows)
        else:
            HELD[whole.ctypes.data] = whole
        return BatchPaths(rows)


def best(problem: Problem, count: int) -> tuple[Tensor, Marked]:
    """The `count` best segmentations of each sequence, best first; -> scores (B, N), -inf past the last.

    Where a number is NaN, +inf or large the result is not `ordinary`.
    """
    model, doubles = as_read(problem)
    plan = plan_best(shape_of(*model.shape, model.score_BTC.dtype, SIZES), count, doubles)
    workspace = torch.empty(plan.bytes, dtype=torch.uint8, device=model.score_BTC.device)
    machine_for(model).run(plan, **native_cuda.bound_inputs(model), best=workspace)
    copy = Copied(plan, workspace, "scores")
    score_BN, odd, ends_BNT = (copy.values(name) for name in ("scores", "odd", "ends"))
    return torch.from_numpy(score_BN), Marked(ends_BNT, not odd.any(), copy.pinned)


def draws(problem: Problem, samples: int, seed: int) -> tuple[Marked, Tensor]:
    """Exact draws; and the sequences that had none because underflow may have lost something, or a number is
    NaN or +inf, (B,) bool.
    """
    model, double = replace(problem, given_B=None), torch.float64
    if any(
        value.dtype == double for value in problem.floats()
    ):  # the kernels read one type, and compute in this
        model = model.with_floats([value.detach().to(double) for value in problem.floats()])
    found: list[Copied] = []

    def walk_back(state: native_cuda.State) -> None:
        plan = plan_draws(state.shape, samples, SIZES)
        workspace = torch.empty(plan.bytes, dtype=torch.uint8, device=model.score_BTC.device)
        machine_for(state.problem).run(plan, **state.bound, seed=Word(seed % 2**64), draws=workspace)
        found.append(Copied(plan, workspace, "flagged"))

    state = native_cuda.forward(model, count=False, behind=walk_back, real=double)
    flagged_BN, ends_BNT = (found[0].values(name) for name in ("flagged", "ends"))
    lost_B = torch.from_numpy((flagged_BN == 1).any(1))
    if state.again is not None:
        lost_B[state.again.cpu()] = True
    return Marked(ends_BNT, pinned=found[0].pinned), lost_B


@dataclass(frozen=True)
class Word:
    """A number among a plan's tensors, whose addresses are added to the arguments."""

    value: int

    def data_ptr(self) -> int:
        return self.value


@functools.lru_cache(maxsize=64)
def plan_best(shape: Shape, count: int, doubles: bool) -> Plan:
    """The pass and the walks back. To be bound: score, transition, duration, start, end, lengths."""
    sizes, batch, frames, wide, more = shape.sizes, shape.batch, shape.frames, shape.wide, count > 1
    rows = wide + 2 + shape.longest + 2 * sizes.block  # durations that a block looks at, there or not
    programs, looking = ceiling(rows * wide, sizes.threads), ceiling(batch * frames, sizes.threads)
    states, nodes = (batch, frames, shape.labels), (batch, count * more, 2 * frames)
    wanted = {
        "model": (rows, wide),
        "gathered": (batch, shape.blocks * sizes.block, wide),
        "product": (batch, shape.blocks, wide),
        **dict.fromkeys(("lasts", "steps", "exits", "alpha"), states),
        **dict.fromkeys(("hops", "gamma"), states if more else (0,)),
        **dict.fromkeys(("best_score", "last_label"), (batch,)),
        **dict.fromkeys(("chosen", "boundary"), nodes),
        **dict.fromkeys(("first", "roots", "parents", "used"), (batch, count)),
    }
    launches = [
        Launch("prepare", (programs + looking,)),
        Launch("best_messages", (batch,)),
        Launch("best_labels", (ceiling(frames, ROWS_EACH * sizes.threads // wide), batch)),
        Launch("best_path", (batch,)),
    ]
    if more:
        wanted |= dict.fromkeys(("other", "worth", "behind", "value", "step"), nodes)
        launches.append(Launch("other_choices", (ceiling(frames, sizes.threads), 2, batch)))
        launches.append(Launch("further_paths", (batch,)))
    wanted |= {"scores": (batch, count), "odd": (programs + looking,), "ends": (batch, count, frames)}
    numbers = {"count": count, "paths": count, "doubles": int(doubles), "rows": rows, "programs": programs}
    return made("best", SOURCE, shape, wanted, launches, numbers)


@functools.lru_cache(maxsize=64)
def plan_draws(shape: Shape, samples: int, sizes: DecodeSizes) -> Plan:
    """Walks back through the messages of `plan_messages`. To be bound besides: seed, one int64."""
    batch, frames, block, wide = shape.batch, shape.frames, shape.sizes.block, shape.wide
    used = shape.sizes.used(shape.labels)
    programs = ceiling(frames, ROWS_EACH * sizes.threads // wide)
    group = max(1, min(samples, sizes.choice_bytes // (4 * batch * frames * used), MOST_GROUP))
    wanted = {
        "weighed": (batch, frames, wide, 2),
        **dict.fromkeys(("contents", "odd"), (batch, programs)),
        "follows": (batch, group, frames, used),
        "flagged": (batch, samples),
        "ends": (batch, samples, frames),
    }
    launches = [Launch("weigh_frames", (programs, batch))]
    for first in range(0, samples, group):
        count = min(group, samples - first)
        numbers = {"first": first, "group": count}
        launches.append(Launch("draw_choices", (programs, batch, ceiling(count, sizes.draws)), numbers))
        launches.append(Launch("draws", (count, batch), numbers))
    launches.append(Launch("check_draws", (ceiling(frames, sizes.threads), batch)))
    numbers = {"samples": samples, "programs": programs, "table_first": block, "THREADS": sizes.threads}
    numbers["stride"] = 2 * shape.blocks * block  # rows of both directions
    return made("draws", SOURCE, shape, wanted, launches, numbers, plan_messages(shape, 2))


def as_read(problem: Problem) -> tuple[Problem, bool]:
    """The inputs as the kernels read them: as those of semicrf.cu; but where a parameter has another type
    than the scores all of them are float64, and the second value is true.
    """
    found = native_cuda.as_read(problem)
    parameters, score_BTC = problem.floats()[1:], found.score_BTC
    doubles = any(value.dtype != score_BTC.dtype for value in parameters)
    if doubles:
        floats = [value.detach().resolve_neg().double().contiguous() for value in parameters]
        found = found.with_floats([score_BTC, *floats])
    return replace(found, given_B=None), doubles


class Copied:
    """A plan's buffers from `first` on, on their way to the CPU."""

    def __init__(self, plan: Plan, workspace: Tensor, first: str) -> None:
        self.plan, self.begin = plan, plan.buffers[first].offset
        results = workspace[self.begin :]
        self.pinned = results.is_cuda and len(results) <= MOST_HELD_BYTES
        self.stream = torch.cuda.current_stream(results.device) if self.pinned else None
        room = torch.empty(len(results), dtype=torch.uint8, device="cpu", pin_memory=self.pinned)
        self.bytes = room.copy_(results, non_blocking=self.pinned).numpy()

    def values(self, name: str) -> np.ndarray:
        """A buffer, once it is there; torch's own views take longer than the draws of a short sequence."""
        if self.stream is not None:
            self.stream.synchronize()
            self.stream = None
        buffer = self.plan.buffers[name]
        number = as_numpy(buffer.dtype)
        at = buffer.offset - self.begin
        found: np.ndarray = self.bytes[at : at + buffer.bytes].view(number).reshape(buffer.shape)
        return found


@functools.cache
def as_numpy(dtype: torch.dtype) -> np.dtype:
    found: np.dtype = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    return found


def machine_for(problem: Problem) -> Machine:
    """The kernels for this problem's device, type of scores and number of labels. Raises LabError."""
    return native_cuda.machine_for(problem, SOURCE, SIZES, problem.score_BTC.dtype)
