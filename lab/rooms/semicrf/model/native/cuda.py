"""The linear-domain semi-CRF on NVIDIA GPUs: semicrf.cu, which torch's loader of extensions has nvcc compile.

float64 scores are computed in float64, all others in float32 with float64 offsets. A call waits for the
flags of the passes; where a gradient will be wanted the counts are queued before that wait, so that the GPU
works on while the host comes round to the backward pass. Flagged sequences go to log_domain.py. Takes
`Problem.plain`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import subprocess
import tempfile
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.errors import GpuError, MissingError, UsageError
from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import imbalance
from lab.rooms.semicrf.model.native.cpu import CPP
from lab.rooms.semicrf.model.native.cuda_plan import (
    SOURCE,
    Launch,
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

log = logging.getLogger("lab.semicrf")
SIZES, CROWDED = Sizes(), Sizes(threads=128)
MOST_BLOCKS = 65535
"""Of threads, in a grid's second and third dimension."""


class Machine:
    """The kernels of one library on one device."""

    def __init__(self, device: torch.device, library: ctypes.CDLL) -> None:
        self.device, self.library = device, library
        library.words_of.restype = ctypes.c_char_p
        self.aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, plan: Plan, **tensors: Tensor) -> None:
        """Put a plan's kernels on torch's current stream, with these tensors bound to its names."""
        words, forked = plan.words(tensors), False
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            for launch in plan.launches:
                if launch.aside and not forked:
                    self.aside.wait_stream(stream)
                if launch.joins and forked:
                    stream.wait_stream(self.aside)
                forked = (forked or launch.aside) and not launch.joins
                self.launch(launch, words, self.aside if launch.aside else stream)
            if forked:
                stream.wait_stream(self.aside)

    def launch(self, launch: Launch, words: dict[str, int], stream: torch.cuda.Stream) -> None:
        slots, addresses = launch.arguments(words)
        grid = (*launch.grid, 1, 1)[:3]
        handle = ctypes.c_void_p(stream.cuda_stream)
        status = self.library.launch(launch.kernel.encode(), *grid, launch.threads, addresses, handle)
        del slots  # copied by now
        if status:
            reason = (self.library.words_of(status) or b"").decode()
            raise GpuError(f"CUDA error {status}: {reason}", location=launch.kernel, fix="backend='torch'")

    def fetched(self, value: Tensor) -> Fetched:
        """A copy of a device's values, queued to the host."""
        return Fetched(value)


class Fetched:
    """Values on their way to the host, and an event behind them."""

    def __init__(self, value: Tensor) -> None:
        # Pinned, because a copy to other memory waits for all that is queued.
        self.host = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True)
        self.host.copy_(value, non_blocking=True)
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record(torch.cuda.current_stream(value.device))

    def numpy(self) -> np.ndarray:
        """Waits for them, and for nothing that was queued later."""
        self.event.synchronize()
        values: np.ndarray = self.host.numpy()
        return values


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
    try:
        from torch.utils.cpp_extension import CUDA_HOME, is_ninja_available
    except ImportError as error:  # setuptools, which not every installation has
        return str(error)
    nvcc = Path(CUDA_HOME or "") / "bin" / "nvcc"
    if not CUDA_HOME or not nvcc.is_file():
        return "no nvcc here; CUDA_HOME can name the toolkit that has it"
    if not is_ninja_available():
        return "no ninja here, which torch builds extensions with: pip install ninja"
    try:
        CPP.find_compiler()  # nvcc has it compile the host's side
        CPP.folder()  # where the library is kept
    except MissingError as error:
        return error.problem
    return _unknown_gpu(nvcc)


def _unknown_gpu(nvcc: Path) -> str | None:
    """Why this nvcc makes no code for the GPU: newer ones drop old GPUs, older ones do not know new ones."""
    try:
        listed = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False)
    except OSError:
        return None  # what is wrong with it the build says
    major, minor = torch.cuda.get_device_capability() if listed.stdout else (0, 0)
    is_known = listed.returncode or not listed.stdout or f"sm_{major}{minor}" in listed.stdout.split()
    return None if is_known else f"the nvcc in {nvcc.parent} makes no code for sm_{major}{minor}"


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
    """The kernels' library from the cache, or compiled into it. Raises MissingError."""
    major, minor = torch.cuda.get_device_capability(device)
    text, arch = source_text(dtype, wide, sizes, used), f"sm_{major}{minor}"
    # torch's version, because the loader links the library to torch's own and to its CUDA's runtime.
    parts = (text, arch, str(torch.__version__), str(torch.version.cuda))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    path = CPP.folder() / f"semicrf_cuda_{key}.so"
    if not path.exists():
        words = "compiling the semi-CRF's CUDA kernels for up to %d labels in %s on %s, once: up to a minute"
        log.warning(words, used, str(dtype).removeprefix("torch."), arch)
        compile_to(path, text, arch)
    return Machine(device, CPP.loaded(path))


def compile_to(path: Path, text: str, arch: str) -> None:
    """Compile in a folder of its own and rename: in a folder where a build was killed torch's loader waits
    for ever (pytorch/pytorch#189245). Raises MissingError with the compiler's words.
    """
    try:
        from torch.utils.cpp_extension import load

        with tempfile.TemporaryDirectory(prefix=".compiling-", dir=path.parent) as scratch:
            source = Path(scratch) / f"{path.stem}.cu"
            source.write_text(text)
            options: dict[str, Any] = {"extra_cuda_cflags": [f"-arch={arch}"], "is_python_module": False}
            load(path.stem, [str(source)], build_directory=scratch, **options)
            # A name that this process built before, or failed to build, becomes NAME_v1.so.
            os.replace(next(Path(scratch).glob("*.so")), path)
    except (ImportError, OSError, RuntimeError) as error:
        fix = "CUDA_HOME names another toolkit; backend='torch' needs none"
        raise MissingError(
            f"the CUDA kernels do not compile: {str(error)[-4000:]}", location=path, fix=fix
        ) from error


def source_text(dtype: torch.dtype, wide: int, sizes: Sizes, used: int | None = None) -> str:
    """The source for inputs of a type and a number of labels. Its constants stand in the text: on nvcc's
    command line they would come before CUDA's own headers.
    """
    number = "double" if dtype == torch.float64 else "float"
    constants = {"GIVEN": number, "REAL": number, "DOUBLE": int(number == "double")}
    constants |= {"CP": wide, "USED": used or wide, **sizes.constants(wide)}
    lines = [f"#define {name} {value}\n" for name, value in constants.items()]
    return "".join(lines) + f'#line 1 "{SOURCE.name}"\n' + SOURCE.read_text()


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
        steps=wide(problem.transition_CC, padding),
        lasting=wide(problem.duration_KC),
        first_scores=wide(problem.start_C),
        last_scores=wide(problem.end_C),
        best=workspace,
    )
    scores_B, ends_BT = (plan.buffers[name].view(workspace).cpu().numpy() for name in ("best_score", "ends"))
    return scores_B, ends_BT
