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

from lab.errors import UsageError
from lab.rooms.semicrf.model.native import cuda as native_cuda
from lab.rooms.semicrf.model.native import cuda_driver
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
)
from lab.rooms.semicrf.model.native.decode import Decoded
from lab.rooms.semicrf.model.problem import Problem

SOURCE = Path(__file__).with_name("decode.cu")
WARP = 32


@dataclass(frozen=True)
class DecodeSizes(Sizes):
    """How the kernels divide the work."""

    window_bytes: int = 32768
    """Shared memory for the window of durations; longer ones use global memory."""
    tile_bytes: int = 16384
    """Shared memory for the rows that a walk back goes through."""

    def window(self, wide: int) -> int:
        """Histories of a label that fit into shared memory, as many for each slice of the threads."""
        slices = self.threads // wide
        return self.window_bytes // (8 * wide) // slices * slices


SIZES = DecodeSizes()


def best(problem: Problem, count: int) -> tuple[Tensor, Decoded]:
    """The `count` best segmentations of each sequence, best first; -> scores (B, N), -inf past the last."""
    model = as_read(problem)
    plan = plan_best(Shape(*model.shape, model.score_BTC.dtype, SIZES), count)
    workspace = torch.empty(plan.bytes, dtype=torch.uint8, device=model.score_BTC.device)
    machine_for(model).run(plan, **native_cuda.bound_inputs(model), best=workspace)
    return plan.buffers["scores"].view(workspace).cpu(), fetched(plan, workspace)


def draws(problem: Problem, samples: int, seed: int) -> tuple[Decoded, Tensor]:
    """Exact draws; and the sequences that had none because underflow may have lost something, (B,) bool."""
    model = replace(as_read(problem), score_BTC=problem.score_BTC.detach().double().contiguous())
    state = native_cuda.forward(model)
    assert isinstance(state, native_cuda.State)
    plan = plan_draws(state.shape, samples)
    workspace = torch.empty(plan.bytes, dtype=torch.uint8, device=model.score_BTC.device)
    word = torch.tensor([(seed + 2**63) % 2**64 - 2**63], device=model.score_BTC.device)
    machine_for(model).run(plan, **state.bound, seed=word, draws=workspace)
    lost_B = (plan.buffers["flagged"].view(workspace) == 1).any(1)
    if state.again is not None:
        lost_B[state.again] = True
    return fetched(plan, workspace), lost_B.cpu()


@functools.lru_cache(maxsize=64)
def plan_best(shape: Shape, count: int) -> Plan:
    """The pass and the walks back. To be bound: score, transition, duration, start, end, lengths."""
    sizes = shape.sizes
    assert isinstance(sizes, DecodeSizes)
    batch, frames, labels, wide = shape.batch, shape.frames, shape.labels, shape.wide
    slices = sizes.threads // wide
    rows = ceiling(min(shape.longest, frames), slices) * slices
    far = batch if rows > sizes.window(wide) else 0
    more, whole, double = count > 1, torch.int32, torch.float64
    states, nodes = (batch, frames, labels), (batch, count, 2 * frames)
    wanted: dict[str, Wanted] = {
        "far": (double, (far, rows, wide)),
        **dict.fromkeys(("lasts", "from"), (whole, states)),
        **dict.fromkeys(("alpha", "gamma"), (double, states if more else (0,))),
        "best_score": (double, (batch,)),
        "last_label": (whole, (batch,)),
        **dict.fromkeys(("chosen", "boundary"), (whole, nodes)),
        "other": (whole, nodes if more else (0,)),
        **dict.fromkeys(("worth", "behind"), (double, nodes if more else (0,))),
        **dict.fromkeys(("first", "roots", "used", "sizes"), (whole, (batch, count))),
        "scores": (double, (batch, count)),
        "segments": (whole, (batch, count, frames, 2)),
    }
    messages = ("lasts", "from", "alpha", "gamma", "best_score", "last_label")
    inputs = ("score", "transition", "duration", "start", "end", "lengths", "far")
    passed = (*inputs, *messages, frames, labels, shape.longest, rows, int(more))
    paths = ("chosen", "boundary", "other", "worth", "behind", "first", "roots", "used")
    outputs = ("scores", "segments", "sizes", frames, labels, shape.longest, count)
    walked = ("score", "transition", "duration", "end", "lengths", *messages, *paths, *outputs)
    passing = Launch("best_messages", (batch,), sizes.threads, passed)
    walking = Launch("best_paths", (batch,), sizes.threads, walked)
    return made("best", wanted, [passing, walking])


@functools.lru_cache(maxsize=64)
def plan_draws(shape: Shape, samples: int) -> Plan:
    """Walks back through the messages of `plan_messages`. To be bound besides: seed, one int64."""
    batch, frames, block = shape.batch, shape.frames, shape.sizes.block
    whole = torch.int32
    wanted: dict[str, Wanted] = {
        "segments": (whole, (batch, samples, frames, 2)),
        **dict.fromkeys(("sizes", "flagged"), (whole, (batch, samples))),
    }
    stride = 2 * shape.blocks * block  # rows of both directions
    model = ("onward", "table", "last", "lengths")
    messages = ("source", "arrived", "exponent", "z_value")
    numbers = (frames, shape.labels, shape.longest, samples, stride, block)
    outputs = ("segments", "sizes", "flagged")
    args = ("score", "tops", *model, *messages, "seed", *outputs, *numbers)
    walking = Launch("draws", (samples, batch), WARP, args)
    return made("draws", wanted, [walking], plan_messages(shape, 2))


def as_read(problem: Problem) -> Problem:
    """The inputs as the kernels read them: contiguous; scores in float32 or float64, all else in float64.

    Raises UsageError for what they do not take.
    """
    reason = native_cuda.supports(problem)
    if reason:
        raise UsageError(f"the CUDA kernels do not take {reason}", fix="backend='torch' or 'auto'")
    score, *rest = (value.detach().contiguous() for value in problem.floats())
    score = score if score.dtype in (torch.float32, torch.float64) else score.float()
    transition, duration, start, end = (value.double() for value in rest)
    return Problem(score, transition, duration, problem.lengths_B.contiguous(), start, end)


def fetched(plan: Plan, workspace: Tensor) -> Decoded:
    """The segments on the CPU, no more rows than the longest list has."""
    sizes_BN = plan.buffers["sizes"].view(workspace).cpu()
    segments_BNT2 = plan.buffers["segments"].view(workspace)[:, :, : int(sizes_BN.max())]
    return Decoded(segments_BNT2.cpu(), sizes_BN, backwards=True)


def machine_for(problem: Problem) -> Machine:
    """The kernels for this problem's device, type of scores and number of labels; compiled once.

    Raises LabError.
    """
    score_BTC = problem.score_BTC
    return compiled_machine(score_BTC.device, score_BTC.dtype, SIZES.padded(problem.shape[3]), SIZES)


@functools.cache
def compiled_machine(device: torch.device, dtype: torch.dtype, wide: int, sizes: DecodeSizes) -> Machine:
    path = cuda_driver.find_nvrtc()
    if path is None:
        reason = native_cuda.available()
        raise UsageError(f"the CUDA kernels cannot run here: {reason}", fix="backend='torch' or 'auto'")
    target = cuda_driver.architecture(cuda_driver.nvrtc(path), torch.cuda.get_device_capability(device))
    image = cuda_driver.compiled(path, SOURCE.read_text(), target, defines(dtype, wide, sizes))
    return Machine(device, image)


def defines(dtype: torch.dtype, wide: int, sizes: DecodeSizes) -> dict[str, object]:
    """The constants that the source takes from the compiler's command line."""
    numbers = {"THREADS": sizes.threads, "WINDOW": sizes.window(wide), "TILE": sizes.tile_bytes // (8 * wide)}
    return {"REAL": "double" if dtype == torch.float64 else "float", "CP": wide, **numbers}
