"""Best segmentations and draws in C++ for tensors on the CPU: decode.cpp, compiled at first use.

A sequence is one task of up to torch's number of threads. A thread holds 16 bytes per frame and
label, 24 for more than one best. Draws walk back through the messages of the linear forward pass (cpu.py).
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.semicrf.model.native import cpu as native_cpu
from lab.rooms.semicrf.model.native.build import SOURCE, built
from lab.rooms.semicrf.model.path import Path
from lab.rooms.semicrf.model.problem import Problem


@dataclass(frozen=True)
class Decoded:
    """`N` segmentations of each sequence, on the CPU: the first `size_BN` rows (end, label) of each are its
    segments, from the last one on where `backwards`.
    """

    segments_BNT2: Tensor
    size_BN: Tensor
    backwards: bool = False

    def paths(self) -> list[list[Path]]:
        """The segmentations of each sequence."""
        batch, count, frames, _ = self.segments_BNT2.shape
        pairs_NT = self.segments_BNT2.numpy().reshape(batch * count, 2 * frames).view(np.int64)
        sizes_N, frame_T = self.size_BN.flatten().numpy(), np.arange(frames)
        if self.backwards:
            pairs_NT, frame_T = pairs_NT[:, ::-1], frame_T[::-1]
        used = pairs_NT[frame_T < sizes_N[:, None]].view(np.int32).reshape(-1, 2)
        ends, labels, stops = used[:, 0], used[:, 1], sizes_N.cumsum().tolist()
        spans = zip([0, *stops], stops, strict=False)
        found = [Path(ends[begin:stop], labels[begin:stop]) for begin, stop in spans]
        return [found[b * count : (b + 1) * count] for b in range(batch)]


def best(problem: Problem, count: int) -> tuple[Tensor, Decoded]:
    """The `count` best segmentations of each sequence, best first; -> scores (B, N), -inf past the last."""
    batch = problem.shape[0]
    score_BN = torch.empty(batch, count, dtype=torch.float64)
    found = room_for(problem, count)
    arguments = [*begun(problem, count), score_BN, found.segments_BNT2, found.size_BN]
    call(library().lab_semicrf_best, arguments)
    return score_BN, found


def draws(problem: Problem, samples: int, seed: int) -> tuple[Decoded, Tensor]:
    """Exact draws; and the sequences that had none because underflow may have lost something, (B,) bool."""
    state = native_cpu.forward(problem, keep=True)
    found, flagged_B = room_for(problem, samples), state.flagged_B.clone()
    messages = (state.alpha_BTC, state.gamma_BTC, state.exponent_BT, state.z_B, flagged_B)
    seed_64 = (seed + 2**63) % 2**64 - 2**63
    arguments = [*begun(problem, samples), seed_64, *messages, found.segments_BNT2, found.size_BN]
    call(library().lab_semicrf_draw, arguments)
    return found, flagged_B.bool()


def room_for(problem: Problem, count: int) -> Decoded:
    batch, frames, _, _ = problem.shape
    sizes = torch.empty(batch, count, dtype=torch.int32)
    return Decoded(torch.empty(batch, count, frames, 2, dtype=torch.int32), sizes)


def begun(problem: Problem, count: int) -> list[Any]:
    """The arguments that both functions of the library begin with."""
    score, *rest = (value.detach().contiguous() for value in problem.floats())
    score = score if score.dtype == torch.float32 else score.double()
    tensors = (score, problem.lengths_B.contiguous(), *(value.double() for value in rest))
    return [*problem.shape, torch.get_num_threads(), int(score.dtype == torch.float32), count, *tensors]


def call(function: Any, arguments: list[Any]) -> None:
    """Tensors go as addresses. Raises MemoryError if the library could not allocate its messages."""
    given = [native_cpu.address(one) if isinstance(one, Tensor) else one for one in arguments]
    native_cpu.call(function, given)


@functools.cache
def library() -> ctypes.CDLL:
    """Compiled and loaded, once per process. Raises MissingError."""
    found = built(SOURCE.with_name("decode.cpp"))
    numbers, model = [ctypes.c_int64] * 7, [ctypes.c_void_p] * 6
    found.lab_semicrf_best.argtypes = [*numbers, *model, *[ctypes.c_void_p] * 3]
    found.lab_semicrf_draw.argtypes = [*numbers, *model, ctypes.c_int64, *[ctypes.c_void_p] * 7]
    for function in (found.lab_semicrf_best, found.lab_semicrf_draw):
        function.restype = ctypes.c_int
    return found
