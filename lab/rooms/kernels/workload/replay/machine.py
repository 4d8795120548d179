"""The machine that a replay runs on, the plan it reads, and torch's switches that select an op's kernel."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from functools import reduce
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


# Switches: read, set as recorded, and restored.

# name -> attribute of torch. An older torch lacks some.
ATTRIBUTES = {
    "cudnn_allow_tf32": "backends.cudnn.allow_tf32",
    "cudnn_benchmark": "backends.cudnn.benchmark",
} | {
    f"matmul_{name}": f"backends.cuda.matmul.{name}"
    for name in (
        "allow_tf32",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    )
}
# name -> functions of torch that read and write it.
FUNCTIONS = {"deterministic": ("are_deterministic_algorithms_enabled", "use_deterministic_algorithms")} | {
    f"{kind}_sdp_enabled": (f"backends.cuda.{kind}_sdp_enabled", f"backends.cuda.enable_{kind}_sdp")
    for kind in ("flash", "mem_efficient", "math", "cudnn")
}


def read_switches() -> dict[str, Any]:
    """Every switch of this torch and its current value."""
    values = {}
    for name, path in ATTRIBUTES.items():
        with contextlib.suppress(AttributeError, AssertionError):  # torch 1.12 raises AssertionError
            values[name] = _walk(path)
    for name, (read, _) in FUNCTIONS.items():
        with contextlib.suppress(AttributeError, AssertionError):
            values[name] = _walk(read)()
    return values


@contextlib.contextmanager
def restored(state: dict[str, Any]) -> Iterator[list[str]]:
    """Set every switch in `state` inside the block; yields the names that this torch does not have."""
    previous = read_switches()
    unknown = [name for name in state if name in {**ATTRIBUTES, **FUNCTIONS} and name not in previous]
    wanted = {name: value for name, value in state.items() if type(previous.get(name)) is type(value)}
    try:
        _write(wanted)
        yield unknown
    finally:
        _write({name: previous[name] for name in wanted})


def _write(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name in ATTRIBUTES:
            owner, _, attribute = ATTRIBUTES[name].rpartition(".")
            setattr(_walk(owner), attribute, value)
        else:
            _walk(FUNCTIONS[name][1])(value)


def _walk(path: str) -> Any:
    return reduce(getattr, path.split("."), torch)
