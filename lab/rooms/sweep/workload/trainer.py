"""One rank's training: model, optimizer, schedule and loss scaling."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from lab.errors import ConfigError
from lab.rooms.sweep.config.train import TrainConfig
from lab.rooms.sweep.workload.model import (
    Device,
    batch_loss,
    build_model,
    init_weights,
    layer_class,
    make_batch,
)
from lab.workload.rank import RankContext

log = logging.getLogger("lab.workload")
DTYPES = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
        losses = [self._micro_step(is_last=index == micro_steps - 1) for index in range(micro_steps)]
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

    def _micro_step(self, is_last: bool) -> Tensor:
        config, clock = self.config, self.clock
        # FSDP casts by its own policy.
        dtype = DTYPES[config.training.mixed_precision] if self.model.parallel == "ddp" else torch.float32
        wide = dtype == torch.float32
        autocast = contextlib.nullcontext() if wide else torch.autocast(self.device.type, dtype=dtype)
        with clock.range("data"):
            batch = make_batch(
                config.model, config.dataset, config.training.batch_size, self.device, self.generator
            )
        with gradient_sync(self.model.wrapped, is_last):
            with clock.range("forward"), autocast:
                loss = batch_loss(self.model.called, batch)
            with clock.range("backward"):
                self.scaler.scale(loss / config.training.gradient_accumulation).backward()
        return loss.detach()

    def _clip(self) -> Any:
        """Clip the gradients in place; returns their global norm before clipping, as a plain tensor."""
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


class ParallelModel:
    """The model of `config` with weights, on `device`, over all ranks.

    `wrapped` owns the parameters, `called` is what to call (the same, or compiled), `parallel` is
    "ddp" | "fsdp1" | "fsdp2", `num_params` counts the whole model.
    """

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.parallel = choose_parallel(config)
        wrap = {"ddp": wrap_ddp, "fsdp1": wrap_fsdp1, "fsdp2": wrap_fsdp2}[self.parallel]
        model = allocate(config, device, self.parallel)
        self.num_params = sum(parameter.numel() for parameter in model.parameters())
        # Any: DDP, both FSDPs and compiled modules have no common type beyond nn.Module.
        self.wrapped: Any = wrap(model, config, device)
        self.called: Any = self.wrapped
        if config.compile.enabled and self.parallel != "fsdp2":
            self.called = torch.compile(self.wrapped, **compile_options(config))


def check_torch_can_run(config: TrainConfig, device: torch.device) -> None:
    """Raise ConfigError for the first setting that this torch does not support on `device`."""
    on_cpu, old = device.type == "cpu", not hasattr(torch, "compile")
    precision, no_mixing = config.training.mixed_precision, "set training.mixed_precision=none"
    without_fsdp = on_cpu and choose_parallel(config) == "fsdp1"
    checks = [
        (on_cpu and precision == "fp16", "fp16 needs a GPU", no_mixing),
        # Measured on 1.12: the backward pass mixes bfloat16 with float32 and stops.
        (on_cpu and old and precision == "bf16", "bf16 on a CPU needs torch >= 2", no_mixing),
        (without_fsdp, "FSDP on a CPU needs fully_shard (torch >= 2.6)", "set distributed.mode=ddp"),
        (old and config.compile.enabled, "torch.compile needs torch >= 2", "set compile.enabled=false"),
    ]
    for unsupported, feature, fix in checks:
        if unsupported:
            raise ConfigError(feature, location=f"torch {torch.__version__} on {device.type}", fix=fix)


def choose_parallel(config: TrainConfig) -> str:
    """The form of parallelism that the config asks for, in the form that this torch has."""
    if config.distributed.mode == "ddp":
        return "ddp"
    return "fsdp2" if hasattr(fsdp, "fully_shard") else "fsdp1"


def allocate(config: TrainConfig, device: torch.device, parallel: str) -> nn.Module:
    """The model with its initial weights on `device`; empty on meta if FSDP2 shards it first."""
    devices: dict[str, Device] = {"meta": "meta", "cpu": "cpu", "cuda": device}
    init_device = devices[config.fsdp.param_init_device]
    if init_device == "meta" and parallel == "fsdp2":
        return build_model(config.model, init_device)
    # Only FSDP2 gains from meta: the others hold the whole model on the device in any case.
    model = build_model(config.model, device if init_device == "meta" else init_device)
    init_weights(model)
    return model.to(device)


def wrap_ddp(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """Replicate `model`; gradients are all-reduced in buckets while the backward pass runs."""
    options = config.distributed
    # A static graph records its order in the first backward pass, which no_sync hides from it;
    # torch.compile's bucket splitting does not support static graphs.
    static_graph = (
        options.static_graph and config.training.gradient_accumulation == 1 and not config.compile.enabled
    )
    if static_graph != options.static_graph:
        log.info("DDP: static_graph is off because of gradient accumulation or torch.compile")
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=options.bucket_cap_mb,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        static_graph=static_graph,
        find_unused_parameters=options.find_unused_parameters,
    )


def wrap_fsdp2(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """Shard with `fully_shard`; weights travel in the compute dtype, gradients in float32."""
    policy = fsdp.MixedPrecisionPolicy(
        param_dtype=DTYPES[config.training.mixed_precision], reduce_dtype=torch.float32
    )
    shard = functools.partial(
        fsdp.fully_shard,
        mesh=dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),)),
        mp_policy=policy,
        reshard_after_forward=config.fsdp.sharding_strategy == "full_shard",
    )
    layers: list[Any] = list(model.get_submodule("layers").children())
    for layer in layers:
        if config.compile.enabled:
            layer.compile(**compile_options(config))
        shard(layer)
    shard(model)
    if config.fsdp.forward_prefetch:
        for layer, following in itertools.pairwise(layers):
            layer.set_modules_to_forward_prefetch([following])
    if next(model.parameters()).is_meta:
        model.to_empty(device=device)
        if device.type == "cpu":
            # Sharded tensors share one random stream on GPUs only; without this all shards would be equal.
            torch.manual_seed(config.dataset.seed + dist.get_rank())
        init_weights(model)
    return model


def wrap_fsdp1(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """Shard with the older class; options that this torch does not have are left out and logged."""
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    options, dtype = config.fsdp, DTYPES[config.training.mixed_precision]
    wanted = {
        "sharding_strategy": getattr(fsdp.ShardingStrategy, options.sharding_strategy.upper()),
        "auto_wrap_policy": functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls={layer_class(config.model)}
        ),
        "backward_prefetch": getattr(fsdp.BackwardPrefetch, options.backward_prefetch or "", None),
        "mixed_precision": fsdp.MixedPrecision(dtype, torch.float32, dtype),
        "device_id": device,
        "sync_module_states": options.sync_module_states,
        "forward_prefetch": options.forward_prefetch,
        "limit_all_gathers": options.limit_all_gathers,
        "use_orig_params": options.use_orig_params,
    }
    signature_names = inspect.signature(fsdp.FullyShardedDataParallel.__init__).parameters
    if missing := sorted(wanted.keys() - signature_names.keys()):
        log.info("FSDP1 of torch %s does not support: %s", torch.__version__, ", ".join(missing))
    present: dict[str, Any] = {key: value for key, value in wanted.items() if key in signature_names}
    return fsdp.FullyShardedDataParallel(model, **present)


def compile_options(config: TrainConfig) -> dict[str, Any]:
    """Arguments of torch.compile; only inductor has modes."""
    section = config.compile
    options = {"backend": section.backend, "fullgraph": section.fullgraph, "dynamic": section.dynamic}
    return {**options, "mode": section.mode} if section.backend == "inductor" else options


@contextlib.contextmanager
def gradient_sync(wrapped: Any, is_last: bool) -> Iterator[None]:
    """Reduce gradients over the ranks only in the last micro-step of an optimizer step."""
    if hasattr(wrapped, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(is_last)
    with contextlib.nullcontext() if is_last or not hasattr(wrapped, "no_sync") else wrapped.no_sync():
        yield


def grad_scaler(enabled: bool, parallel: str) -> Any:
    """The loss scaler that fp16 needs; does nothing when not enabled."""
    if parallel == "fsdp1":
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(enabled=enabled)
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # before torch 2.3
