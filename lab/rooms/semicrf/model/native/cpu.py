"""The semi-CRF in C++ for tensors on the CPU: semicrf.cpp, compiled at first use, through ctypes.

The library links nothing but the C++ standard library and threads; its name depends on the compiler and on
this processor, for which it is made.

The recursion of the torch form (log_domain.py), tens of times faster. A sequence is one task of up to torch's
number of threads, and its bits depend on nothing but itself. Computes in float64 whatever the scores' dtype.
Takes `Problem.plain`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.errors import UsageError
from lab.native import Compiling
from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import Posteriors, Problem

log = logging.getLogger("lab.semicrf")
SOURCE = Path(__file__).with_name("semicrf.cpp")


class Announced(Compiling):
    """Says what takes so long."""

    def compile_to(self, path: Path, source: Path, compiler: list[str]) -> None:
        log.warning("compiling the semi-CRF's %s for this processor, once: some seconds", source.name)
        super().compile_to(path, source, compiler)


CPP = Announced(
    language="C++",
    variable="CXX",
    names=("c++", "g++", "clang++"),
    flags=(
        "-std=c++17",
        "-O3",
        "-march=native",
        "-ffp-contract=fast",
        "-fno-math-errno",
        "-shared",
        "-fPIC",
        "-pthread",
    ),
    instead="backend='torch' needs no compiler",
)
Word = int | Tensor | None
PADDED = 8
"""Rows of messages are padded to a multiple of this many labels."""
CPU = torch.device("cpu")
"""Of all that C++ writes: without it torch.set_default_device would place it elsewhere."""


@dataclass
class State:
    """What the pass from the left leaves, as the library's `Messages`; without `keep` only log Z."""

    problem: Problem
    batch: list[Word]
    messages: list[Tensor | None]
    log_z_B: Tensor


def forward(problem: Problem, keep: bool = True) -> State:
    """log Z, and with `keep` the messages: rows of labels padded to whole vectors."""
    assert problem.plain and problem.score_BTC.device.type == "cpu"
    batch, frames, _, labels = problem.shape
    shape = (3, batch, frames + 1, labels + -labels % PADDED)  # together, for the sake of large pages
    rows = torch.empty(shape, dtype=torch.float64, device=CPU) if keep else (None,) * 3
    log_z_B = torch.empty(batch, dtype=torch.float64, device=CPU)
    state = State(problem, batch_of(problem), [*rows], log_z_B)
    call(library().lab_semicrf_forward, state.batch, (*state.messages, log_z_B))
    return state


def backward(state: State) -> Posteriors:
    assert state.messages[0] is not None, "the messages were not kept"
    batch, frames, longest, labels = state.problem.shape
    new = state.log_z_B.new_empty
    label_BTC, starts_BTC, ends_BTC = (new(batch, frames, labels) for _ in range(3))
    counts = (label_BTC, starts_BTC, ends_BTC, new(batch, longest, labels), new(batch, labels, labels))
    call(library().lab_semicrf_backward, state.batch, (*state.messages, state.log_z_B), counts)
    error_B, frame_B = mass(label_BTC, state.problem.lengths_B, state.log_z_B)
    return Posteriors(state.log_z_B, *counts, error_B, frame_B)


def batch_of(problem: Problem) -> list[Word]:
    """The library's `Batch`, whose scores are float64."""
    score, *parameters = (value.detach().resolve_neg().double().contiguous() for value in problem.floats())
    inputs = [score, problem.lengths_B.contiguous(), *parameters]
    if not all(map(Tensor.data_ptr, inputs)):
        raise UsageError(
            "an input is a tensor without memory of its own (a DTensor or another wrapper)",
            fix="the plain tensor in it: to_local() or full_tensor() of a DTensor",
        )
    return [*problem.shape, torch.get_num_threads(), *inputs]


def best(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The best score of each sequence (B,), -inf where nothing is feasible, and (B, T) label + 1 where a
    segment ends with a frame, else 0.
    """
    batch, frames, _, _ = problem.shape
    score_B = torch.empty(batch, dtype=torch.float64, device=CPU)
    ends_BT = torch.zeros(batch, frames, dtype=torch.int32, device=CPU)
    call(library().lab_semicrf_best, batch_of(problem), (score_B, ends_BT))
    return score_B.numpy(), ends_BT.numpy()


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
    """Compiled and loaded, once per process. Raises MissingError."""
    return CPP.built(SOURCE)
