"""Best segmentations and draws on NVIDIA GPUs: decode.cu, compiled at run time.

A call waits for the device only for what it returns. Draws walk back through the messages of semicrf.cu
(cuda.py), in float64.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model.native import cuda as native_cuda
from lab.rooms.semicrf.model.native import cuda_driver
from lab.rooms.semicrf.model.native.cuda_driver import Machine
from lab.rooms.semicrf.model.native.cuda_plan import ceiling
from lab.rooms.semicrf.model.native.decode import Decoded
from lab.rooms.semicrf.model.problem import Problem

SOURCE = Path(__file__).with_name("decode.cu")
THREADS = 256
WINDOW_BYTES = 32768
"""Shared memory for the window of durations; longer ones use global memory."""
TILE_BYTES = 16384
"""Shared memory for the rows that a walk back goes through."""
WARP = 32


def best(problem: Problem, count: int) -> tuple[Tensor, Decoded]:
    """The `count` best segmentations of each sequence, best first; -> scores (B, N), -inf past the last."""
    model = as_read(problem)
    machine = machine_for(model)
    batch, frames, longest, labels = model.shape
    messages, ends = run_pass(model, machine, keep=count > 1)
    new = messages[0].new_empty
    nodes, worths = (batch, count, 2 * frames), (batch, count if count > 1 else 0, 2 * frames)
    walked = (
        *(new(nodes, dtype=torch.int32) for _ in range(2)),
        new(worths, dtype=torch.int32),
        *(new(worths, dtype=torch.float64) for _ in range(2)),
        *(new(batch, count, dtype=torch.int32) for _ in range(2)),
    )
    size_BN, score_BN = new(batch, count, dtype=torch.int32), new(batch, count, dtype=torch.float64)
    segments_BNT2, used_BN = new(batch, count, frames, 2, dtype=torch.int32), torch.empty_like(size_BN)
    inputs = (model.score_BTC, model.transition, model.duration_KC, model.end_C, model.lengths_B)
    outputs = (*walked, used_BN, score_BN, segments_BNT2, size_BN)
    sizes = (frames, labels, longest, count)
    machine.launch("best_paths", (batch,), THREADS, *inputs, *messages, *ends, *outputs, *sizes)
    return score_BN.cpu(), fetched(segments_BNT2, size_BN)


def run_pass(model: Problem, machine: Machine, keep: bool) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Best durations, labels before them, with `keep` alpha and gamma; the best scores and last labels."""
    batch, frames, longest, labels = model.shape
    wide, new = native_cuda.SIZES.padded(labels), model.score_BTC.new_empty
    slices = THREADS // wide
    rows = ceiling(min(longest, frames), slices) * slices
    far = new((batch if rows > window_rows(wide) else 0) * rows * wide, dtype=torch.float64)
    chosen = [new(batch, frames, labels, dtype=torch.int32) for _ in range(2)]
    kept = [new(batch if keep else 0, frames, labels, dtype=torch.float64) for _ in range(2)]
    ends = (new(batch, dtype=torch.float64), new(batch, dtype=torch.int32))
    parameters = (model.transition, model.duration_KC, model.start_C, model.end_C, model.lengths_B)
    sizes = (frames, labels, longest, rows, int(keep))
    machine.launch(
        "best_messages", (batch,), THREADS, model.score_BTC, *parameters, far, *chosen, *kept, *ends, *sizes
    )
    return (*chosen, *kept), ends


def draws(problem: Problem, samples: int, seed: int) -> tuple[Decoded, Tensor]:
    """Exact draws; and the sequences that had none because underflow may have lost something, (B,) bool."""
    model = replace(as_read(problem), score_BTC=problem.score_BTC.detach().double().contiguous())
    machine = machine_for(model)
    state = native_cuda.forward(model)
    assert isinstance(state, native_cuda.State)
    batch, frames, longest, labels = model.shape
    new, kept = model.score_BTC.new_empty, state.buffer
    segments_BNT2 = new(batch, samples, frames, 2, dtype=torch.int32)
    size_BN, flag_BN = (new(batch, samples, dtype=torch.int32) for _ in range(2))
    stride = 2 * ceiling(frames, native_cuda.SIZES.block) * native_cuda.SIZES.block  # rows of both directions
    seed_64 = seed % 2**64
    machine.launch(
        "draws",
        (samples, batch),
        WARP,
        *(model.score_BTC, *(kept(name) for name in ("tops", "onward", "table", "last"))),
        *(model.lengths_B, *(kept(name) for name in ("source", "arrived", "exponent", "z_value"))),
        *(segments_BNT2, size_BN, flag_BN),
        *(frames, labels, longest, samples, stride, native_cuda.SIZES.block),
        *(as_int(seed_64 % 2**32), as_int(seed_64 >> 32)),
    )
    lost_B = (flag_BN == 1).any(1)
    if state.again is not None:
        lost_B[state.again] = True
    return fetched(segments_BNT2, size_BN), lost_B.cpu()


def as_int(word: int) -> int:
    """The C int with these 32 bits."""
    return word - 2**32 if word >= 2**31 else word


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


def fetched(segments_BNT2: Tensor, size_BN: Tensor) -> Decoded:
    """On the CPU, no more than the longest of them has segments."""
    sizes = size_BN.cpu()
    return Decoded(segments_BNT2[:, :, : int(sizes.max())].cpu(), sizes, backwards=True)


def machine_for(problem: Problem) -> Machine:
    """The kernels for this problem's device, type of scores and number of labels; compiled once.

    Raises LabError.
    """
    device = problem.score_BTC.device
    return compiled_machine(device, problem.score_BTC.dtype, native_cuda.SIZES.padded(problem.shape[3]))


@functools.cache
def compiled_machine(device: torch.device, dtype: torch.dtype, wide: int) -> Machine:
    path = cuda_driver.find_nvrtc()
    if path is None:
        raise UsageError("the CUDA kernels cannot run here: no libnvrtc", fix="backend='torch' or 'auto'")
    target = cuda_driver.architecture(cuda_driver.nvrtc(path), torch.cuda.get_device_capability(device))
    return Machine(device, cuda_driver.compiled(path, SOURCE.read_text(), target, defines(dtype, wide)))


def defines(dtype: torch.dtype, wide: int) -> dict[str, object]:
    """The constants that the source takes from the compiler's command line."""
    real = "double" if dtype == torch.float64 else "float"
    tile = TILE_BYTES // (8 * wide)
    return {"REAL": real, "CP": wide, "THREADS": THREADS, "WINDOW": window_rows(wide), "TILE": tile}


def window_rows(wide: int) -> int:
    """Histories of a label that fit into shared memory, the same number for each slice."""
    slices = THREADS // wide
    return WINDOW_BYTES // (8 * wide) // slices * slices
