"""Best segmentations and draws on NVIDIA GPUs: decode.cu, compiled at run time.

A call waits for the device only for what it returns. Draws walk back through the messages of semicrf.cu
(cuda.py), in float64.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lab.rooms.semicrf.model.native import cuda as native_cuda
from lab.rooms.semicrf.model.native.cuda_driver import Machine
from lab.rooms.semicrf.model.native.cuda_plan import (
    Launch,
    Plan,
    Shape,
    Sizes,
    Wanted,
    ceiling,
    made,
    plan_messages,
    shape_of,
)
from lab.rooms.semicrf.model.native.decode import MOST_HELD_BYTES, Decoded
from lab.rooms.semicrf.model.problem import Problem

SOURCE = Path(__file__).with_name("decode.cu")


@dataclass(frozen=True)
class DecodeSizes(Sizes):
    """How the kernels divide the work."""

    block: int = 8
    """Frames in a block: fewer than in the linear pass, as what each block brings takes shared memory."""
    tile_bytes: int = 16384
    """Shared memory for the rows that a walk back goes through."""
    apart: int = 32
    """Threads of a draw: a warp, whose lanes look at a label each."""

    def walk_rows(self, wide: int) -> int:
        return self.tile_bytes // (8 * wide) // 2 * 2


SIZES = DecodeSizes()
ROWS_EACH = 4
"""Boundaries whose labels before them a thread finds: RUN in decode.cu."""
MOST_PINNED_BYTES = MOST_HELD_BYTES
"""Results up to this size are copied in one go, into pinned memory that torch keeps; of larger ones no more
than the longest list."""


def best(problem: Problem, count: int) -> tuple[Tensor, Decoded]:
    """The `count` best segmentations of each sequence, best first; -> scores (B, N), -inf past the last.

    Where a number is NaN, +inf or large the result is not `ordinary`.
    """
    model, doubles = as_read(problem)
    plan = plan_best(shape_of(*model.shape, model.score_BTC.dtype, SIZES), count, doubles)
    workspace = torch.empty(plan.bytes, dtype=torch.uint8, device=model.score_BTC.device)
    machine_for(model).run(plan, **native_cuda.bound_inputs(model), best=workspace)
    (score_BN, odd), decoded = fetched(plan, workspace, "scores", "odd")
    return score_BN, replace(decoded, ordinary=not bool(odd.any()))


def draws(problem: Problem, samples: int, seed: int) -> tuple[Decoded, Tensor]:
    """Exact draws; and the sequences that had none because underflow may have lost something, or a number is
    NaN or +inf, (B,) bool.
    """
    model = problem.with_floats([value.detach().double().contiguous() for value in problem.floats()])
    found: list[tuple[Plan, Tensor]] = []

    def walk_back(state: native_cuda.State) -> None:
        plan = plan_draws(state.shape, samples, SIZES)
        workspace = torch.empty(plan.bytes, dtype=torch.uint8, device=model.score_BTC.device)
        machine_for(model).run(plan, **state.bound, seed=Word(seed % 2**64), draws=workspace)
        found.append((plan, workspace))

    state = native_cuda.forward(replace(model, given_B=None), count=False, behind=walk_back)
    (flagged_BN,), decoded = fetched(*found[0], "flagged")
    lost_B = (flagged_BN == 1).any(1)
    if state.again is not None:
        lost_B[state.again.cpu()] = True
    return decoded, lost_B


@dataclass(frozen=True)
class Word:
    """A number among a plan's tensors, whose addresses are added to the arguments."""

    value: int

    def data_ptr(self) -> int:
        return self.value


@functools.lru_cache(maxsize=64)
def plan_best(shape: Shape, count: int, doubles: bool) -> Plan:
    """The pass and the walks back. To be bound: score, transition, duration, start, end, lengths."""
    sizes = shape.sizes
    assert isinstance(sizes, DecodeSizes)
    batch, frames, labels, wide, blocks = shape.batch, shape.frames, shape.labels, shape.wide, shape.blocks
    slices = sizes.threads // wide
    more, whole, double = count > 1, torch.int32, torch.float64
    rows = wide + 2 + shape.longest + 2 * sizes.block  # durations that a block looks at, there or not
    programs, looking = ceiling(rows * wide, sizes.threads), ceiling(batch * frames, sizes.threads)
    states, nodes = (batch, frames, labels), (batch, count, 2 * frames)
    wanted: dict[str, Wanted] = {
        "model": (double, (rows, wide)),
        "gathered": (double, (batch, blocks * sizes.block, wide)),
        "product": (double, (batch, blocks, wide)),
        **dict.fromkeys(("lasts", "from"), (whole, states)),
        "alpha": (double, states),
        "gamma": (double, states if more else (0,)),
        "best_score": (double, (batch,)),
        "last_label": (whole, (batch,)),
        **dict.fromkeys(("chosen", "boundary"), (whole, nodes)),
        "other": (whole, nodes if more else (0,)),
        **dict.fromkeys(("worth", "behind", "value", "step"), (double, nodes if more else (0,))),
        **dict.fromkeys(("first", "roots", "parents", "used"), (whole, (batch, count))),
        "scores": (double, (batch, count)),
        "odd": (whole, (programs + looking,)),
        "sizes": (whole, (batch, count)),
        "segments": (whole, (batch, count, frames, 2)),
    }
    given = ("transition", "duration", "start", "end", "score", "lengths", "model", "odd")
    inputs = ("score", "model", "lengths", "gathered", "product")
    outcome = ("best_score", "last_label")
    passed = (*inputs, "lasts", "alpha", *outcome, frames, labels, shape.longest, blocks)
    nodes_of = ("chosen", "boundary", "other", "worth", "behind", "value", "step")
    search = ("score", "model", "lengths", "lasts", "from", "alpha", "gamma", *nodes_of)
    numbers = (frames, labels, shape.longest, count)
    outputs = ("first", "roots", "parents", "used", "scores", "segments", "sizes", *numbers)
    groups = ceiling(frames, ROWS_EACH * slices)
    launches = [
        Launch(
            "prepare",
            (programs + looking,),
            sizes.threads,
            (*given, int(doubles), batch, frames, labels, shape.longest, rows, programs),
        ),
        Launch("best_messages", (batch,), sizes.threads, passed),
        Launch(
            "best_labels",
            (groups, batch),
            sizes.threads,
            ("model", "alpha", "lengths", "from", "gamma", frames, labels, int(more)),
        ),
        Launch("best_path", (batch,), sizes.threads, (*search, *outcome, *outputs)),
    ]
    if more:
        each = (ceiling(frames, sizes.threads), 2, batch)
        launches += [
            Launch("other_choices", each, sizes.threads, (*search, "first", "parents", "used", *numbers)),
            Launch("further_paths", (batch,), sizes.threads, (*search, *outputs)),
        ]
    return made("best", wanted, launches)


@functools.lru_cache(maxsize=64)
def plan_draws(shape: Shape, samples: int, sizes: DecodeSizes) -> Plan:
    """Walks back through the messages of `plan_messages`. To be bound besides: seed, one int64."""
    batch, frames, block = shape.batch, shape.frames, shape.sizes.block
    whole = torch.int32
    wanted: dict[str, Wanted] = {
        **dict.fromkeys(("flagged", "sizes"), (whole, (batch, samples))),
        "segments": (whole, (batch, samples, frames, 2)),
    }
    stride = 2 * shape.blocks * block  # rows of both directions
    model = ("score", "tops", "onward", "table", "last", "lengths", "source", "arrived", "exponent")
    numbers = (frames, shape.labels, shape.longest, samples, stride, block)
    walking = (*model, "z_value", "seed", "segments", "sizes", "flagged", *numbers)
    checking = (*model, "transition", "duration", "start", "end", "segments", "sizes", "flagged", *numbers)
    groups, rows = ceiling(samples * sizes.apart * 2, sizes.threads), ceiling(frames, sizes.threads)
    launches = [
        Launch("draws", (groups, batch), sizes.threads, walking),
        Launch("check_draws", (rows, batch), sizes.threads, checking),
    ]
    return made("draws", wanted, launches, plan_messages(shape, 2))


def as_read(problem: Problem) -> tuple[Problem, bool]:
    """The inputs as the kernels read them: as those of semicrf.cu; but where a parameter has another type
    than the scores all of them are float64, and the second value is true.
    """
    found = native_cuda.as_read(problem)
    parameters, score_BTC = problem.floats()[1:], found.score_BTC
    doubles = any(value.dtype != score_BTC.dtype for value in parameters)
    if doubles:
        floats = [value.detach().double().contiguous() for value in parameters]
        found = found.with_floats([score_BTC, *floats])
    return replace(found, given_B=None), doubles


def fetched(plan: Plan, workspace: Tensor, *first: str) -> tuple[list[Tensor], Decoded]:
    """The buffers `first` and the segmentations on the CPU; the plan's last ones, `first` before them."""
    names = (*first, "sizes", "segments")
    begin = plan.buffers[first[0]].offset
    results = workspace[begin:]
    if results.is_cuda and len(results) <= MOST_PINNED_BYTES:
        pinned = torch.empty(len(results), dtype=torch.uint8, pin_memory=True)
        pinned.copy_(results, non_blocking=True)
        torch.cuda.current_stream(results.device).synchronize()
        buffers = (replace(plan.buffers[name], offset=plan.buffers[name].offset - begin) for name in names)
        *found, sizes_BN, segments_BNT2 = (buffer.view(pinned) for buffer in buffers)
        return found, Decoded(segments_BNT2, sizes_BN, pinned=True)
    *found, sizes_BN, segments_BNT2 = (plan.buffers[name].view(workspace) for name in names)
    found, sizes_BN = [one.cpu() for one in found], sizes_BN.cpu()
    return found, Decoded(segments_BNT2[:, :, : int(sizes_BN.max())].cpu(), sizes_BN)


def machine_for(problem: Problem) -> Machine:
    """The kernels for this problem's device, type of scores and number of labels; compiled once.

    Raises LabError.
    """
    score_BTC, labels = problem.score_BTC, problem.shape[3]
    used = ceiling(labels, 8) * 8
    return compiled_machine(score_BTC.device, score_BTC.dtype, SIZES.padded(labels), SIZES, used)


@functools.cache
def compiled_machine(
    device: torch.device, dtype: torch.dtype, wide: int, sizes: DecodeSizes, used: int
) -> Machine:
    return native_cuda.built(device, SOURCE, defines(dtype, wide, sizes, used))


def defines(dtype: torch.dtype, wide: int, sizes: DecodeSizes, used: int | None = None) -> dict[str, object]:
    """The constants that the source takes from the compiler's command line."""
    rows = sizes.walk_rows(wide)
    numbers = {"THREADS": sizes.threads, "N": sizes.block, "TILE": rows, "APART": sizes.apart}
    real = "double" if dtype == torch.float64 else "float"
    return {"REAL": real, "CP": wide, "USED": used or wide, **numbers}
