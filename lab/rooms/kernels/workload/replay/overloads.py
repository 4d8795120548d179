"""Exact overloads of this torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import torch

from lab.rooms.kernels.replay.args import Arg, Signature
from lab.rooms.kernels.replay.arguments.from_trace import from_trace
from lab.rooms.kernels.replay.arguments.schemas import Schema, Unresolved, parse_schema


def resolved(signature: Signature) -> tuple[str, tuple[Arg, ...]]:
    """Overload and arguments; for a call of a chrome trace found among this torch's schemas.

    Raises Unresolved.
    """
    if signature.args is not None and signature.overload is not None:
        if signature.origin == "recorder":
            return signature.overload, typed(signature.op, signature.overload, signature.args)
        return signature.overload, signature.args
    if signature.raw is None:
        raise Unresolved(signature.reason or "the recording holds no arguments")
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
