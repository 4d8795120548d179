"""One rank's training: model, optimizer, schedule and loss scaling."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from lab.rooms.sweep.config.train import TrainConfig
from lab.rooms.sweep.workload.clock import StepClock
from lab.rooms.sweep.workload.model import batch_loss, make_batch
from lab.rooms.sweep.workload.parallel import (
    DTYPES,
    ParallelModel,
    grad_scaler,
    gradient_sync,
)
from lab.workload.rank import RankContext


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


def lr_factor(step: int, *, warmup_steps: int, total_steps: int) -> float:
    """Share of the peak learning rate at a 0-based step: linear warm-up, then half a cosine to 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * progress))
