"""What an experiment runs here: dtype, attention, quantization and device, and what had to give way."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import platform
from dataclasses import dataclass, field
from typing import Any

import torch

from lab.errors import GpuError
from lab.rooms.nan.config import NanConfig
from lab.workload.environment import versions

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 320,
    },
    "7b-shape": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
}
PACKAGES = ("transformers", "bitsandbytes", "triton", "numpy")


@dataclass
class Cell:
    """What runs: one combination of dtype, attention and quantization, and what had to give way here."""

    dtype: str
    attn: str
    quant: str  # none | 4bit | 8bit
    device: torch.device
    notes: list[str] = field(default_factory=list)
    skipped: str = ""  # why the quantization that was asked for cannot run: its unquantized twin runs


def choose_cell(config: NanConfig, experiment: str) -> Cell:
    """What this experiment runs here. Raises GpuError if the GPU asked for is missing."""
    device = choose_device(config.device)
    cell = Cell(config.dtype, config.attn, _quant(config, experiment), device)
    if experiment == "bfloat16":
        cell.dtype = "bfloat16"
    if experiment == "eager":
        cell.attn = "eager"
    why_not = _why_not_quantized(config, cell)
    if why_not:
        cell.skipped, cell.quant = f"{cell.quant} weights cannot run here: {why_not}", "none"
    if device.type == "cpu" and cell.dtype == "float16" and not _half_works():
        cell.dtype = "float32"
        cell.notes.append(f"torch {torch.__version__} cannot multiply half on a CPU: float32 is used instead")
    return cell


def choose_device(name: str) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise GpuError(
            f"torch {torch.__version__} sees no GPU", fix="use --device cpu, or an image for this GPU"
        )
    return torch.device("cuda", 0)


def _quant(config: NanConfig, experiment: str) -> str:
    if experiment == "8bit":
        return "8bit"
    if config.quant != "auto":
        return config.quant
    return "4bit"


def _why_not_quantized(config: NanConfig, cell: Cell) -> str:
    """Why quantized weights cannot run; empty if they can, or if none were asked for."""
    if cell.quant == "none":
        return ""
    if cell.device.type == "cpu":
        return "bitsandbytes computes on GPUs"
    if torch.version.hip:
        return "bitsandbytes is not built for ROCm here"
    if importlib.util.find_spec("bitsandbytes") is None:
        return "bitsandbytes is not installed"
    return "random weights are not quantized" if config.model in SHAPES else ""


def _half_works() -> bool:
    ones = torch.ones(2, 2, dtype=torch.float16)
    try:
        _ = ones @ ones
    except RuntimeError:
        return False
    return True


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
    packages: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    gpu = _gpu_name(cell.device)
    capability = torch.cuda.get_device_capability(cell.device) if gpu else None
    return {
        "versions": versions(**packages),
        "device": str(cell.device),
        "host": platform.node(),
        "device_names": [gpu] if gpu else [],
        "compute_capability": ".".join(map(str, capability)) if capability else None,
    }


def resolved_attention(model: Any) -> str:
    """The attention that runs, as the library resolved it."""
    return str(getattr(getattr(model, "config", None), "_attn_implementation", None) or "eager")


def _gpu_name(device: torch.device) -> str | None:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None
