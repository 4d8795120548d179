"""Inductor's Triton kernels, built again from their generated files and launched as they were recorded."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lab.rooms.kernels.replay.args import TritonKernel
from lab.rooms.kernels.replay.arguments.schemas import Unresolved

_kernels: dict[tuple[str, str], TritonKernel] = {}
_built: dict[tuple[str, str], Callable[..., None]] = {}


def register(kernels: Sequence[TritonKernel]) -> None:
    """Make these kernels callable by (name, hash)."""
    _kernels.update({(one.name, one.hash): one for one in kernels})


def is_registered(name: str, hash_: str) -> bool:
    return (name, hash_) in _kernels


def kernel_of(name: str, hash_: str) -> Callable[..., None]:
    """The launcher of a registered kernel: takes its tensors, then its sizes. Raises Unresolved."""
    if (name, hash_) not in _built:
        if not torch.cuda.is_available():
            raise Unresolved("a Triton kernel runs on a GPU only")
        _built[name, hash_] = _launcher(_kernels[name, hash_])
    return _built[name, hash_]


def _launcher(kernel: TritonKernel) -> Callable[..., None]:
    autotuner = load(kernel)
    as_recorded(autotuner, kernel)

    def launch(*args: Any) -> None:
        autotuner.run(*args, stream=torch.cuda.current_stream().cuda_stream)

    return launch


def load(kernel: TritonKernel) -> Any:
    """Inductor's autotuner of this kernel, from its file. Raises Unresolved for a file without it."""
    with tempfile.TemporaryDirectory(prefix="lab-inductor-") as folder:
        path = Path(folder) / f"{kernel.hash}.py"
        path.write_text(kernel.source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"lab_inductor_{kernel.hash}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # the file is of another torch, and anything may be missing
            raise Unresolved(
                f"its file does not load in torch {torch.__version__}: {type(error).__name__}"
            ) from error
        # torch reads the source again when it compiles, so it stays while the folder does.
        autotuner = getattr(module, kernel.name, None) or getattr(module, "triton_", None)
        if autotuner is None or not hasattr(autotuner, "run"):
            raise Unresolved(f"its file defines no kernel {kernel.name}")
        if hasattr(autotuner, "precompile") and torch.cuda.is_available():
            as_recorded(autotuner, kernel)
            autotuner.precompile()
        return autotuner


def as_recorded(autotuner: Any, kernel: TritonKernel) -> None:
    """Keep the one configuration that was recorded, so that nothing is tuned again; all where none fits."""
    wanted = dict(part.split("=", 1) for part in kernel.block_sizes.split(",") if "=" in part)

    def fits(config: Any) -> bool:
        sizes = {name: str(value) for name, value in config.kwargs.items()}
        return (
            sizes == wanted
            and kernel.num_warps in (-1, config.num_warps)
            and kernel.num_stages in (-1, config.num_stages)
        )

    kept = [config for config in autotuner.configs or [] if fits(config)]
    if kept:
        autotuner.configs = kept[:1]
