"""Best segmentations (decode.cpp) and draws (semicrf.cpp) in C++ for tensors on the CPU.

A sequence is one task of up to torch's number of threads. A thread holds 16 bytes per frame and
label, 24 for draws or more than one best. Draws walk back through the messages of the linear forward pass.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import torch
from torch import Tensor

from lab.rooms.semicrf.model.native import cpu as native_cpu
from lab.rooms.semicrf.model.native.build import SOURCE, built
from lab.rooms.semicrf.model.problem import Problem


def best(problem: Problem, count: int) -> tuple[Tensor, np.ndarray]:
    """The `count` best segmentations of each sequence, best first: scores (B, N), -inf past the last, and
    (B, N, T) label + 1 where a segment ends with a frame, else 0.
    """
    score_BN = torch.empty(problem.shape[0], count, dtype=torch.float64, device=native_cpu.CPU)
    ends_BNT = no_ends(problem, count)
    native_cpu.call(library().lab_semicrf_best, native_cpu.batch_of(problem), (count, score_BN, ends_BNT))
    return score_BN, ends_BNT.numpy()


def draws(problem: Problem, samples: int, seed: int) -> tuple[np.ndarray, Tensor]:
    """Exact draws, (B, N, T) as in `best`; and the sequences that had none because underflow may have lost
    something, (B,) bool.
    """
    flagged_B = torch.empty(problem.shape[0], dtype=torch.uint8, device=native_cpu.CPU)
    ends_BNT = no_ends(problem, samples)
    drawn = (samples, seed, flagged_B, ends_BNT)
    native_cpu.call(native_cpu.library().lab_semicrf_draw, native_cpu.batch_of(problem), drawn)
    return ends_BNT.numpy(), flagged_B.bool()


def no_ends(problem: Problem, count: int) -> Tensor:
    batch, frames, _, _ = problem.shape
    return torch.zeros(batch, count, frames, dtype=torch.int32, device=native_cpu.CPU)


@functools.cache
def library() -> ctypes.CDLL:
    """Compiled and loaded, once per process. Raises MissingError."""
    return built(SOURCE.with_name("decode.cpp"))
