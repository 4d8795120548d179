"""The linear-domain semi-CRF on NVIDIA GPUs without Triton (Pascal, torch 1.12): semicrf.cu, compiled at run
time.

The algorithm, the error bounds and the results are those of triton/linear.py and triton/backend.py; a block
of threads replaces a warp, and long durations need no stages. float64 scores are computed in float64, all
others in float32 with float64 offsets. One wait per call, for the flags. Flagged sequences go to
log_domain.py, and transitions that depend on the duration to the torch form (factorised/), on the same
device.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lab.errors import LabError, UsageError
from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.factorised import backend as torch_factorised
from lab.rooms.semicrf.model.factorised.messages import State as FactorisedState
from lab.rooms.semicrf.model.native import cuda_driver
from lab.rooms.semicrf.model.native.cuda_driver import Machine
from lab.rooms.semicrf.model.problem import Posteriors, Problem

SOURCE = Path(__file__).with_name("semicrf.cu")
N = 16
"""Frames in a block."""
THREADS = 256
TILE = 32
"""Frames in a tile of the label counts."""
COUNT_FRAMES = 64
"""Frames in a chunk of the transition counts."""
COUNT_BLOCKS = 16
"""Blocks in a chunk of the duration counts, more for long durations: the partial sums take (K / chunk) rows.
"""
NEAR_BLOCKS = 2
"""And where segments start and end in one block."""
TABLE_ROWS = 64
"""Rows of the duration table that one block of threads weighs."""
MAX_LABELS = 128
"""A thread keeps a column of the transition."""
MOST_BLOCKS = 65535
"""Of threads, in a grid's second and third dimension."""


@dataclass
class State:
    """What the passes leave on the device for the counts."""

    problem: Problem
    machine: Machine
    model: dict[str, Tensor]
    kept: dict[str, Tensor]
    log_z_B: Tensor
    again: Tensor | None


def available() -> str | None:
    """Why these kernels cannot run here, or None. Nothing is compiled yet."""
    if torch.version.hip:
        return "this is torch for ROCm, and the kernels are CUDA C"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    path = cuda_driver.find_nvrtc()
    if path is None:
        return "no libnvrtc beside torch or on the system (LAB_NVRTC can name one)"
    try:
        cuda_driver.driver()
        cuda_driver.architecture(cuda_driver.nvrtc(path), torch.cuda.get_device_capability())
    except LabError as error:
        return error.what
    return None


def supports(problem: Problem) -> str | None:
    """Why this problem cannot go through the kernels, or None."""
    batch, _, longest, labels = problem.shape
    if not problem.score_BTC.is_cuda:
        return "tensors on the CPU"
    if labels > MAX_LABELS:
        return f"{labels} labels, more than {MAX_LABELS}"
    if batch > MOST_BLOCKS or far_blocks(longest) > MOST_BLOCKS:
        return f"a batch of {batch} with durations to {longest}"
    return None


def forward(problem: Problem, keep: bool = True) -> State | FactorisedState:
    """log Z (B,); with `keep` both passes run side by side and leave what `backward` needs."""
    reason = supports(problem)
    if reason:
        raise UsageError(f"the CUDA kernels do not take {reason}", fix="backend='torch' or 'auto'")
    if problem.by_duration:
        return torch_factorised.forward(problem)
    inputs = as_read(problem)
    machine = machine_for(inputs)
    model = weigh(inputs, machine)
    directions = 2 if keep else 1
    kept = run_messages(inputs, machine, model, directions)
    log_z_B = kept["log_z"][::directions].clone()
    again = flagged(inputs, machine, kept, directions)
    if again is not None:
        log_z_B[again] = log_domain.forward(problem.rows(again)).log_z_B
    return State(inputs, machine, model, kept, log_z_B, again)


def backward(state: State | FactorisedState) -> Posteriors:
    """All expected counts, parallel over time; flagged sequences from the log domain."""
    if isinstance(state, FactorisedState):
        return torch_factorised.backward(state)
    if "source" not in state.kept:
        raise UsageError("the messages were not kept", fix="forward(problem, keep=True)")
    label_BTC, starts_BTC, ends_BTC, error_B, frame_B = count_labels(state)
    counts = (label_BTC, starts_BTC, ends_BTC, count_durations(state), count_transitions(state))
    found = Posteriors(state.log_z_B, *counts, error_B, frame_B)
    if state.again is not None:
        found.replace_rows(state.again, log_domain.posteriors(state.problem.rows(state.again)))
    return found


def machine_for(problem: Problem) -> Machine:
    """The kernels for this problem's device, number type and number of labels; compiled once.

    Raises LabError.
    """
    device = problem.score_BTC.device
    return compiled_machine(device, problem.score_BTC.dtype, padded_labels(problem.shape[3]))


@functools.cache
def compiled_machine(device: torch.device, dtype: torch.dtype, wide: int) -> Machine:
    path = cuda_driver.find_nvrtc()
    if path is None:
        raise UsageError(f"the CUDA kernels cannot run here: {available()}", fix="backend='torch' or 'auto'")
    target = cuda_driver.architecture(cuda_driver.nvrtc(path), torch.cuda.get_device_capability(device))
    return Machine(device, cuda_driver.compiled(path, SOURCE.read_text(), target, defines(dtype, wide)))


def defines(dtype: torch.dtype, wide: int) -> dict[str, object]:
    """The constants that the source takes from the compiler's command line."""
    double = dtype == torch.float64
    real = "double" if double else "float"
    return {"REAL": real, "DOUBLE": int(double), "CP": wide, "N": N, "THREADS": THREADS, "TILE": TILE}


def padded_labels(labels: int) -> int:
    """One thread per label, in whole warps."""
    return next(wide for wide in (32, 64, 128) if labels <= wide)


def far_blocks(longest: int) -> int:
    """How many blocks back a segment of K frames can start."""
    return (longest - 2) // N + 1 if longest >= 2 else 0


def ceiling(amount: int, each: int) -> int:
    return -(-amount // each)


def as_read(problem: Problem) -> Problem:
    """The inputs as the kernels read them: contiguous, and all in the scores' number type."""
    dtype = torch.float64 if problem.score_BTC.dtype == torch.float64 else torch.float32
    floats = (value.detach().to(dtype).contiguous() for value in problem.floats())
    score_BTC, transition_CC, duration_KC, start_C, end_C = floats
    return Problem(score_BTC, transition_CC, duration_KC, problem.lengths_B.contiguous(), start_C, end_C)


def weigh(problem: Problem, machine: Machine, saturate: bool = False) -> dict[str, Tensor]:
    """The model's weights on the device, by the names of `prepare`'s arguments; with `saturate` 0 and 1."""
    _, _, longest, labels = problem.shape
    wide, new = padded_labels(labels), problem.score_BTC.new_empty
    rows = (far_blocks(longest) + 2) * N
    programs = ceiling(rows, TABLE_ROWS)
    model = {
        "onward": new(2, wide, wide),
        "table": new(rows, wide),
        "first": new(wide),
        "last": new(wide),
        "slack": new(programs),
        "shift": new(1, dtype=torch.float64),
    }
    parameters = (problem.transition, problem.duration_KC, problem.start_C, problem.end_C)
    sizes = (labels, longest, rows, TABLE_ROWS, int(saturate))
    machine.launch("prepare", (programs,), THREADS, *parameters, *model.values(), *sizes)
    return model


def run_messages(
    problem: Problem, machine: Machine, model: dict[str, Tensor], directions: int, saturate: bool = False
) -> dict[str, Tensor]:
    """The passes: what they leave, by name. With one direction only log Z and flags."""
    batch, frames, longest, labels = problem.shape
    wide, new = padded_labels(labels), problem.score_BTC.new_empty
    blocks, lanes = ceiling(frames, N), batch * directions
    rows, keep = lanes * blocks * N, directions == 2
    tops = new(batch, frames)
    machine.launch(
        "frame_tops", (ceiling(frames, THREADS), batch), THREADS, problem.score_BTC, tops, frames, labels
    )
    messages = {"gathered": new(rows, wide), "product": new(lanes * blocks, wide)}
    if keep:
        messages.update(
            source=new(rows, wide), arrived=new(rows, wide), exponent=new(rows, dtype=torch.int32)
        )
    results = {
        "z_value": new(lanes, dtype=torch.float64),
        "z_power": new(lanes, dtype=torch.int32),
        "log_z": new(lanes, dtype=torch.float64),
        "flags": new(lanes, dtype=torch.int32),
        "count": new(lanes, dtype=torch.int32),
    }
    places = [messages.get(name) for name in ("gathered", "product", "source", "arrived", "exponent")]
    machine.launch(
        "messages",
        (batch, directions),
        THREADS,
        problem.score_BTC,
        tops,
        *model.values(),
        problem.lengths_B,
        *places,
        *results.values(),
        frames,
        labels,
        far_blocks(longest),
        blocks,
        len(model["slack"]),
        int(keep),
        int(saturate),
    )
    return {"tops": tops, **messages, **results}


def flagged(problem: Problem, machine: Machine, kept: dict[str, Tensor], directions: int) -> Tensor | None:
    """Sequences to recompute, or None. A message of zero is right only where the model forbids it."""
    flags = kept["flags"].cpu()
    if not bool(flags.any()):
        return None
    bad = (flags & 1) > 0
    if bool((flags & 2).any()):
        reach = run_messages(
            problem, machine, weigh(problem, machine, saturate=True), directions, saturate=True
        )
        bad |= reach["count"].cpu() != kept["count"].cpu()
    rows = bad.view(-1, directions).any(1).nonzero()[:, 0]
    return rows.to(kept["flags"].device) if len(rows) else None


def both(state: State, *names: str) -> tuple[Tensor, ...]:
    """The arguments that all counts begin with: some messages, their exponents, z and the lengths."""
    kept = state.kept
    z = (kept["z_value"], kept["z_power"], state.problem.lengths_B)
    return (*(kept[name] for name in names), kept["exponent"], *z)


def count_labels(state: State) -> tuple[Tensor, ...]:
    """Labels, starts and ends (B, T, C); the worst error of a frame's mass (B,) and the first frame with it
    (B,).
    """
    batch, frames, _, labels = state.problem.shape
    wide, new = padded_labels(labels), state.problem.score_BTC.new_empty
    blocks, tiles = ceiling(frames, N), ceiling(frames, TILE)
    messages = both(state, "source", "arrived")
    totals = new(batch, tiles, wide, dtype=torch.float64)
    before = torch.empty_like(totals)
    state.machine.launch("label_totals", (tiles, batch), wide, *messages, totals, frames, blocks)
    state.machine.launch("label_sums", (batch,), wide, totals, before, tiles)
    outputs = [new(batch, frames, labels) for _ in range(3)]
    error_BX, frame_BX = new(batch, tiles, dtype=torch.float64), new(batch, tiles, dtype=torch.int64)
    state.machine.launch(
        "label_counts",
        (tiles, batch),
        wide,
        *messages,
        before,
        *outputs,
        error_BX,
        frame_BX,
        frames,
        labels,
        blocks,
    )
    worst = error_BX.max(1)
    first = (error_BX == worst.values[:, None]).to(torch.int32).argmax(1, keepdim=True)
    return (*outputs, worst.values, frame_BX.gather(1, first)[:, 0])


def count_durations(state: State) -> Tensor:
    """(B, K, C) float64."""
    batch, frames, longest, labels = state.problem.shape
    wide, new = padded_labels(labels), state.problem.score_BTC.new_empty
    blocks, far = ceiling(frames, N), far_blocks(longest)
    near_chunks = ceiling(blocks, NEAR_BLOCKS)
    near = new(batch, near_chunks, N, wide)
    scores = (state.problem.score_BTC, state.kept["tops"])
    sizes = (frames, labels, blocks, NEAR_BLOCKS)
    state.machine.launch(
        "near_durations", (near_chunks, batch), wide, *scores, *both(state, "source"), near, *sizes
    )
    each = max(COUNT_BLOCKS, far // 2)  # by K alone: padding must not regroup a sum
    chunks = ceiling(blocks, each)
    apart = new(batch, chunks, far, 2 * N, wide)
    if far:
        rows = both(state, "gathered", "product")
        state.machine.launch("far_durations", (chunks, batch, far), wide, *rows, apart, frames, blocks, each)
    out = new(batch, longest, labels, dtype=torch.float64)
    counts = (labels, longest, near_chunks, chunks, far)
    state.machine.launch(
        "sum_durations", (longest, batch), wide, near, apart, state.model["table"], out, *counts
    )
    return out


def count_transitions(state: State) -> Tensor:
    """(B, C, C) float64."""
    batch, frames, _, labels = state.problem.shape
    wide, new = padded_labels(labels), state.problem.score_BTC.new_empty
    chunks = ceiling(frames, COUNT_FRAMES)
    partial = new(batch, chunks, wide, wide)
    messages, sizes = both(state, "arrived"), (frames, ceiling(frames, N), COUNT_FRAMES)
    state.machine.launch("transitions", (chunks, batch), THREADS, *messages, partial, *sizes)
    out = new(batch, labels, labels, dtype=torch.float64)
    state.machine.launch(
        "sum_transitions", (labels, batch), wide, partial, state.model["onward"], out, labels, chunks
    )
    return out
