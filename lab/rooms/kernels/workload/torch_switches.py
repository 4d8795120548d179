"""The switches of torch that select an op's kernel: read, set as recorded, and restored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch

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
