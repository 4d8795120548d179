"""Best segmentations (decode.cpp) and draws (semicrf.cpp) in C++ for tensors on the CPU.

A sequence is one task of up to torch's number of threads. A thread holds 16 bytes per frame and
label, 24 for draws or more than one best. Draws walk back through the messages of the linear forward pass.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.semicrf.model.native import cpu as native_cpu
from lab.rooms.semicrf.model.native.build import SOURCE, built
from lab.rooms.semicrf.model.native.path import PathList
from lab.rooms.semicrf.model.problem import Problem


@dataclass(frozen=True)
class Decoded:
    """`N` segmentations of each sequence, on the CPU: the first `size_BN` rows (end, label) of each are its
    segments, from the last one on.
    """

    segments_BNT2: Tensor
    size_BN: Tensor
    pinned: bool = False
    """Whether the segments lie in pinned memory, for a GPU's copies."""
    ordinary: bool = True
    """Whether the form saw no number that is NaN, +inf or large, or did not look."""

    def paths(self) -> list[PathList]:
        """The segmentations of each sequence, in memory of their own: a copy, or the pinned memory as long as
        no more than MOST_HELD_BYTES of it are held. A copy can take as long as the decoding.
        """
        sizes_BN = self.size_BN.tolist()
        rows_BNT2 = self.segments_BNT2.numpy()
        if self.pinned and sum(one.nbytes for one in [*HELD.values()]) + rows_BNT2.nbytes <= MOST_HELD_BYTES:
            HELD[rows_BNT2.ctypes.data] = rows_BNT2
        else:
            rows_BNT2 = rows_BNT2[:, :, : max(map(max, sizes_BN))].copy()
        return list(map(PathList, rows_BNT2, sizes_BN))


HELD: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
"""Pinned memory of paths that somebody still has, by its address."""
MOST_HELD_BYTES = 2**26


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
    found, flagged_B = room_for(problem, samples), torch.empty(problem.shape[0], dtype=torch.uint8)
    seed_64 = (seed + 2**63) % 2**64 - 2**63
    arguments = [*begun(problem, samples), seed_64, flagged_B, found.segments_BNT2, found.size_BN]
    call(native_cpu.library().lab_semicrf_draw, arguments)
    return found, flagged_B.bool()


def room_for(problem: Problem, count: int) -> Decoded:
    batch, frames, _, _ = problem.shape
    sizes = torch.empty(batch, count, dtype=torch.int32)
    return Decoded(torch.empty(batch, count, frames, 2, dtype=torch.int32), sizes)


def begun(problem: Problem, count: int) -> list[Any]:
    """The arguments that `lab_semicrf_best` and `lab_semicrf_draw` begin with."""
    tensors = native_cpu.inputs_of(problem)
    return [*problem.shape, torch.get_num_threads(), int(tensors[0].dtype == torch.float32), count, *tensors]


def call(function: Any, arguments: list[Any]) -> None:
    """Tensors go as addresses. Raises MemoryError if the library could not allocate its messages."""
    given = [native_cpu.address(one) if isinstance(one, Tensor) else one for one in arguments]
    native_cpu.call(function, given)


@functools.cache
def library() -> ctypes.CDLL:
    """Compiled and loaded, once per process. Raises MissingError."""
    found = built(SOURCE.with_name("decode.cpp"))
    found.lab_semicrf_best.argtypes = [ctypes.c_int64] * 7 + [ctypes.c_void_p] * 9
    found.lab_semicrf_best.restype = ctypes.c_int
    return found
