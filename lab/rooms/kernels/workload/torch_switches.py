"""The switches of torch that decide which kernel an op launches: read, and put back as they were recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch

# name -> attribute of torch, or a pair of functions that read and write it. An older torch lacks some.
ATTRIBUTES = {
    "matmul_allow_tf32": "backends.cuda.matmul.allow_tf32",
    "matmul_allow_fp16_reduced_precision_reduction": "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "matmul_allow_bf16_reduced_precision_reduction": "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cudnn_allow_tf32": "backends.cudnn.allow_tf32",
    "cudnn_benchmark": "backends.cudnn.benchmark",
}
FUNCTIONS = {
    "deterministic": ("are_deterministic_algorithms_enabled", "use_deterministic_algorithms"),
    "flash_sdp_enabled": ("backends.cuda.flash_sdp_enabled", "backends.cuda.enable_flash_sdp"),
    "mem_efficient_sdp_enabled": (
        "backends.cuda.mem_efficient_sdp_enabled",
        "backends.cuda.enable_mem_efficient_sdp",
    ),
    "math_sdp_enabled": ("backends.cuda.math_sdp_enabled", "backends.cuda.enable_math_sdp"),
    "cudnn_sdp_enabled": ("backends.cuda.cudnn_sdp_enabled", "backends.cuda.enable_cudnn_sdp"),
}


def read_switches() -> dict[str, Any]:
    """Every switch that this torch has, and its value now."""
    found = {}
    for name, path in ATTRIBUTES.items():
        with contextlib.suppress(AttributeError, AssertionError):  # torch 1.12 asserts
            found[name] = _walk(path)
    for name, (read, _) in FUNCTIONS.items():
        with contextlib.suppress(AttributeError, AssertionError):  # torch 1.12 asserts
            found[name] = _walk(read)()
    return found


@contextlib.contextmanager
def restored(state: dict[str, Any]) -> Iterator[list[str]]:
    """Set every switch that `state` names; yields the names this torch lacks. All is as before afterwards."""
    before = read_switches()
    unknown = [name for name in state if name in {**ATTRIBUTES, **FUNCTIONS} and name not in before]
    wanted = {name: value for name, value in state.items() if type(before.get(name)) is type(value)}
    try:
        _write(wanted)
        yield unknown
    finally:
        _write({name: before[name] for name in wanted})


def _write(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name in ATTRIBUTES:
            owner, _, attribute = ATTRIBUTES[name].rpartition(".")
            setattr(_walk(owner), attribute, value)
        else:
            _walk(FUNCTIONS[name][1])(value)


def _walk(path: str) -> Any:
    return reduce(getattr, path.split("."), torch)
