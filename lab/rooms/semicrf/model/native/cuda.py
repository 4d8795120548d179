"""The linear-domain semi-CRF on NVIDIA GPUs: semicrf.cu, compiled at run time by NVRTC.

float64 scores are computed in float64, all others in float32 with float64 offsets. A call waits for the
flags of the passes; where a gradient will be wanted the counts are queued before that wait, so that the GPU
works on while the host comes round to the backward pass. Flagged sequences go to log_domain.py. Takes
`Problem.plain`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.errors import LabError, UsageError
from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import imbalance
from lab.rooms.semicrf.model.native import cuda_driver
from lab.rooms.semicrf.model.native.cuda_driver import Machine
from lab.rooms.semicrf.model.native.cuda_plan import (
    SOURCE,
    Plan,
    Shape,
    Sizes,
    plan_counts,
    plan_gradients,
    plan_messages,
    plan_viterbi,
    shape_of,
)
from lab.rooms.semicrf.model.problem import (
    MAX_LABELS,
    Posteriors,
    Problem,
    admitted,
    highest_forbidden,
    levelled,
    reject_lengths,
)

SIZES, CROWDED = Sizes(), Sizes(threads=128)
MOST_BLOCKS = 65535
"""Of threads, in a grid's second and third dimension."""


@dataclass
class State:
    """What the passes leave on the device for the counts."""

    problem: Problem
    machine: Machine
    shape: Shape
    bound: dict[str, Tensor]
    """The inputs and log Z by the names of the kernels' arguments, and till the counts are made the workspace
    of the messages."""
    keeps: bool
    log_z_B: Tensor
    again: Tensor | None
    counted: Posteriors | None = None
    settled: bool = False
    """Whether `counted` has the counts of the sequences that were done elsewhere."""

    def buffer(self, name: str) -> Tensor:
        """A buffer of the passes, by its name in the plan."""
        plan = plan_messages(self.shape, 2 if self.keeps else 1)
        return plan.buffers[name].view(self.bound[plan.workspace])


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
        return error.problem
    return None


def supports(problem: Problem) -> str | None:
    """Why this problem cannot go through the kernels, or None."""
    batch, _, longest, labels = problem.shape
    if not problem.plain:
        return "terms of single segments"
    if not problem.score_BTC.is_cuda:
        return "tensors on the CPU"
    if labels > MAX_LABELS:
        return f"{labels} labels, more than {MAX_LABELS}"
    if batch > MOST_BLOCKS or SIZES.far_blocks(longest) > MOST_BLOCKS:
        return f"a batch of {batch} with durations to {longest}"
    return None


def forward(problem: Problem, keep: bool = True, count: bool = True) -> State:
    """log Z (B,); with `keep` both passes run side by side and leave what `backward` needs, and with `count`
    the counts are queued behind them and the messages given up.
    """
    inputs = as_read(problem)
    sizes = sizes_for(inputs, 2 if keep else 1)
    shape, bound = shape_of(*problem.shape, inputs.score_BTC.dtype, sizes), bound_inputs(inputs)
    state = State(inputs, machine_for(inputs, sizes), shape, bound, keep, bound["log_z"], None)
    run_messages(state)
    # The copy of the flags is queued before the counts, which then run while the host waits for it.
    flags = state.machine.fetched(state.buffer("flags"))
    if keep and count:
        run_counts(state)
    state.again = flagged(state, flags.numpy())
    if state.again is not None:
        recompute(state, state.again)
    if state.counted is not None:
        del state.bound["messages"]
    return state


def recompute(state: State, again: Tensor) -> None:
    """log Z of sequences that were flagged, in the log domain. Raises UsageError for a length out of range,
    and BadDataError for numbers that are refused.
    """
    reject_lengths(state.problem.lengths_B, state.shape.frames)
    state.log_z_B[again] = log_domain.forward(admitted(state.problem.rows(again))).log_z_B


def backward(state: State) -> Posteriors:
    """All expected counts, parallel over time; flagged sequences from the log domain."""
    posteriors = state.counted or run_counts(state)
    if state.again is not None and not state.settled:
        rows = admitted(state.problem.rows(state.again))
        redone = log_domain.posteriors(rows)
        posteriors.replace_rows(state.again, redone)
        assert posteriors.imbalance_B is not None
        balance_B = torch.where(torch.isfinite(redone.log_z_B), imbalance(rows, redone), 0.0)
        posteriors.imbalance_B[state.again] = balance_B
        posteriors = state.counted = replace(posteriors, fetched=None)
        state.settled = True
    return posteriors


def differentiate(state: State, grad_B: Tensor) -> tuple[Posteriors, Gradients | None]:
    """The counts, and beside them the gradients of a loss in the order of `Problem.floats`, if no count is
    computed elsewhere; `grad_B` is the loss's gradient by log Z. What the audit finds is not looked at.
    """
    posteriors = backward(state)
    if state.again is not None:
        return posteriors, None
    gradients = [torch.empty_like(value) for value in state.problem.floats()]
    by_log_z = grad_B if grad_B.dtype == torch.float64 else grad_B.to(torch.float64)
    by_log_z = by_log_z if by_log_z.stride(0) in (0, 1) else by_log_z.contiguous()
    counts = dict(zip(COUNTED, attrgetter(*COUNTED.values())(posteriors), strict=True))
    named = dict(zip(GRADIENTS, gradients, strict=True))
    plan = plan_gradients(state.shape, by_log_z.stride(0))
    state.machine.run(plan, **state.bound, **counts, by_log_z=by_log_z, **named)
    return posteriors, gradients


Gradients = list[Tensor]
GRADIENTS = ("by_score", "by_transition", "by_duration", "by_start", "by_end")
"""The kernels' names of the gradients, in the order of `Problem.floats`."""
COUNTED = {
    "label": "label_BTC",
    "starts_out": "starts_BTC",
    "ends_out": "ends_BTC",
    "duration_out": "duration_BKC",
    "transition_out": "transition",
    "mass_error": "mass_error_B",
    "mass_frame": "mass_frame_B",
    "imbalance": "imbalance_B",
}
"""Fields of `Posteriors` by the kernels' names."""


def run_counts(state: State) -> Posteriors:
    """Queue the counts; flagged sequences have no use for theirs."""
    if not state.keeps:
        raise UsageError("the messages were not kept", fix="forward(problem, keep=True)")
    outputs = emptied_counts(state)
    plan = plan_counts(state.shape)
    state.machine.run(plan, **state.bound, **outputs, counts=workspace_of(plan, state.log_z_B.device))
    fetched = state.machine.fetched(outputs["imbalance"])
    named = {COUNTED[name]: value for name, value in outputs.items()}
    state.counted = Posteriors(state.log_z_B, **named, fetched=fetched)
    return state.counted


def sizes_for(problem: Problem, directions: int) -> Sizes:
    """Half the threads where all lanes then run at once and else would not: the same bits either way."""
    lanes, wide = problem.shape[0] * directions, SIZES.padded(problem.shape[3])
    return CROWDED if lanes > at_once(problem.score_BTC.device) and CROWDED.threads >= 2 * wide else SIZES


@functools.cache
def at_once(device: torch.device) -> int:
    """How many lanes a device runs at once with the usual number of threads: their registers fill a
    multiprocessor by twos.
    """
    if device.type != "cuda":
        return MOST_BLOCKS
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count


def machine_for(problem: Problem, sizes: Sizes) -> Machine:
    """The kernels for this problem's device, type and number of labels, compiled once. Raises LabError."""
    score_BTC, used = problem.score_BTC, sizes.used(problem.shape[3])
    return compiled_machine(score_BTC.device, score_BTC.dtype, sizes.padded(used), sizes, used)


@functools.cache
def compiled_machine(device: torch.device, dtype: torch.dtype, wide: int, sizes: Sizes, used: int) -> Machine:
    """Compile the machine, or take it from the cache."""
    path = cuda_driver.find_nvrtc()
    if path is None:
        raise UsageError(f"the CUDA kernels cannot run here: {available()}", fix="backend='torch' or 'auto'")
    target = cuda_driver.architecture(cuda_driver.nvrtc(path), torch.cuda.get_device_capability(device))
    constants = defines(dtype, wide, sizes, used)
    return Machine(device, cuda_driver.compiled(path, SOURCE.read_text(), target, constants))


def defines(dtype: torch.dtype, wide: int, sizes: Sizes, used: int | None = None) -> dict[str, object]:
    """The constants that a source takes from the compiler's command line, for inputs of a type."""
    number = "double" if dtype == torch.float64 else "float"
    types = {"GIVEN": number, "REAL": number, "DOUBLE": int(number == "double")}
    return {**types, "CP": wide, "USED": used or wide, **sizes.constants(wide)}


def as_read(problem: Problem) -> Problem:
    """The inputs as the kernels read them: contiguous, in the scores' number type. Raises UsageError."""
    reason = supports(problem)
    if reason:
        raise UsageError(f"the CUDA kernels do not take {reason}", fix="backend='torch' or 'auto'")
    dtype = torch.float64 if problem.score_BTC.dtype == torch.float64 else torch.float32

    def plain(value: Tensor) -> Tensor:
        if value.dtype == dtype and value.is_contiguous() and not (value.requires_grad or value.is_neg()):
            return value  # a call that does nothing has a price
        return value.detach().resolve_neg().to(dtype).contiguous()

    floats = [plain(value) for value in problem.floats()]
    if problem.score_BTC.dtype == torch.float16:  # whose lowest number forbids; in float32 it would not
        limit = highest_forbidden(torch.float16)
        level = levelled(floats[0], limit)
        floats[0] = level.masked_fill(level <= limit, -torch.inf)
    return replace(problem.with_floats(floats), lengths_B=problem.lengths_B.contiguous())


def bound_inputs(problem: Problem) -> dict[str, Tensor]:
    """What the kernels read, by their arguments' names, and log Z that they write."""
    names = ("score", "transition", "duration", "start", "end")
    log_z_B = problem.score_BTC.new_empty(problem.shape[0], dtype=torch.float64)
    return {**dict(zip(names, problem.floats(), strict=True)), "lengths": problem.lengths_B, "log_z": log_z_B}


def workspace_of(plan: Plan, device: torch.device) -> Tensor:
    return torch.empty(plan.bytes, dtype=torch.uint8, device=device)


def run_messages(state: State) -> None:
    """The passes; what they leave stays in the state's workspace."""
    plan = plan_messages(state.shape, 2 if state.keeps else 1)
    state.bound[plan.workspace] = workspace_of(plan, state.log_z_B.device)
    state.machine.run(plan, **state.bound)


def flagged(state: State, flags: np.ndarray) -> Tensor | None:
    """Sequences to recompute, or None. A message of zero is right only where the model forbids it."""
    if not flags.any():
        return None
    bad = (flags & 1) > 0
    if (flags & 2).any():
        bad |= reachable(state) != state.buffer("count").cpu().numpy()
    rows = bad.reshape(state.shape.batch, -1).any(1).nonzero()[0]
    return torch.from_numpy(rows).to(state.log_z_B.device) if len(rows) else None


def reachable(state: State) -> Any:
    """How many messages of each lane the model allows at all."""
    directions = 2 if state.keeps else 1
    plan = plan_messages(state.shape, directions, saturate=True)
    workspace = workspace_of(plan, state.log_z_B.device)
    unused = torch.empty_like(state.log_z_B)
    state.machine.run(plan, **{**state.bound, "log_z": unused, plan.workspace: workspace})
    return plan.buffers["count"].view(workspace).cpu().numpy()


def emptied_counts(state: State) -> dict[str, Tensor]:
    """Memory for the counts, by the kernels' names and in the order of `Posteriors`' fields."""
    batch, frames, longest, labels = state.problem.shape
    new, double = state.problem.score_BTC.new_empty, torch.float64
    label_BTC, starts_BTC, ends_BTC = (new(batch, frames, labels) for _ in range(3))
    return {
        "label": label_BTC,
        "starts_out": starts_BTC,
        "ends_out": ends_BTC,
        "duration_out": new(batch, longest, labels, dtype=double),
        "transition_out": new(batch, labels, labels, dtype=double),
        "mass_error": new(batch, dtype=double),
        "mass_frame": new(batch, dtype=torch.int64),
        "imbalance": new(batch, dtype=double),
    }


def best(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The best score of each sequence (B,), -inf where nothing is feasible, and (B, T) label + 1 where a
    segment ends with a frame, else 0; on the host.
    """
    model = as_read(problem)
    shape = shape_of(*model.shape, model.score_BTC.dtype, SIZES)
    padding = shape.wide - shape.labels

    def wide(value: Tensor, rows: int = 0) -> Tensor:
        sides = (0, padding, 0, rows) if value.dim() > 1 else (0, padding)
        value = value.detach().resolve_neg().double()
        return torch.nn.functional.pad(value, sides, value=-torch.inf).contiguous()

    plan = plan_viterbi(shape)
    workspace = workspace_of(plan, model.score_BTC.device)
    machine_for(model, SIZES).run(
        plan,
        score=model.score_BTC,
        lengths=model.lengths_B,
        steps=wide(problem.transition, padding),
        lasting=wide(problem.duration_KC),
        first_scores=wide(problem.start_C),
        last_scores=wide(problem.end_C),
        best=workspace,
    )
    scores_B, ends_BT = (plan.buffers[name].view(workspace).cpu().numpy() for name in ("best_score", "ends"))
    return scores_B, ends_BT
