"""What really runs: versions, devices, and what the model itself shows."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import torch

from lab.rooms.nan.config import NanConfig
from lab.rooms.nan.workload.cell import Cell
from lab.rooms.nan.workload.changes import resolved_attention

PACKAGES = ("transformers", "bitsandbytes", "triton", "numpy")


def effective(config: NanConfig, cell: Cell, model: Any) -> dict[str, Any]:
    """What runs, read off the model itself."""
    dtypes = sorted({str(parameter.dtype).replace("torch.", "") for parameter in model.parameters()})
    norms = {type(module).__name__ for module in model.modules() if type(module).__name__.endswith("Norm")}
    return {
        "model": config.model,
        "class": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtypes": dtypes,
        "attention": resolved_attention(model),
        "quant": cell.quant,
        "device": str(cell.device),
        "device_name": _gpu_name(cell.device) or platform.processor() or "CPU",
        "norms": sorted(norms),
        "layers": getattr(model.config, "num_hidden_layers", None),
        "hidden_size": getattr(model.config, "hidden_size", None),
    }


def environment(cell: Cell) -> dict[str, Any]:
    """Versions and devices; a package that is not installed is None."""
    versions: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # with its build, which a package's metadata may not have
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    gpu = _gpu_name(cell.device)
    capability = torch.cuda.get_device_capability(cell.device) if gpu else None
    return {
        "versions": versions,
        "device": str(cell.device),
        "host": platform.node(),
        "device_names": [gpu] if gpu else [],
        "compute_capability": ".".join(map(str, capability)) if capability else None,
    }


def _gpu_name(device: torch.device) -> str | None:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None
