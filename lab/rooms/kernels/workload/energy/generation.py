"""The profiled model's own generation, to be measured as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.rooms.kernels.config import KernelsConfig
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.workload.model import load
from lab.rooms.kernels.workload.profile.passes import Run


def generation(plan: ReplayPlan, device: torch.device, out: Path) -> Callable[[], Any]:
    """A function that runs one whole generation, with as many new tokens as were recorded."""
    fields = set(KernelsConfig.__struct_fields__)
    wanted = {name: value for name, value in plan.config.items() if name in fields}
    tokens = int(plan.config.get("new_tokens", plan.config.get("max_new_tokens", 16)))
    config = msgspec.convert({**wanted, "max_new_tokens": tokens, "fixed_tokens": True}, KernelsConfig)
    run = Run(config, load(config, device, on_cpu=False), out, 0, device)
    run.generate()
    return run.generate
