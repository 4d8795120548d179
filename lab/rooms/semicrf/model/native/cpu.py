"""The linear-domain semi-CRF in C++ for tensors on the CPU: semicrf.cpp, compiled at first use, through
ctypes.

The same numbers as the torch form (factorised/), 20 to 60 times as fast. A sequence is one task of up to
torch's number of threads, and its bits depend on nothing but itself. Computes in float64 whatever the scores'
dtype. What underflow may have lost is bounded per label on both passes; such sequences are recomputed by
log_domain.py. Takes `Problem.plain`.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.factorised.recount import recounted
from lab.rooms.semicrf.model.native.build import built
from lab.rooms.semicrf.model.problem import Posteriors, Problem

PADDED = 8
"""Rows of messages are padded to a multiple of this many labels."""


@dataclass
class State:
    """What the pass from the left leaves: rows t in units of 2^exponent_BT[t], labels padded to whole
    vectors.

    All have T+1 rows, one per boundary; nothing is written beyond a sequence's end. Without `keep` there are
    none.
    """

    problem: Problem
    inputs: tuple[Tensor, ...]
    alpha_BTC: Tensor | None
    gamma_BTC: Tensor | None
    exponent_BT: Tensor | None
    z_B: Tensor
    log_z_B: Tensor
    flagged_B: Tensor

    def arguments(self, flagged_B: Tensor) -> list[Any]:
        """The arguments that both functions of the library begin with."""
        rows = (self.alpha_BTC, self.gamma_BTC, self.exponent_BT)
        tensors = (*self.inputs, *rows, self.z_B, self.log_z_B, flagged_B)
        single = self.inputs[0].dtype == torch.float32
        return [*self.problem.shape, torch.get_num_threads(), single, *map(address, tensors)]


def forward(problem: Problem, keep: bool = True) -> State:
    """log Z, and with `keep` the left messages; flagged sequences get log Z from the log domain."""
    reason = supports(problem)
    if reason:
        raise UsageError(f"the C++ form does not take {reason}", fix="backend='torch' or 'auto'")
    state = emptied(problem, keep)
    call(library().lab_semicrf_forward, state.arguments(state.flagged_B))
    if bool(state.flagged_B.any()):
        again = state.flagged_B.nonzero()[:, 0]
        state.log_z_B[again] = log_domain.forward(problem.rows(again)).log_z_B
    return state


def backward(state: State) -> Posteriors:
    """Every expected count by one pass from the right; flagged sequences from the log domain."""
    found, redo_B = counted(state)
    return recounted(found, state.problem, redo_B)


def supports(problem: Problem) -> str | None:
    """Why this problem cannot go through the library, or None."""
    if not problem.plain:
        return "more than a (C, C) transition"
    return None if problem.score_BTC.device.type == "cpu" else f"tensors on {problem.score_BTC.device}"


def emptied(problem: Problem, keep: bool) -> State:
    """The inputs as the library reads them, and memory for what it writes."""
    batch, frames, _, labels = problem.shape
    wide, inputs = labels + -labels % PADDED, inputs_of(problem)
    # Together, for the sake of large pages.
    rows_2BTC = torch.empty(2 if keep else 0, batch, frames + 1, wide, dtype=torch.float64)
    alpha, gamma = rows_2BTC if keep else (None, None)
    exponent = torch.empty(batch, frames + 1, dtype=torch.int32) if keep else None
    z_B, log_z_B = (torch.empty(batch, dtype=torch.float64) for _ in range(2))
    return State(problem, inputs, alpha, gamma, exponent, z_B, log_z_B, torch.empty(batch, dtype=torch.uint8))


def inputs_of(problem: Problem) -> tuple[Tensor, ...]:
    """Scores in float32 or float64, lengths, and the rest in float64."""
    score, *rest = (value.detach().contiguous() for value in problem.floats())
    score = score if score.dtype == torch.float32 else score.double()
    return (score, problem.lengths_B.contiguous(), *(value.double() for value in rest))


def counted(state: State) -> tuple[Posteriors, Tensor]:
    """The counts as the library gives them, and the sequences to recompute, (B,) bool."""
    if state.alpha_BTC is None:
        raise UsageError("the messages were not kept", fix="forward(problem, keep=True)")
    batch, frames, longest, labels = state.problem.shape
    new = state.z_B.new_empty
    per_frame, per_duration = new(3, batch, frames, labels).unbind(), new(batch, longest, labels)
    mass = (new(batch), torch.empty(batch, dtype=torch.int64))
    outputs = (*per_frame, per_duration, new(batch, labels, labels), *mass)
    flagged_B = state.flagged_B.clone()
    call(library().lab_semicrf_backward, [*state.arguments(flagged_B), *map(address, outputs)])
    return Posteriors(state.log_z_B, *outputs), flagged_B.bool()


def imbalance(problem: Problem, found: Posteriors) -> Tensor:
    """The worst error of what each sequence's counts must add up to, (B,), in one pass over them."""
    batch, frames, longest, labels = problem.shape
    worst_B = torch.empty(batch, dtype=torch.float64)
    counts = (found.label_BTC, found.starts_BTC, found.ends_BTC, found.duration_BKC, found.transition)
    tensors = (problem.lengths_B, *counts, found.mass_error_B)
    kept = [tensor.contiguous() for tensor in tensors]
    sizes = (batch, frames, longest, labels, torch.get_num_threads())
    call(library().lab_semicrf_audit, [*sizes, *map(address, (*kept, worst_B))])
    return worst_B


def address(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def call(function: Any, arguments: list[Any]) -> None:
    """Raises MemoryError if the library could not allocate its messages."""
    if function(*arguments):
        raise MemoryError("the C++ form of the semi-CRF could not allocate its messages")


@functools.cache
def library() -> ctypes.CDLL:
    """Compiled and loaded, once per process.

    Raises MissingError: no compiler, no folder to keep it in, or it does not compile.
    """
    return typed(built())


def typed(found: ctypes.CDLL) -> ctypes.CDLL:
    numbers, pointer = [ctypes.c_int64] * 6, ctypes.c_void_p
    for name, more in (
        ("forward", [pointer] * 12),
        ("backward", [pointer] * 19),
        ("draw", [ctypes.c_int64, *[pointer] * 6, ctypes.c_int64, *[pointer] * 3]),
    ):
        function = getattr(found, f"lab_semicrf_{name}")
        function.argtypes, function.restype = [*numbers, *more], ctypes.c_int
    found.lab_semicrf_audit.argtypes = [*numbers[:5], *[pointer] * 8]
    found.lab_semicrf_audit.restype = ctypes.c_int
    return found
