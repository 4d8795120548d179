"""environment.json: what ran, on which GPUs, and the variables that affect it."""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import torch

from lab.secrets import redact_env
from lab.workload.rank import RankContext

ENV_PREFIXES = ("NCCL_", "RCCL_", "HSA_", "HIP_", "ROCR_", "CUDA_", "TORCH_", "PYTORCH_")
NVIDIA_FIELDS = (
    "index,name,uuid,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,power.limit"
)


def describe_environment(context: RankContext, device: torch.device) -> dict[str, Any]:
    """What runs, on which GPUs, and the variables that affect it; `smi_after` is filled in at the end."""
    on_gpu = device.type == "cuda"
    variables = {key: value for key, value in sorted(os.environ.items()) if key.startswith(ENV_PREFIXES)}
    return {
        # On AMD this is the version of RCCL.
        "versions": versions(nccl=".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None),  # type: ignore[no-untyped-call]
        "backend": "nccl" if on_gpu else "gloo",
        "device": device.type,
        "device_names": [
            torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count() if on_gpu else 0)
        ],
        "host": platform.node(),
        "world_size": context.world_size,
        "env": redact_env(variables),
        "smi_before": gpu_state(),
        "smi_after": None,
    }


def versions(**extra: str | None) -> dict[str, str | None]:
    """Versions of torch, Python and the GPU's runtime, and whatever else the workload adds."""
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        **extra,
    }


def gpu_state() -> dict[str, Any]:
    """Driver, clocks (MHz), temperature (C) and power (W) of the host's GPUs now, by the vendor's tool.

    {"tool": name or None, "gpus": rows or the tool's own JSON, "reason": why there are none, or None}.
    """
    tools: dict[str, tuple[list[str], Callable[[str], Any]]] = {
        "nvidia-smi": (["--query-gpu=" + NVIDIA_FIELDS, "--format=csv,noheader,nounits"], parse_nvidia_smi),
        "amd-smi": (["metric", "--clock", "--temperature", "--power", "--json"], json.loads),
        "rocm-smi": (
            ["--showclocks", "--showtemp", "--showpower", "--showdriverversion", "--json"],
            json.loads,
        ),
    }
    for tool, (arguments, parse) in tools.items():
        if not shutil.which(tool):
            continue
        try:
            answer = subprocess.run(
                [tool, *arguments], capture_output=True, text=True, timeout=20, check=True
            )
            return {"tool": tool, "gpus": parse(answer.stdout), "reason": None}
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return {"tool": tool, "gpus": None, "reason": f"{tool} failed: {error}"}
    return {"tool": None, "gpus": None, "reason": f"none of {', '.join(tools)} is installed"}


def parse_nvidia_smi(text: str) -> list[dict[str, str]]:
    """Rows of `nvidia-smi --query-gpu` as dicts, values as the tool wrote them ("[N/A]" included)."""
    names = NVIDIA_FIELDS.split(",")
    return [
        dict(zip(names, row, strict=False)) for row in csv.reader(text.splitlines(), skipinitialspace=True)
    ]
