"""The training run that the sweep measures; runs where the GPU is, one process per rank.

    python -m torch.distributed.run --nproc_per_node 8 -m lab.rooms.sweep.workload --config F --out DIR

Without torchrun it runs as world size 1. It writes into DIR (JSON and traces whole or not at all):

- `torch_profiler/rank{r}/{stem}_step{N}.json.gz`: one Kineto trace per rank and window; N = steps done.
- `rank{r}.log`: all that the rank and its libraries print.
- `rank_{rr:02d}_metrics.jsonl`: one line per optimizer step, flushed. A NaN or infinite figure is null there
  and spelled in `nonfinite`. `profile.overlap` stays empty: DDP's reducer cannot be timed from Python, the
  trace tells the overlap.
- `environment.json` (rank 0): versions, devices, variables that steer them, the GPUs before and after.

Exit codes are those of lab.errors, 1 for any other exception, 130 and 143 for SIGINT and SIGTERM.
Written for torch 1.12 to 2.13.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from lab.errors import writing
from lab.rooms.sweep.config import TrainConfig, ignored_keys, load_train_config, planned_steps
from lab.rooms.sweep.workload.model import batch_loss, make_batch
from lab.rooms.sweep.workload.parallel import (
    DTYPES,
    ParallelModel,
    grad_scaler,
    gradient_sync,
    refuse_what_torch_lacks,
)
from lab.workload.environment import describe_environment, gpu_state
from lab.workload.rank import RankContext, choose_device, process_group
from lab.workload.start import start, write_json

log = logging.getLogger("lab.workload")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the arguments, send this rank's output to its log, train."""
    parser = argparse.ArgumentParser(prog="lab.rooms.sweep.workload", description="The sweep's training run.")
    parser.add_argument("--config", required=True, help="YAML file or preset name")
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="repeatable, applied in order"
    )
    args, context = start(parser, argv, own_log=True)
    run(load_train_config(args.config, args.override), args.out, context)


def run(config: TrainConfig, out: Path, context: RankContext) -> None:
    """Train as `config` says and leave every artefact in `out`.

    Raises ConfigError and GpuError for what cannot run here, StorageError when `out` cannot be written.
    """
    log.setLevel(config.logging.level)
    if ignored_keys(config):
        log.warning("ignored, these keys have no effect: %s", ", ".join(ignored_keys(config)))
    total_steps, steps_per_epoch = planned_steps(config, context.world_size)
    device = choose_device(context, config.distributed.backend)
    refuse_what_torch_lacks(config, device)
    environment = (
        {
            **describe_environment(context, device),
            "ignored_keys": ignored_keys(config),
        }
        if context.rank == 0
        else {}
    )
    if environment:
        write_json(out / "environment.json", environment)
    with process_group(context, device):
        train(config, out, context, device, total_steps, steps_per_epoch)
    if environment:
        write_json(out / "environment.json", {**environment, "smi_after": gpu_state()})


def train(
    config: TrainConfig,
    out: Path,
    context: RankContext,
    device: torch.device,
    total_steps: int,
    steps_per_epoch: int,
) -> None:
    """The loop: one optimizer step, one line of metrics, one step of the profiler."""
    trainer = Trainer(config, context, device)
    log.info(
        "training %s (%s parameters) with %s on %d ranks (%s), %d steps",
        config.model.kind,
        f"{trainer.model.num_params:,}",
        trainer.model.parallel,
        context.world_size,
        device.type,
        total_steps,
    )
    path = out / f"rank_{context.rank:02d}_metrics.jsonl"
    with writing(path):
        metrics = path.open("wb")
    with metrics, profiler(config, out, context.rank, device) as profile:
        for step in range(total_steps):
            epoch, step_in_epoch = divmod(step, steps_per_epoch)
            line: dict[str, Any] = {"rank": context.rank, "world_size": context.world_size}
            line.update(epoch=epoch, step=step_in_epoch, global_step=step + 1, **trainer.step())
            line["profile"] = trainer.clock.summary(step, profile_phase(profile))
            report_step(line, config.training.log_interval, total_steps)
            with writing(path):
                metrics.write(msgspec.json.encode(line) + b"\n")
                metrics.flush()
            if profile is not None:
                profile.step()


def report_step(line: dict[str, Any], log_interval: int, total_steps: int) -> None:
    """Tell the person about a step; name figures that are not finite, which JSON can only write as null."""
    wild = {key: str(line[key]) for key in ("loss", "grad_norm") if not math.isfinite(line[key])}
    if wild:
        line["nonfinite"] = wild
        log.warning("step %d: not finite: %s", line["global_step"], wild)
    if line["global_step"] % log_interval == 0 or line["global_step"] in (1, total_steps):
        log.info(
            "step %d/%d  loss %.4f  grad_norm %.4f  lr %.2e  %.1f ms",
            line["global_step"],
            total_steps,
            line["loss"],
            line["grad_norm"],
            line["lr"],
            line["profile"]["total_ms"],
        )


class Trainer:
    """Model, optimizer and schedule of one rank; `step` is one optimizer step over all micro-steps."""

    def __init__(self, config: TrainConfig, context: RankContext, device: torch.device) -> None:
        training, optimizer = config.training, config.optimizer
        self.config, self.device = config, device
        torch.manual_seed(config.dataset.seed)
        self.model = ParallelModel(config, device)
        torch.manual_seed(config.dataset.seed + context.rank)
        self.generator = torch.Generator(device).manual_seed(config.dataset.seed + context.rank)
        self.optimizer = torch.optim.AdamW(
            self.model.wrapped.parameters(),
            lr=optimizer.lr,
            betas=optimizer.betas,
            weight_decay=optimizer.weight_decay,
        )
        factor = functools.partial(
            lr_factor, warmup_steps=config.scheduler.warmup_steps, total_steps=config.scheduler.total_steps
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
        self.scaler = grad_scaler(enabled=training.mixed_precision == "fp16", parallel=self.model.parallel)
        self.clock = StepClock(device)

    def step(self) -> dict[str, Any]:
        """One optimizer step -> loss (mean of micro-steps), grad_norm before clipping, lr, mem_peak_bytes."""
        micro_steps = self.config.training.gradient_accumulation
        lr = self.scheduler.get_last_lr()[0]
        self.clock.start()
        losses = [self._micro_step(last=index == micro_steps - 1) for index in range(micro_steps)]
        with self.clock.range("optimizer"):
            self.scaler.unscale_(self.optimizer)
            grad_norm = self._clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.optimizer.zero_grad(set_to_none=True)
        on_gpu = self.device.type == "cuda"
        return {
            "loss": torch.stack(losses).mean().item(),
            "grad_norm": float(grad_norm),
            "lr": lr,
            "mem_peak_bytes": torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
        }

    def _micro_step(self, last: bool) -> Tensor:
        config, clock = self.config, self.clock
        # FSDP casts by its own policy.
        dtype = DTYPES[config.training.mixed_precision] if self.model.parallel == "ddp" else torch.float32
        wide = dtype == torch.float32
        autocast = contextlib.nullcontext() if wide else torch.autocast(self.device.type, dtype=dtype)
        with clock.range("data"):
            batch = make_batch(
                config.model, config.dataset, config.training.batch_size, self.device, self.generator
            )
        with gradient_sync(self.model.wrapped, last):
            with clock.range("forward"), autocast:
                loss = batch_loss(self.model.called, batch)
            with clock.range("backward"):
                self.scaler.scale(loss / config.training.gradient_accumulation).backward()
        return loss.detach()

    def _clip(self) -> Any:
        """Clip the gradients in context; the global norm before that, as a plain tensor."""
        limit = self.config.training.grad_clip_norm or math.inf
        if self.model.parallel == "fsdp1":
            return self.model.wrapped.clip_grad_norm_(limit)
        norm: Any = nn.utils.clip_grad_norm_(self.model.wrapped.parameters(), limit)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


class StepClock:
    """Times the ranges of one step, in ms since its start: by GPU events, or by the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.begin: Any = None
        self.marks: list[tuple[str, Any, Any]] = []

    def start(self) -> None:
        """Begin a step and forget the last one."""
        self.begin, self.marks = self._now(), []

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Time the work launched inside, and name it in the trace."""
        begin = self._now()
        with record_function(name):
            yield
        self.marks.append((name, begin, self._now()))

    def summary(self, index: int, phase: str) -> dict[str, Any]:
        """The step's `profile` record; waits for the GPU."""
        end = self._now()
        if self.on_gpu:
            torch.cuda.synchronize()
        ranges = [
            {"name": name, "start_ms": self._since_begin(start), "end_ms": self._since_begin(stop)}
            for name, start, stop in self.marks
        ]
        markers = [{"name": f"profiler_{phase}", "at_ms": 0.0}]
        return {
            "index": index,
            "total_ms": self._since_begin(end),
            "ranges": ranges,
            "markers": markers,
            "overlap": {},
        }

    def _now(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _since_begin(self, mark: Any) -> float:
        elapsed_ms: float = self.begin.elapsed_time(mark) if self.on_gpu else (mark - self.begin) * 1e3
        return round(elapsed_ms, 4)


def lr_factor(step: int, *, warmup_steps: int, total_steps: int) -> float:
    """Share of the peak learning rate at a 0-based step: linear warm-up, then half a cosine to 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * progress))


@contextlib.contextmanager
def profiler(config: TrainConfig, out: Path, rank: int, device: torch.device) -> Iterator[Any]:
    """A running torch.profiler that writes one trace per window; None when the config has it off."""
    options = config.profiling
    if not options.enabled:
        yield None
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)  # also ROCm's name for it
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(
            wait=options.wait, warmup=options.warmup, active=options.active, repeat=options.repeat
        ),
        on_trace_ready=functools.partial(write_trace, config=config, out=out, rank=rank),
        record_shapes=options.record_shapes,
        profile_memory=options.profile_memory,
        with_stack=options.with_stack,
        with_flops=options.with_flops,
    ) as profile:
        yield profile


def profile_phase(profile: Any) -> str:
    """What the profiler does with the current step: off, none, warmup, record, record_and_save."""
    return profile.current_action.name.lower() if profile is not None else "off"


def write_trace(profile: Any, *, config: TrainConfig, out: Path, rank: int) -> None:
    """Export the window that just ended."""
    stem, step = Path(config.profiling.trace_filename).stem, profile.step_num
    folder = out / "torch_profiler" / f"rank{rank}"
    # The dot keeps readers off until the name is final; .json.gz makes torch compress.
    draft = folder / f".draft_{stem}_step{step}.json.gz"
    with writing(draft):
        folder.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(draft))
        if config.profiling.tensorboard:
            (out / "tensorboard").mkdir(exist_ok=True)
            copy = out / "tensorboard" / f"rank{rank}.{step}.pt.trace.json.gz"
            shutil.copyfile(draft, copy.with_name(f".draft_{copy.name}"))
            copy.with_name(f".draft_{copy.name}").replace(copy)
        if config.profiling.chrome_trace:
            draft.replace(folder / f"{stem}_step{step}.json.gz")
        else:
            draft.unlink()
    log.info("trace of the window ending at step %d written", step)
