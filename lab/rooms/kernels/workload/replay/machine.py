"""The machine that a replay runs on, and the plan it reads."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from lab.errors import BadDataError
from lab.rooms.kernels.replay.args import PLAN_VERSION, ReplayPlan
from lab.rooms.kernels.trails import read_json
from lab.workload.environment import versions


def read_replay_plan(path: Path) -> ReplayPlan:
    """Raises MissingError and BadDataError."""
    plan = read_json(path, ReplayPlan)
    if plan.version != PLAN_VERSION:
        raise BadDataError(
            f"the replay plan has version {plan.version}, this lab reads {PLAN_VERSION}",
            location=path,
            fix="make the replay again with this version of lab",
        )
    return plan


def describe(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"device_name": platform.processor() or platform.machine(), "num_sms": 0}
    properties = torch.cuda.get_device_properties(device)
    return {"device_name": properties.name, "num_sms": properties.multi_processor_count}


def known_versions() -> dict[str, str]:
    return {name: version for name, version in versions().items() if version}


def l2_bytes(device: torch.device) -> int:
    """Size of the L2 cache: 64 MiB if this torch does not know it, 32 MiB on a CPU."""
    if device.type != "cuda":
        return 32 << 20
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def progress(text: str) -> None:
    print(text, flush=True)
