"""Which rank this is, and what the parallel strategy allows.

That is: where gradients are reduced, and whether a forward may be run again on one rank alone. Never a
collective: it would hang when one rank only is bad.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Strategy:
    """How the model is spread over ranks."""

    name: str
    reduces: bool = False  # gradients at the update are not this rank's own
    reduces_at_once: bool = False  # the reduction follows the accumulation at once: count before
    no_replay: str = ""


def strategy_of(model: nn.Module) -> Strategy:
    """By what the model is made of: DDP or FSDP wrappers, distributed weights."""
    kinds = {type(module).__name__ for module in model.modules()}
    bases = {base.__name__ for module in model.modules() for base in type(module).__mro__[:3]}
    alone = "a forward holds collectives, which one rank cannot run again alone"
    if "FSDPModule" in bases or "FullyShardedDataParallel" in kinds:
        return Strategy("FSDP", True, False, alone)
    if any(hasattr(one, "placements") for one in model.parameters()):
        return Strategy("tensor parallel", False, False, alone)
    if world() > 1:
        # Inside DDP's wrapper or outside of it: the model cannot tell.
        return Strategy("DDP" if "DistributedDataParallel" in kinds else "data parallel", True, True)
    return Strategy("one process")


def world() -> int:
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0
