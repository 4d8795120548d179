"""Calls made again: tensors allocated and filled, values converted, overloads of this torch bound.

Data are a fixed hash of the element index, so that Python, C++ and two runs see the same numbers. The bits
are spread like random ones, because zeros cost less energy than data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import torch
from torch import Tensor

from lab.perfmodel.dtypes import ITEM_BYTES
from lab.rooms.kernels.replay.args import Arg, Signature, TensorArg, extent, fill_of
from lab.rooms.kernels.replay.arguments.from_trace import from_trace
from lab.rooms.kernels.replay.arguments.schemas import Schema, Unresolved, parse_schema

PATTERN_ELEMENTS = 1 << 20  # the period of the hash


def make(op: str, spec: TensorArg, device: torch.device, seed: int) -> Any:
    """One tensor of `spec`: storage up to its last addressed element, filled, then strided."""
    if spec.number:
        return placeholder(spec.dtype)
    place = torch.device("cpu") if spec.device == "cpu" else device
    lead = spec.align_bytes // ITEM_BYTES[spec.dtype]
    flat = filled(op, spec, lead + extent(spec.shape, spec.stride), place, seed)
    if spec.pinned and device.type != "cpu":
        flat = flat.pin_memory()
    return flat.as_strided(spec.shape, spec.stride, lead)


def filled(op: str, spec: TensorArg, length: int, device: torch.device, seed: int) -> Tensor:
    """A 1-D tensor of `length`: hashed floats in [-1, 1), integers within bounds, hashed bools."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    kind = fill_of(op, spec)
    if kind in ("zeros", "ones"):
        return torch.full((length,), 1 if kind == "ones" else 0, dtype=dtype, device=device)
    table = pattern(device)
    if kind == "positive":
        table = table.abs()
    elif kind == "bools":
        table = table < 0
    elif kind == "bounded":
        low, span = spec.low or 0, (spec.high or 0) - (spec.low or 0) + 1
        table = ((table.double() + 1) * 0.5 * span).floor().clamp_(max=span - 1) + low
    elif "complex" in spec.dtype:
        table = torch.complex(table, table)
    return _tiled(table.to(dtype), length, seed)


def _tiled(table: Tensor, length: int, seed: int) -> Tensor:
    """The table from an offset that `seed` selects, repeated up to `length`."""
    size = table.numel()
    start = (seed * 7919) % size
    table = torch.cat([table[start:], table[:start]])
    if length <= size:
        return table[:length].clone()
    out = torch.empty(length, dtype=table.dtype, device=table.device)
    num_tiles = length // size
    out[: num_tiles * size].view(num_tiles, size).copy_(table)
    out[num_tiles * size :].copy_(table[: length - num_tiles * size])
    return out


_tables: dict[str, Tensor] = {}


def pattern(device: torch.device) -> Tensor:
    """PATTERN_ELEMENTS hashed float32 in [-1, 1), the same on every device and in the C++ program."""
    key = str(device)
    if key not in _tables:
        mask = (1 << 32) - 1
        x = (torch.arange(PATTERN_ELEMENTS, dtype=torch.int64) * 2654435761) & mask
        x = (x ^ (x >> 16)) * 22468225 & mask
        x = x ^ (x >> 13)
        _tables[key] = ((x >> 8).float() * 2.0**-23 - 1.0).to(device)
    return _tables[key]


def placeholder(dtype: str) -> Any:
    """A stand-in for a number whose value no trace holds: 1, with which no result drifts."""
    return WholeNumber(1) if dtype in ("int64", "bool") else Number(1.0)


class Number(float):
    """A placeholder float for a parameter that is a tensor in the schema."""

    @property
    def number(self) -> float | int | bool:
        return float(self)


class WholeNumber(int):
    """A placeholder int for a parameter that is a tensor in the schema."""

    @property
    def number(self) -> int:
        return int(self)


def resolved(signature: Signature) -> tuple[str, tuple[Arg, ...]]:
    """Overload and arguments; for a call of a chrome trace found among this torch's schemas.

    Raises Unresolved.
    """
    if signature.args is not None and signature.overload is not None:
        if signature.origin == "recorder":
            return signature.overload, typed(signature.op, signature.overload, signature.args)
        return signature.overload, signature.args
    if signature.raw is None:
        raise Unresolved(signature.reason or "the recording lacks its arguments")
    schema, args = from_trace(signature.raw, schemas_of(signature.op), signature.launches)
    return schema.overload, args


def typed(op: str, overload: str, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """A recorder's arguments with the types of the schema, and which of them are keyword-only."""
    schema = next((one for one in schemas_of(op) if one.overload == overload), None)
    if schema is None:
        raise Unresolved(f"torch {torch.__version__} has no {op}.{overload or 'default'}")
    by_name = {param.name: param for param in schema.params}
    if not {arg.name for arg in args} <= set(by_name):
        raise Unresolved(
            f"{op}.{overload or 'default'} of this torch has other arguments than the recorded one"
        )
    params = [by_name[arg.name] for arg in args]
    return tuple(
        msgspec.structs.replace(arg, type=param.type, kwarg_only=param.kwarg_only)
        for arg, param in zip(args, params, strict=True)
    )


@lru_cache(maxsize=4096)
def schemas_of(op: str) -> tuple[Schema, ...]:
    """Every overload that this torch registers under `op`, its default first."""
    schemas = []
    for registered in torch._C._jit_get_schemas_for_operator(op):
        try:
            schemas.append(parse_schema(str(registered)))
        except Unresolved:  # a schema with types that no trace records
            continue
    return tuple(sorted(schemas, key=lambda schema: schema.overload != ""))


def overload_of(op: str, overload: str) -> Callable[..., Any]:
    """The callable of exactly this overload. Raises Unresolved."""
    space, _, name = op.partition("::")
    try:
        packet = getattr(getattr(torch.ops, space), name)
        function: Callable[..., Any] = getattr(packet, overload or "default")
    except (AttributeError, RuntimeError) as error:
        raise Unresolved(f"torch {torch.__version__} has no {op}.{overload or 'default'}") from error
    return function


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
