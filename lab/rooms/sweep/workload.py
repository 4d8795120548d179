"""The training run that the sweep measures; runs where the GPU is, one process per rank.

    python -m torch.distributed.run --nproc_per_node 8 -m lab.rooms.sweep.workload --config F --out DIR

Without torchrun it runs as world size 1. It writes into DIR, each file whole or not at all:

- `torch_profiler/rank{r}/{stem}_step{N}.json.gz`: one Kineto trace per rank and profiler window; N = steps done.
- `rank{r}.log`: all that the rank and its libraries print.
- `rank_{rr:02d}_metrics.jsonl`: one line per optimizer step, flushed. A NaN or infinite figure is null there
  and spelled in `nonfinite`. `profile.overlap` stays empty: DDP's reducer cannot be timed from Python, the
  trace tells the overlap.
- `environment.json` (rank 0): versions, devices, the variables that steer them, the GPUs' state around the run.

Exit codes are those of lab.errors, 1 for any other exception, 130 and 143 for SIGINT and SIGTERM.
Written for torch 1.12 to 2.13.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import inspect
import json
import logging
import math
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from lab.errors import ConfigError, GpuError, LabError, writing
from lab.rooms.sweep.config import TrainConfig, ignored_keys, load_train_config, planned_steps
from lab.rooms.sweep.model import batch_loss, build_model, init_weights, layer_class, make_batch

log = logging.getLogger("lab.sweep.workload")

ENV_PREFIXES = ("NCCL_", "RCCL_", "HSA_", "HIP_", "ROCR_", "CUDA_", "TORCH_", "PYTORCH_")
DTYPES = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NVIDIA_FIELDS = (
    "index,name,uuid,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,power.limit"
)


class Place(msgspec.Struct, frozen=True):
    """Where this process stands among its peers, as torchrun says; alone without torchrun."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_env(cls) -> Place:
        """Read RANK, LOCAL_RANK and WORLD_SIZE."""
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        try:
            return cls(*(int(os.environ.get(name, default)) for name, default in zip(names, (0, 0, 1))))
        except ValueError as error:
            raise ConfigError(
                f"torchrun's variables are not integers: {error}", where=", ".join(names)
            ) from error


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the arguments, send this rank's output to its log, train."""
    parser = argparse.ArgumentParser(prog="lab.rooms.sweep.workload", description="The sweep's training run.")
    parser.add_argument("--config", required=True, help="YAML file or preset name")
    parser.add_argument("--out", required=True, type=Path, help="folder for traces, metrics and logs")
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="repeatable, in order"
    )
    args = parser.parse_args(argv)
    place = Place.from_env()
    redirect_output(args.out / f"rank{place.rank}.log", place)
    exit_on_signals(args.out / "torch_profiler" / f"rank{place.rank}")
    run(load_train_config(args.config, args.override), args.out, place)


def run(config: TrainConfig, out: Path, place: Place) -> None:
    """Train as `config` says and leave every artefact in `out`.

    Raises ConfigError and GpuError for what cannot run here, StorageError when `out` cannot be written.
    """
    log.setLevel(config.logging.level)
    if ignored_keys(config):
        log.warning("ignored, these keys have no effect: %s", ", ".join(ignored_keys(config)))
    device = choose_device(config, place)
    environment = describe_environment(config, place, device) if place.rank == 0 else {}
    if place.rank == 0:
        write_json(out / "environment.json", environment)
    with process_group(place, device):
        train(config, out, place, device)
        barrier(device)
    if place.rank == 0:
        write_json(out / "environment.json", {**environment, "smi_after": gpu_state()})
        log.info("done")


def train(config: TrainConfig, out: Path, place: Place, device: torch.device) -> None:
    """The loop: one optimizer step, one line of metrics, one step of the profiler."""
    total_steps, steps_per_epoch = planned_steps(config, place.world_size)
    trainer = Trainer(config, place, device)
    log.info(
        "training %s (%s parameters) with %s on %d ranks (%s), %d steps",
        config.model.kind, f"{trainer.num_params:,}", trainer.parallel, place.world_size, device.type, total_steps,
    )  # fmt: skip
    path = out / f"rank_{place.rank:02d}_metrics.jsonl"
    with writing(path), path.open("wb") as metrics, profiler(config, out, place.rank, device) as profile:
        for step in range(total_steps):
            line = {"rank": place.rank, "world_size": place.world_size, "epoch": step // steps_per_epoch,
                    "step": step % steps_per_epoch, "global_step": step + 1}  # fmt: skip
            line.update(trainer.step(), profile=trainer.clock.summary(step, profile_phase(profile)))
            report_step(line, config.training.log_interval, total_steps)
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
        log.info("step %d/%d  loss %.4f  grad_norm %.4f  lr %.2e  %.1f ms", line["global_step"], total_steps,
                 line["loss"], line["grad_norm"], line["lr"], line["profile"]["total_ms"])  # fmt: skip


class Trainer:
    """Model, optimizer and schedule of one rank; `step` is one optimizer step over all micro-steps."""

    def __init__(self, config: TrainConfig, place: Place, device: torch.device) -> None:
        training, optimizer = config.training, config.optimizer
        self.config, self.device = config, device
        torch.manual_seed(config.dataset.seed)
        self.wrapped, self.model, self.parallel, self.num_params = parallel_model(config, device)
        torch.manual_seed(config.dataset.seed + place.rank)
        self.generator = torch.Generator(device).manual_seed(config.dataset.seed + place.rank)
        self.optimizer = torch.optim.AdamW(
            self.wrapped.parameters(),
            lr=optimizer.lr,
            betas=optimizer.betas,
            weight_decay=optimizer.weight_decay,
        )
        factor = functools.partial(
            lr_factor, warmup_steps=config.scheduler.warmup_steps, total_steps=config.scheduler.total_steps
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
        self.scaler = grad_scaler(enabled=training.mixed_precision == "fp16", parallel=self.parallel)
        self.clock = StepClock(device)

    def step(self) -> dict[str, Any]:
        """One optimizer step -> loss (mean of the micro-steps), grad_norm before clipping, lr, mem_peak_bytes."""
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
        dtype = DTYPES[config.training.mixed_precision] if self.parallel == "ddp" else torch.float32
        autocast = (
            torch.autocast(self.device.type, dtype=dtype)
            if dtype != torch.float32
            else contextlib.nullcontext()
        )
        with clock.range("data"):
            batch = make_batch(
                config.model, config.dataset, config.training.batch_size, self.device, self.generator
            )
        with gradient_sync(self.wrapped, last):
            with clock.range("forward"), autocast:
                loss = batch_loss(self.model, batch)
            with clock.range("backward"):
                self.scaler.scale(loss / config.training.gradient_accumulation).backward()
        return loss.detach()

    def _clip(self) -> Tensor:
        """Clip the gradients in place; the global norm before that, as a plain tensor."""
        limit = self.config.training.grad_clip_norm or math.inf
        if self.parallel == "fsdp1":
            return self.wrapped.clip_grad_norm_(limit)
        norm = nn.utils.clip_grad_norm_(self.wrapped.parameters(), limit)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


class StepClock:
    """Times the ranges of one step, in ms since its start: GPU events on a GPU, the host's clock elsewhere."""

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
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _since_begin(self, mark: Any) -> float:
        elapsed_ms = self.begin.elapsed_time(mark) if self.on_gpu else (mark - self.begin) * 1e3
        return round(elapsed_ms, 4)


def lr_factor(step: int, *, warmup_steps: int, total_steps: int) -> float:
    """Share of the peak learning rate at a 0-based optimizer step: linear warm-up, then half a cosine to 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def parallel_model(config: TrainConfig, device: torch.device) -> tuple[nn.Module, nn.Module, str, int]:
    """The model with weights, on `device`, replicated or sharded.

    Returns (the DDP or FSDP module, the module to call: the same or its compiled form, "ddp" | "fsdp1" | "fsdp2",
    number of parameters).
    """
    parallel = choose_parallel(config, device)
    init_device = {"meta": "meta", "cpu": "cpu", "cuda": device}[config.fsdp.param_init_device]
    if parallel == "fsdp1" and init_device == "meta":
        log.info("FSDP1: weights are made on the device, not on meta")
        init_device = device
    model = build_model(config.model, init_device)
    num_params = sum(parameter.numel() for parameter in model.parameters())
    if init_device == "meta" and parallel == "ddp":
        model = model.to_empty(device=device)
    if not next(model.parameters()).is_meta:
        init_weights(model)
        model = model.to(device)
    wrap = {"ddp": wrap_ddp, "fsdp1": wrap_fsdp1, "fsdp2": wrap_fsdp2}[parallel]
    wrapped = wrap(model, config, device)
    called = compiled(wrapped, config) if parallel != "fsdp2" else wrapped
    return wrapped, called, parallel, num_params


def choose_parallel(config: TrainConfig, device: torch.device) -> str:
    """ "ddp", "fsdp2" (torch >= 2.6) or "fsdp1" (older, GPU only)."""
    if config.distributed.mode == "ddp":
        return "ddp"
    if hasattr(fsdp, "fully_shard"):
        return "fsdp2"
    if device.type == "cpu":
        raise ConfigError(
            f"FSDP on a CPU needs torch >= 2.6 (fully_shard); here is {torch.__version__}, whose FSDP needs a GPU",
            where="distributed.mode",
            fix="set distributed.mode=ddp",
        )
    return "fsdp1"


def wrap_ddp(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """Replicate `model`; gradients are all-reduced in buckets while the backward pass runs."""
    options = config.distributed
    # A static graph learns its order in the first backward pass, which no_sync would hide from it;
    # torch.compile's bucket splitting does not know static graphs.
    static_graph = (
        options.static_graph and config.training.gradient_accumulation == 1 and not config.compile.enabled
    )
    if static_graph != options.static_graph:
        log.info("DDP: static_graph is off, because of gradient accumulation or torch.compile")
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=options.bucket_cap_mb,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        static_graph=static_graph,
        find_unused_parameters=options.find_unused_parameters,
    )


def wrap_fsdp2(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """Shard each layer, then the rest; weights are gathered in the compute dtype, gradients reduced in float32."""
    dtype = DTYPES[config.training.mixed_precision]
    policy = fsdp.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    options = {"mp_policy": policy, "reshard_after_forward": config.fsdp.sharding_strategy == "full_shard"}
    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
    layers = list(model.layers)
    for layer in layers:
        if config.compile.enabled:
            layer.compile(**compile_options(config))
        fsdp.fully_shard(layer, mesh=mesh, **options)
    fsdp.fully_shard(model, mesh=mesh, **options)
    if config.fsdp.forward_prefetch:
        for layer, following in zip(layers, layers[1:]):
            layer.set_modules_to_forward_prefetch([following])
    if next(model.parameters()).is_meta:
        model.to_empty(device=device)
        init_weights(model)
    return model


def wrap_fsdp1(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """The same sharding with the older class; options that this torch does not have yet are left out."""
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    options, dtype = config.fsdp, DTYPES[config.training.mixed_precision]
    policy = functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={layer_class(config.model)}
    )
    strategy = getattr(fsdp.ShardingStrategy, options.sharding_strategy.upper())
    prefetch = (
        getattr(fsdp.BackwardPrefetch, options.backward_prefetch) if options.backward_prefetch else None
    )
    wanted = {
        "sharding_strategy": strategy,
        "auto_wrap_policy": policy,
        "backward_prefetch": prefetch,
        "mixed_precision": fsdp.MixedPrecision(dtype, torch.float32, dtype)
        if dtype != torch.float32
        else None,
        "device_id": device,
        "sync_module_states": options.sync_module_states,
        "forward_prefetch": options.forward_prefetch,
        "limit_all_gathers": options.limit_all_gathers,
        "use_orig_params": options.use_orig_params,
    }
    known = inspect.signature(fsdp.FullyShardedDataParallel.__init__).parameters
    if missing := sorted(wanted.keys() - known.keys()):
        log.info("FSDP1 of torch %s does not know: %s", torch.__version__, ", ".join(missing))
    return fsdp.FullyShardedDataParallel(
        model, **{key: value for key, value in wanted.items() if key in known}
    )


def compiled(model: nn.Module, config: TrainConfig) -> nn.Module:
    """`model` under torch.compile where the config asks for it, sharing its weights."""
    return torch.compile(model, **compile_options(config)) if config.compile.enabled else model


def compile_options(config: TrainConfig) -> dict[str, Any]:
    """Arguments of torch.compile. Raises ConfigError before torch 2."""
    if not hasattr(torch, "compile"):
        raise ConfigError(f"torch {torch.__version__} has no torch.compile", where="compile.enabled",
                          fix="set compile.enabled=false")  # fmt: skip
    section = config.compile
    options = {"backend": section.backend, "fullgraph": section.fullgraph, "dynamic": section.dynamic}
    return {**options, "mode": section.mode} if section.backend == "inductor" else options


@contextlib.contextmanager
def gradient_sync(wrapped: nn.Module, last: bool) -> Iterator[None]:
    """Reduce gradients over the ranks only in the last micro-step of an optimizer step."""
    if hasattr(wrapped, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(last)
        yield
    elif last:
        yield
    else:
        with wrapped.no_sync():
            yield


def grad_scaler(enabled: bool, parallel: str) -> Any:
    """The loss scaler that fp16 needs; does nothing when not enabled."""
    if parallel == "fsdp1":
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(enabled=enabled)
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)


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


def choose_device(config: TrainConfig, place: Place) -> torch.device:
    """This rank's GPU, or the CPU. Raises GpuError when the config or torchrun asks for GPUs that are not here."""
    backend, gpus = config.distributed.backend, torch.cuda.device_count()
    if backend == "gloo" or (backend == "auto" and gpus == 0):
        if config.training.mixed_precision == "fp16":
            raise ConfigError("fp16 needs a GPU", where="training.mixed_precision", fix="use bf16 or none")
        return torch.device("cpu")
    if gpus == 0:
        raise GpuError("distributed.backend is nccl but torch sees no GPU", where=f"torch {torch.__version__}",
                       fix="run in an image with GPU access, or set distributed.backend=auto")  # fmt: skip
    if place.local_rank >= gpus:
        raise GpuError(f"rank {place.rank} has no GPU: {gpus} are visible, local rank is {place.local_rank}",
                       fix=f"start at most {gpus} processes on this host")  # fmt: skip
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


@contextlib.contextmanager
def process_group(place: Place, device: torch.device) -> Iterator[None]:
    """Join the other ranks, and leave in order; after an error there is no leaving, peers may be stuck."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=place.rank, world_size=place.world_size)
    yield
    dist.destroy_process_group()


def barrier(device: torch.device) -> None:
    """Wait for all ranks."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def describe_environment(config: TrainConfig, place: Place, device: torch.device) -> dict[str, Any]:
    """What ran, on what, steered by which variables; `smi_after` is filled at the end of the run."""
    on_gpu = device.type == "cuda"
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        # RCCL answers under NCCL's name.
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
        "backend": "nccl" if on_gpu else "gloo",
        "device": device.type,
        "device_names": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if on_gpu
        else [],
        "host": platform.node(),
        "world_size": place.world_size,
        "ignored_keys": ignored_keys(config),
        "env": {key: value for key, value in sorted(os.environ.items()) if key.startswith(ENV_PREFIXES)},
        "smi_before": gpu_state(),
        "smi_after": None,
    }


def gpu_state() -> dict[str, Any]:
    """Driver, clocks (MHz), temperature (C) and power (W) of the host's GPUs, as the vendor's tool says them now.

    {"tool": name or None, "gpus": rows or the tool's own JSON, "reason": why there are none, or None}.
    """
    commands: dict[str, tuple[list[str], Callable[[str], Any]]] = {
        "nvidia-smi": (["--query-gpu=" + NVIDIA_FIELDS, "--format=csv,noheader,nounits"], parse_nvidia_smi),
        "amd-smi": (["metric", "--clock", "--temperature", "--power", "--json"], json.loads),
        "rocm-smi": (
            ["--showclocks", "--showtemp", "--showpower", "--showdriverversion", "--json"],
            json.loads,
        ),
    }
    for tool, (arguments, parse) in commands.items():
        if not shutil.which(tool):
            continue
        try:
            answer = subprocess.run(
                [tool, *arguments], capture_output=True, text=True, timeout=20, check=True
            )
            return {"tool": tool, "gpus": parse(answer.stdout), "reason": None}
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return {"tool": tool, "gpus": None, "reason": f"{tool} failed: {error}"}
    return {"tool": None, "gpus": None, "reason": f"none of {', '.join(commands)} is here"}


def parse_nvidia_smi(text: str) -> list[dict[str, str]]:
    """Rows of `nvidia-smi --query-gpu` as dicts, values as the tool wrote them ("[N/A]" included)."""
    names = NVIDIA_FIELDS.split(",")
    return [dict(zip(names, row)) for row in csv.reader(text.splitlines(), skipinitialspace=True)]


def write_json(path: Path, value: Any) -> None:
    """Write `value` whole or not at all."""
    draft = path.with_name(f".draft_{path.name}")
    with writing(path):
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(value)))
        draft.replace(path)


def redirect_output(path: Path, place: Place) -> None:
    """From here on file descriptors 1 and 2 are the rank's log; messages and failures also reach the person."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        log_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    person = {}
    for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        person[fd] = os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="replace")
        os.dup2(log_fd, fd)
    os.close(log_fd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if place.rank == 0:
        handlers.append(logging.StreamHandler(person[1]))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"))
        log.addHandler(handler)
    sys.excepthook = functools.partial(die, person=person[2], rank=place.rank)


def die(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None, *, person: TextIO, rank: int
) -> None:
    """The last word of a failed rank: traceback to its log and to the person, then the reason in one line.

    Leaves at once: the usual teardown can wait forever for peers that still sit in a collective.
    """
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(text)
    expected = isinstance(error, LabError)
    reason = (
        error.what if isinstance(error, LabError) else (str(error).strip().splitlines() or ["no message"])[0]
    )
    for stream in (sys.stderr, person):
        if stream is person:
            stream.write(f"{error}\n" if expected else text)
        stream.write(f"rank {rank} failed: {kind.__name__}: {reason}\n")
        stream.flush()
    sys.stdout.flush()
    os._exit(error.exit_code if isinstance(error, LabError) else 1)


def exit_on_signals(trace_dir: Path) -> None:
    """Leave with 128 + signal number on SIGINT and SIGTERM, even while the main thread waits in a collective.

    A Python handler would run only after that wait. The C-level handler writes the signal's number into the
    wakeup descriptor at once, and a thread acts on it.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    stops = (signal.SIGINT, signal.SIGTERM)
    for stop in stops:
        signal.signal(stop, lambda *_: None)

    def watch(keep_open: socket.socket) -> None:
        while (number := reader.recv(1)[0]) not in stops:
            pass
        log.warning("stopped by %s", signal.Signals(number).name)
        for draft in trace_dir.glob(".draft_*"):
            draft.unlink(missing_ok=True)
        sys.stdout.flush()
        os._exit(128 + number)

    threading.Thread(target=watch, args=(writer,), daemon=True, name="signals").start()


if __name__ == "__main__":
    main()
