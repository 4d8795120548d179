"""The linear-domain semi-CRF in C++ for tensors on the CPU: semicrf.cpp, compiled at first use, through
ctypes.

The same numbers as the torch form (log_domain.py), far faster. A sequence is one task of up to
torch's number of threads, and its bits depend on nothing but itself. Computes in float64 whatever the scores'
dtype. What underflow may have lost is bounded per label on both passes; such sequences are recomputed by
log_domain.py. Takes `Problem.plain`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import beyond
from lab.rooms.semicrf.model.native.build import built
from lab.rooms.semicrf.model.problem import Posteriors, Problem

Word = int | Tensor | None
PADDED = 8
"""Rows of messages are padded to a multiple of this many labels."""
CPU = torch.device("cpu")
"""Of all that C++ writes: without it torch.set_default_device would place it elsewhere."""


@dataclass
class State:
    """What the pass from the left leaves: rows t in units of 2^exponent_BT[t], labels padded to whole
    vectors.

    All have T+1 rows, one per boundary; nothing is written beyond a sequence's end. Without `keep` there are
    none.
    """

    problem: Problem
    batch: list[Word]
    alpha_BTC: Tensor | None
    gamma_BTC: Tensor | None
    exponent_BT: Tensor | None
    z_B: Tensor
    log_z_B: Tensor
    flagged_B: Tensor

    def messages(self, flagged_B: Tensor) -> tuple[Tensor | None, ...]:
        """As the library's `Messages`."""
        return self.alpha_BTC, self.gamma_BTC, self.exponent_BT, self.z_B, self.log_z_B, flagged_B


def forward(problem: Problem, keep: bool = True) -> State:
    """log Z, and with `keep` the left messages; flagged sequences get log Z from the log domain."""
    assert problem.plain and problem.score_BTC.device.type == "cpu"
    batch, frames, _, labels = problem.shape
    wide, new = labels + -labels % PADDED, functools.partial(torch.empty, device=CPU)
    # Together, for the sake of large pages.
    rows_2BTC = new(2 if keep else 0, batch, frames + 1, wide, dtype=torch.float64)
    alpha, gamma = rows_2BTC if keep else (None, None)
    exponent = new(batch, frames + 1, dtype=torch.int32) if keep else None
    z_B, log_z_B = (new(batch, dtype=torch.float64) for _ in range(2))
    flagged_B = new(batch, dtype=torch.uint8)
    state = State(problem, batch_of(problem), alpha, gamma, exponent, z_B, log_z_B, flagged_B)
    call(library().lab_semicrf_forward, state.batch, state.messages(state.flagged_B))
    if bool(state.flagged_B.any()):
        again = state.flagged_B.nonzero()[:, 0]
        state.log_z_B[again] = log_domain.forward(problem.rows(again)).log_z_B
    return state


def backward(state: State) -> Posteriors:
    """Every expected count by one pass from the right; flagged sequences from the log domain."""
    posteriors, flagged_B = counted(state)
    if bool(flagged_B.any()):
        counts = log_domain.posteriors(state.problem.rows(flagged_B))
        posteriors.replace_rows(flagged_B, counts)
        apart_B = beyond(posteriors.log_z_B[flagged_B], counts.log_z_B, torch.float64)
        posteriors.mass_error_B[flagged_B] = torch.maximum(counts.mass_error_B, apart_B)
    return posteriors


def batch_of(problem: Problem) -> list[Word]:
    """As the library's `Batch`: scores in float32 or float64, and the rest in float64."""
    score, *parameters = (value.detach().resolve_neg().contiguous() for value in problem.floats())
    single = score.dtype == torch.float32
    score = score if single else score.double()
    inputs = [score, problem.lengths_B.contiguous(), *(value.double() for value in parameters)]
    if not all(map(Tensor.data_ptr, inputs)):
        raise UsageError(
            "an input is a tensor without memory of its own (a DTensor or another wrapper)",
            fix="the plain tensor in it: to_local() or full_tensor() of a DTensor",
        )
    return [*problem.shape, torch.get_num_threads(), int(single), *inputs]


def counted(state: State) -> tuple[Posteriors, Tensor]:
    """The counts as the library gives them, and the sequences to recompute, (B,) bool."""
    assert state.alpha_BTC is not None, "the messages were not kept"
    batch, frames, longest, labels = state.problem.shape
    new = state.z_B.new_empty
    per_frame, per_duration = new(3, batch, frames, labels).unbind(), new(batch, longest, labels)
    mass = (new(batch), new(batch, dtype=torch.int64))
    outputs = (*per_frame, per_duration, new(batch, labels, labels), *mass)
    flagged_B = state.flagged_B.clone()
    call(library().lab_semicrf_backward, state.batch, state.messages(flagged_B), outputs)
    return Posteriors(state.log_z_B, *outputs), flagged_B.bool()


def call(function: Any, *groups: Sequence[Word]) -> None:
    """A function of structs of numbers, which go as 64 bits, and tensors, which go as addresses. Raises
    MemoryError if the library could not allocate its messages.
    """

    def struct(group: Sequence[Word]) -> Any:
        words = [w if isinstance(w, int) else 0 if w is None else w.data_ptr() for w in group]
        return (ctypes.c_int64 * len(words))(*words)

    if function(*map(struct, groups)):
        raise MemoryError("the C++ form of the semi-CRF could not allocate its messages")


@functools.cache
def library() -> ctypes.CDLL:
    """Compiled and loaded, once per process.

    Raises MissingError: no compiler, no folder to keep it in, or it does not compile.
    """
    return built()
