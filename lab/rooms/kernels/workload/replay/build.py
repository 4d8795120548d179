"""Calls made again: tensors allocated and filled, values converted, the op's overload bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lab.rooms.kernels.replay.args import Arg
from lab.rooms.kernels.workload.replay.fill import Number, WholeNumber, make
from lab.rooms.kernels.workload.replay.overloads import overload_of


class Bound:
    """A call that can be repeated with the same tensors."""

    def __init__(self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def tensors(self) -> list[Tensor]:
        return flat_outputs([*self.args, *self.kwargs.values()])


def bind(op: str, overload: str, args: Sequence[Arg], device: torch.device) -> Bound:
    """The call of an exact overload with rebuilt arguments; nothing has run yet. Raises Unresolved."""
    values = [_made(op, arg, device, seed) for seed, arg in enumerate(args)]
    positional = [value for arg, value in zip(args, values, strict=True) if not arg.kwarg_only]
    named = {arg.name: value for arg, value in zip(args, values, strict=True) if arg.kwarg_only}
    return Bound(overload_of(op, overload), positional, named)


def first_call(bound: Bound) -> tuple[Bound, Any]:
    """Call once. Ops that do not take a Python number for a tensor get a 0-dim CPU tensor instead."""
    try:
        return bound, bound()
    except (RuntimeError, TypeError) as error:
        if "type 'Tensor' for argument" not in str(error) and "must be Tensor" not in str(error):
            raise
    named = dict(zip(bound.kwargs, with_tensors(list(bound.kwargs.values())), strict=True))
    retried = Bound(bound.function, with_tensors(bound.args), named)
    return retried, retried()


def with_tensors(args: list[Any]) -> list[Any]:
    """The values with 0-dim tensors instead of placeholder numbers."""
    return [torch.tensor(arg.number) if isinstance(arg, (Number, WholeNumber)) else arg for arg in args]


def _made(op: str, arg: Arg, device: torch.device, seed: int) -> Any:
    if arg.tensor is not None:
        return make(op, arg.tensor, device, seed)
    if arg.tensors is not None:
        return [
            make(op, tensor, device, seed + 31 * i) if tensor else None
            for i, tensor in enumerate(arg.tensors)
        ]
    return value_of(arg, device)


def value_of(arg: Arg, device: torch.device) -> Any:
    """The Python value of `arg` on `device`."""
    base, value = arg.type.rstrip("?"), arg.value
    if value is None:
        return None
    if base == "Device":
        return device if str(value).startswith(("cuda", "hip")) else torch.device(str(value))
    if arg.name == "pin_memory" and device.type == "cpu":
        return None
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if base == "bool" and isinstance(value, int):
        return bool(value)
    if base == "bool[]":
        return [bool(part) for part in value]
    if base == "float" and isinstance(value, int):
        return float(value)
    return value


def flat_outputs(value: Any) -> list[Tensor]:
    """The tensors among an op's arguments or results, lists flattened."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in flat_outputs(part)]
    return []


def footprint_bytes(bound: Bound) -> int:
    """Bytes of the storages that a call reads or writes in place."""
    return sum(t.element_size() * (math.prod(t.shape) if 0 not in t.stride() else 1) for t in bound.tensors())
