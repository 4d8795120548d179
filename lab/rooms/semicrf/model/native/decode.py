"""Best segmentations (decode.cpp) and draws (semicrf.cpp) in C++ for tensors on the CPU.

A sequence is one task of up to torch's number of threads. A thread holds 16 bytes per frame and
label, 24 for draws or more than one best. Draws walk back through the messages of the linear forward pass.
"""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from lab.rooms.semicrf.model.native import cpu as native_cpu
from lab.rooms.semicrf.model.native.build import SOURCE, built
from lab.rooms.semicrf.model.native.path import Decoded
from lab.rooms.semicrf.model.problem import Problem


def best(problem: Problem, count: int) -> tuple[Tensor, Decoded]:
    """The `count` best segmentations of each sequence, best first; -> scores (B, N), -inf past the last."""
    score_BN = torch.empty(problem.shape[0], count, dtype=torch.float64, device=native_cpu.CPU)
    marks_BNT = marks_for(problem, count)
    native_cpu.call(library().lab_semicrf_best, native_cpu.batch_of(problem), (count, score_BN, marks_BNT))
    return score_BN, Decoded(marks_BNT.numpy())


def draws(problem: Problem, samples: int, seed: int) -> tuple[Decoded, Tensor]:
    """Exact draws; and the sequences that had none because underflow may have lost something, (B,) bool."""
    flagged_B = torch.empty(problem.shape[0], dtype=torch.uint8, device=native_cpu.CPU)
    marks_BNT = marks_for(problem, samples)
    drawn = (samples, seed % 2**64, flagged_B, marks_BNT)
    native_cpu.call(native_cpu.library().lab_semicrf_draw, native_cpu.batch_of(problem), drawn)
    return Decoded(marks_BNT.numpy()), flagged_B.bool()


def marks_for(problem: Problem, count: int) -> Tensor:
    batch, frames, _, _ = problem.shape
    return torch.zeros(batch, count, frames, dtype=torch.int32, device=native_cpu.CPU)


@functools.cache
def library() -> ctypes.CDLL:
    """Compiled and loaded, once per process. Raises MissingError."""
    return built(SOURCE.with_name("decode.cpp"))
