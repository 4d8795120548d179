"""One cell of the matrix: a model, some steps, and their times. Runs where the GPU is.

    python -m lab.rooms.nsys.workload --model-size small --profile-type training --out DIR

It writes into DIR, each file complete or not at all: `cell.json` (settings, times of every phase by Python's
clock, peak memory, outcome), `environment.json` (versions), and with `--collector kineto` the trace
`capture.json.gz`. With `--collector nsys` it switches nsys on and off through cudaProfilerApi. Only the
measured steps are recorded, and one step before them under the range `warmup`, which absorbs the collector's
start-up.

Ranges: warmup | step_N > forward (with those of attention), backward, optimizer_step. Every phase ends with a
synchronisation inside its range, so a range's wall time is the phase's.

Out of memory is an outcome, not an error: `cell.json` says `oom` and the exit code is 0.
Written for torch 1.12 to 2.13.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from lab.errors import GpuError, writing
from lab.rooms.nsys.config import TYPES, WorkloadConfig, spec_of
from lab.rooms.nsys.flops import SIZES
from lab.rooms.nsys.workload.model import Attention, Mark, Transformer, loss_of, marker
from lab.workload.environment import versions
from lab.workload.start import start, write_json

OOM_TEXT = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",
    "hipErrorOutOfMemory",
)
SETTLE_STEPS = 1
CAPTURE = "capture.json.gz"


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, and leave with an exit code of lab.errors."""
    options = parse(argv)
    out: Path = options.out
    write_json(out / "environment.json", {"versions": versions()})
    cell = measured(options)
    write_json(out / "cell.json", cell)
    print(line_of(cell), flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The published experiment's flags, with its defaults, and ours."""
    defaults = WorkloadConfig()
    parser = argparse.ArgumentParser(
        prog="lab.rooms.nsys.workload", description="Measured Transformer steps."
    )
    parser.add_argument("--model-size", choices=list(SIZES), default="small")
    parser.add_argument("--context-length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size)
    parser.add_argument("--warmup-steps", type=int, default=defaults.warmup_steps)
    parser.add_argument("--measure-steps", type=int, default=defaults.measure_steps)
    parser.add_argument("--profile-type", choices=list(TYPES), default="forward_backward")
    parser.add_argument("--use-annotated-attention", action="store_true")
    parser.add_argument("--softmax", choices=["plain", "fused"], default=defaults.softmax)
    parser.add_argument("--fused-qkv", action="store_true")
    parser.add_argument("--dtype", choices=["fp32", "tf32", "bf16", "fp16"], default=defaults.dtype)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--collector", choices=["none", "nsys", "kineto"], default="none")
    return start(parser, argv)[0]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The whole cell: `outcome` is ok or oom; anything else is raised."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise GpuError(f"torch {torch.__version__} sees no GPU", fix="--device cpu runs without one")
    cell = {
        "schema": 1,
        "asked": {name: value for name, value in vars(options).items() if name != "out"},
        "params": spec_of(options.model_size, fused_qkv=options.fused_qkv).params,
        "device": device_of(options.device),
        "versions": versions(),
    }
    try:
        cell |= steps_of(options)
        cell["outcome"] = "ok"
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        cell |= {"outcome": "oom", "reason": str(error).splitlines()[0][:300], "steps": []}
    return cell | peak_memory(options.device)


def ran_out(error: BaseException) -> bool:
    """Whether this error means out of memory, on a GPU or on the host, in any torch since 1.12."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in OOM_TEXT)


def steps_of(options: argparse.Namespace) -> dict[str, Any]:
    """Build the model, warm up, measure; the times of the steps."""
    mark = marker(nvtx=options.device == "cuda" and torch.version.cuda is not None)
    cell = Cell(options, mark)
    for _ in range(options.warmup_steps):
        with mark("warmup"):
            cell.step()
    with recording(options):
        for _ in range(SETTLE_STEPS if options.collector != "none" else 0):
            with mark("warmup"):
                cell.step()
        steps = []
        for number in range(options.measure_steps):
            with mark(f"step_{number}"):
                steps.append(cell.step())
    return {"steps": [{**step, "loss": float(step["loss"])} for step in steps]}


class Cell:
    """A model with its tokens and optimizer; `step` is one measured step."""

    def __init__(self, options: argparse.Namespace, mark: Mark) -> None:
        self.options, self.mark = options, mark
        self.spec = spec_of(options.model_size, fused_qkv=options.fused_qkv)
        # Whatever torch's default is: float32 products may round their factors to tf32 only where asked to.
        torch.backends.cuda.matmul.allow_tf32 = options.dtype == "tf32"
        torch.backends.cudnn.allow_tf32 = options.dtype == "tf32"
        attention = Attention(options.softmax, mark, annotated=options.use_annotated_attention)
        with mark("model_creation"):
            model = Transformer(self.spec, options.context_length, attention, options.device)
            self.model = model.fill(options.seed)
        with mark("data_generation"):
            generator = torch.Generator("cpu").manual_seed(options.seed)
            shape = (options.batch_size, options.context_length + 1)
            self.ids = torch.randint(self.spec.vocab, shape, generator=generator).to(options.device)
        training = options.profile_type == "training"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4) if training else None
        self.scaler = grad_scaler(enabled=training and options.dtype == "fp16")

    def step(self) -> dict[str, Any]:
        """Milliseconds of each phase by Python's clock, and the loss of this step."""
        kind = self.options.profile_type
        took: dict[str, float] = {}
        began = time.perf_counter()
        self.model.zero_grad(set_to_none=True)
        with self.phase("forward", took), torch.set_grad_enabled(kind != "forward"), self.autocast():
            loss = loss_of(self.model, self.ids)  # the same batch and loss for every profile type
        if kind != "forward":
            with self.phase("backward", took):
                self.scaler.scale(loss).backward()
        if self.optimizer is not None:
            with self.phase("optimizer_step", took):
                self.scaler.step(self.optimizer)
                self.scaler.update()
        took["step_ms"] = 1e3 * (time.perf_counter() - began)
        # Read later: a copy to the host here would be an operation of the step.
        return {**took, "loss": loss.detach()}

    @contextlib.contextmanager
    def phase(self, name: str, took: dict[str, float]) -> Iterator[None]:
        """A range that ends when the GPU has finished, timed by Python around it."""
        began = time.perf_counter()
        with self.mark(name):
            yield
            if self.options.device == "cuda":
                torch.cuda.synchronize()
        took[f"{name}_ms"] = 1e3 * (time.perf_counter() - began)

    def autocast(self) -> Any:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.options.dtype)
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.options.device, dtype=dtype)


@contextlib.contextmanager
def recording(options: argparse.Namespace) -> Iterator[None]:
    """Record the block: by nsys through cudaProfilerApi, by torch.profiler, or not at all."""
    if options.collector == "none":
        yield
    elif options.collector == "nsys":
        torch.cuda.synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    else:
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU, kinds.CUDA] if options.device == "cuda" else [kinds.CPU]
        with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
            yield
        draft = options.out / f".draft_{CAPTURE}"
        with writing(draft):
            profile.export_chrome_trace(str(draft))
            draft.replace(options.out / CAPTURE)


def grad_scaler(*, enabled: bool) -> Any:
    """The loss scaler that fp16 needs; does nothing when not enabled."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # before torch 2.3


def device_of(kind: str) -> dict[str, Any]:
    """The device's name and, for a GPU, what tells its board."""
    if kind == "cpu":
        return {"name": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    gpu = torch.cuda.get_device_properties(0)
    return {
        "name": gpu.name,
        "mem_bytes": gpu.total_memory,
        "capability": f"{gpu.major}.{gpu.minor}",
        "sm_count": gpu.multi_processor_count,
    }


def peak_memory(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {"peak_allocated_bytes": None, "peak_reserved_bytes": None}
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def line_of(cell: dict[str, Any]) -> str:
    """The result in one line."""
    asked = cell["asked"]
    name = (
        f"{asked['model_size']} ctx {asked['context_length']} {asked['profile_type']} ({asked['collector']})"
    )
    if cell["outcome"] != "ok":
        return f"{name}: {cell['outcome']}: {cell['reason']}"
    times = sorted(step["step_ms"] for step in cell["steps"])
    return f"{name}: median step {times[len(times) // 2]:.2f} ms, loss {cell['steps'][-1]['loss']:.4f}"


if __name__ == "__main__":
    main()
