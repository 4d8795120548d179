"""Schemas of ops as torch prints them, taken apart. Pure text.

Nothing is ever substituted: what cannot be resolved is an Unresolved with its reason.
"""

from __future__ import annotations

import ast
import math
import re
from functools import lru_cache
from typing import Any

import msgspec

from lab.rooms.kernels.replay.args import FLOATS, SOURCES, Arg, TensorArg

ALIAS = re.compile(r"\([a-z|!>\-* ]*\)")
TENSOR_LISTS = ("Tensor[]", "Tensor?[]")
CALL = re.compile(r"^(?P<name>[\w:]+)(?:\.(?P<overload>\w+))?\(")


class Unresolved(Exception):
    """Why a call has no exact overload or lacks an argument."""


class Param(msgspec.Struct, frozen=True):
    """One parameter of a schema; default is the schema's own text."""

    name: str
    type: str
    default: str | None = None
    kwarg_only: bool = False


class Schema(msgspec.Struct, frozen=True):
    name: str
    overload: str
    params: tuple[Param, ...]
    text: str = ""


@lru_cache(maxsize=4096)
def parse_schema(text: str) -> Schema:
    """`aten::mul.Tensor(Tensor self, Tensor other) -> Tensor`, taken apart. Raises Unresolved."""
    head = CALL.match(text)
    if not head:
        raise Unresolved(f"not a schema: {text[:80]!r}")
    inside = _until_closed(text, head.end())
    params, kwarg_only = [], False
    for piece in split_args(inside):
        if piece == "*":
            kwarg_only = True
            continue
        declared, _, default = piece.partition("=")
        kind, _, name = declared.rpartition(" ")
        params.append(Param(name, _plain_type(kind), default or None, kwarg_only))
    return Schema(head["name"], head["overload"] or "", tuple(params), text)


def _plain_type(kind: str) -> str:
    """`Tensor(a!)[]` -> `Tensor[]`, `SymInt[2]` -> `int[]`."""
    plain = re.sub(r"\[\d*\]", "[]", ALIAS.sub("", kind.strip()))
    return plain.replace("SymInt", "int").replace("__torch__.", "")


def _until_closed(text: str, start: int) -> str:
    depth = 1
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return text[start:index]
    raise Unresolved(f"unclosed bracket in the schema {text[:80]!r}")


def split_args(text: str) -> list[str]:
    """The parts between commas that are outside brackets."""
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[begin:index].strip())
            begin = index + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


def literal_of(text: str) -> Any:
    """A value as schemas and traces write it: None, True, 1, 1., [1, 2], inf, "text"."""
    stripped = text.strip()
    if stripped in ("inf", "-inf", "nan"):
        return stripped
    if stripped in _WORDS:
        return _WORDS[stripped]
    try:
        return ast.literal_eval(stripped)
    except (ValueError, SyntaxError):
        return stripped


# Named constants of schemas; numbers as in c10/core (MemoryFormat, Layout, Reduction).
_WORDS = {"contiguous_format": 0, "preserve_format": 1, "channels_last": 2, "strided": 0, "Mean": 1, "Sum": 2}


# Bounds of integer tensors: indices must stay within what they index.


def with_bounds(op: str, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """Integer tensors get the bounds that other arguments set; without a bound they become zeros."""
    by_name = {arg.name: arg for arg in args}
    return tuple(_bounded(op, arg, by_name) for arg in args)


def _bounded(op: str, arg: Arg, by_name: dict[str, Arg]) -> Arg:
    if arg.tensor is not None:
        tensor, src = _bounded_tensor(op, arg.name, 0, arg.tensor, arg.src, by_name)
        return msgspec.structs.replace(arg, tensor=tensor, src=src)
    if arg.tensors is not None:
        bounded = [
            _bounded_tensor(op, arg.name, i, tensor, arg.src, by_name) if tensor else (None, arg.src)
            for i, tensor in enumerate(arg.tensors)
        ]
        worst = max((src for _, src in bounded), key=_rank, default=arg.src)
        return msgspec.structs.replace(arg, tensors=tuple(tensor for tensor, _ in bounded), src=worst)
    return arg


def _bounded_tensor(
    op: str, name: str, position: int, tensor: TensorArg, src: str, by_name: dict[str, Arg]
) -> tuple[TensorArg, str]:
    if tensor.dtype in FLOATS or tensor.dtype == "bool" or tensor.number:
        return tensor, src
    high = index_limit(op.removeprefix("aten::").rstrip("_"), name, position, by_name)
    if tensor.low is not None:  # the recorder saw its values
        return msgspec.structs.replace(tensor, index=high is not None), src
    if high is None:
        return tensor, src if math.prod(tensor.shape) == 0 else max(src, "synthetic", key=_rank)
    bounded = msgspec.structs.replace(tensor, low=0, high=max(high - 1, 0), index=True)
    return bounded, max(src, "bounded", key=_rank)


def index_limit(op: str, name: str, position: int, by_name: dict[str, Arg]) -> int | None:
    """The value that integers of argument `name` must stay below; None if no rule is known."""
    sizes = _first_shape(by_name, "self", "weight", "input")
    if op in ("embedding", "_embedding_bag", "embedding_bag", "embedding_renorm") and name == "indices":
        return sizes[0] if sizes else None
    if (op, name) == ("embedding_dense_backward", "indices"):
        return _int_of(by_name, "num_weights")
    if name == "offsets":
        return 1
    if op.startswith("nll_loss") and name == "target":
        shape = _first_shape(by_name, "self")
        return shape[1 if len(shape) > 1 else 0] if shape else None
    if name == "indices" and (op.startswith(("index", "_index_put", "_unsafe_index"))):
        return sizes[position] if sizes and position < len(sizes) else None
    if name == "index" and op.startswith(("index_", "gather", "scatter", "take_along")):
        dim = _int_of(by_name, "dim")
        return _size_along(sizes, dim) if sizes and dim is not None else None
    if name == "index" and op == "take":
        return math.prod(sizes) if sizes else None
    return None


def _size_along(shape: tuple[int, ...], dim: int) -> int | None:
    return shape[dim] if shape and -len(shape) <= dim < len(shape) else None


def _first_shape(by_name: dict[str, Arg], *names: str) -> tuple[int, ...]:
    for name in names:
        arg = by_name.get(name)
        if arg and arg.tensor:
            return arg.tensor.shape
    return ()


def _int_of(by_name: dict[str, Arg], name: str) -> int | None:
    value = by_name[name].value if name in by_name else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rank(src: str) -> int:
    return SOURCES.index(src)
