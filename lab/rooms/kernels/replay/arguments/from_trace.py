"""Exact overload and arguments from a chrome trace, which has types, sizes and literals but no names.

Every schema of the op with the right number of arguments is scored, and the best one wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from lab.core.words import plural
from lab.rooms.kernels.replay.args import DTYPES, Arg, Launch, RawArgs, TensorArg, contiguous_stride
from lab.rooms.kernels.replay.arguments.schemas import (
    TENSOR_LISTS,
    Param,
    Schema,
    Unresolved,
    literal_of,
    with_bounds,
)

NO = -(10**6)  # a score that rules a schema out
COPY = re.compile(r"Memcpy (\w)to(\w) ?(?:\((\w+) -> (\w+)\))?")
# What a kernel's template arguments say of its element type; the first match counts.
ELEMENT_TYPES = (
    ("BFloat16", "bfloat16"),
    ("Half", "float16"),
    (r"OpaqueType<2u?>", "float16"),
    (r"OpaqueType<4u?>", "float32"),
    (r"OpaqueType<8u?>", "int64"),
    (r"OpaqueType<1u?>", "bool"),
    (r"\bdouble\b", "float64"),
    (r"\blong\b", "int64"),
    (r"\bbool\b", "bool"),
)


def from_trace(
    raw: RawArgs, schemas: Sequence[Schema], launches: Sequence[Launch]
) -> tuple[Schema, tuple[Arg, ...]]:
    """The best schema for what a chrome trace recorded, and its arguments. Raises Unresolved."""
    if not schemas:
        raise Unresolved("this torch has no schema of that name")
    fitting = [schema for schema in schemas if len(schema.params) == len(raw.types)]
    if not fitting:
        raise Unresolved(f"no overload takes {plural(len(raw.types), 'argument')}")
    scored = [
        (sum(_score(param, raw, i) for i, param in enumerate(schema.params)), -order, schema)
        for order, schema in enumerate(fitting)
    ]
    best, _, schema = max(scored, key=lambda row: row[:2])
    if best < NO / 2:
        raise Unresolved("no overload fits the recorded types")
    args = tuple(_arg_of_trace(param, raw, i, launches) for i, param in enumerate(schema.params))
    args = _with_real_tensors(_with_copy_devices(schema.name, args, launches))
    return schema, with_bounds(schema.name, args)


def _score(param: Param, raw: RawArgs, i: int) -> int:
    """How well the i-th recorded argument fits `param`; NO rules it out."""
    kind, literal = raw.types[i], raw.concrete[i] if i < len(raw.concrete) else ""
    base = param.type.rstrip("?")
    optional = param.type.endswith("?")
    if kind in DTYPES:
        return 4 if base == "Tensor" else NO
    if kind == "TensorList":
        return 4 if param.type in TENSOR_LISTS else NO
    if kind == "ScalarList":
        return 4 if base.endswith("]") and not base.startswith("Tensor") else NO
    if kind == "Scalar":
        return _score_scalar(base, literal)
    if kind == "":
        if optional or base in ("Device", "Generator", "str", "Tensor?[]", "Dimname", "Stream"):
            return 2
        # Before torch 2.1 the profiler leaves scalars empty; only a default can replace one.
        return 0 if base.endswith("]") or param.default is not None else NO
    return NO


def _score_scalar(base: str, literal: str) -> int:
    value = literal_of(literal)
    if base in ("Tensor", "Tensor[]", "str", "Device", "Generator") or base.endswith("]"):
        return NO
    if base == "Scalar":
        return 2
    if isinstance(value, bool):
        return 3 if base == "bool" else 1 if base in ("int", "SymInt") else NO
    if isinstance(value, int):
        return {"float": 0, "bool": NO}.get(base, 3)
    if isinstance(value, (float, str)):
        return 3 if base == "float" else NO
    return 0  # before torch 2.1 the literal is lost


def _arg_of_trace(param: Param, raw: RawArgs, i: int, launches: Sequence[Launch]) -> Arg:
    kind, literal = raw.types[i], raw.concrete[i] if i < len(raw.concrete) else ""
    stride = raw.strides[i] if i < len(raw.strides) else []
    common: dict[str, Any] = {"name": param.name, "type": param.type, "kwarg_only": param.kwarg_only}
    if kind in DTYPES:
        tensor = traced_tensor(kind, raw.dims[i], stride)
        return Arg(**common, tensor=tensor, src="synthetic" if tensor.number else "recorded")
    if kind == "TensorList":
        dtype = dtype_of_launches(launches)
        sizes = raw.dims[i]
        steps = stride if len(stride) == len(sizes) else [[]] * len(sizes)
        if not sizes or not all(isinstance(size, list) for size in sizes):
            raise Unresolved("the trace does not hold the sizes of a list of tensors")
        tensors = tuple(
            traced_tensor(dtype, size, step, number=False) for size, step in zip(sizes, steps, strict=True)
        )
        return Arg(**common, tensors=tensors, src="synthetic")
    if literal:
        return Arg(**common, value=literal_of(literal))
    return _missing(param, common, kind)


def _missing(param: Param, common: dict[str, Any], kind: str) -> Arg:
    """An argument that the trace left out: None, the schema's default, or 1 for a lost number."""
    if param.type.endswith("?") and kind == "":
        return Arg(**common, value=None)
    if param.default is not None:
        return Arg(**common, value=literal_of(param.default), src="default")
    if kind == "Scalar":
        return Arg(**common, value=False if param.type == "bool" else 1, src="synthetic")
    raise Unresolved(f"the trace does not hold the argument {param.name!r} of type {param.type}")


def traced_tensor(kind: str, size: list[int], stride: list[int], *, number: bool | None = None) -> TensorArg:
    shape = tuple(size)
    steps = tuple(stride) if len(stride) == len(shape) else contiguous_stride(shape)
    # A Python number is recorded as a 0-dim double or long; real tensors rarely are.
    is_number = shape == () and kind in ("double", "long int") if number is None else number
    return TensorArg(dtype=DTYPES.get(kind, kind), shape=shape, stride=steps, number=is_number)


def _with_real_tensors(args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """A 0-dim tensor without another tensor is a real one: nothing else could have selected the GPU."""
    if any((arg.tensor and not arg.tensor.number) or arg.tensors for arg in args):
        return args
    return tuple(_real(arg) for arg in args)


def _real(arg: Arg) -> Arg:
    if not arg.tensor:
        return arg
    tensor = msgspec.structs.replace(arg.tensor, number=False)
    return msgspec.structs.replace(arg, tensor=tensor, src="recorded")


def _with_copy_devices(op: str, args: tuple[Arg, ...], launches: Sequence[Launch]) -> tuple[Arg, ...]:
    """A chrome trace has no devices, but the name of a copy says where it reads and writes."""
    copies = (COPY.search(launch.name) for launch in launches if launch.kind == "memcpy")
    ends = next(copies, None)
    if op not in ("aten::copy_", "aten::_to_copy") or not ends:
        return args
    side_of = {"self": ends[2], "src": ends[1]} if op == "aten::copy_" else {"self": ends[1]}
    pinned = {"self": ends[4] == "Pinned", "src": ends[3] == "Pinned"}

    def placed(arg: Arg) -> Arg:
        if arg.tensor is None or arg.name not in side_of:
            return arg
        device = "cpu" if side_of[arg.name] == "H" else "cuda"
        tensor = msgspec.structs.replace(
            arg.tensor, device=device, number=False, pinned=device == "cpu" and pinned[arg.name]
        )
        return msgspec.structs.replace(arg, tensor=tensor)

    return tuple(placed(arg) for arg in args)


def dtype_of_launches(launches: Sequence[Launch]) -> str:
    """The element type that the kernels' template arguments name; float32 if they name none."""
    text = " ".join(launch.name for launch in launches)
    return next((dtype for pattern, dtype in ELEMENT_TYPES if re.search(pattern, text)), "float32")
