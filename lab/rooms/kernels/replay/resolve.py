"""From what a recording says of a call to its exact overload and arguments. Pure: schemas come in as text.

A chrome trace gives types, sizes and literals without names: every schema of the op with the right number of
arguments is scored, and the best wins. An execution trace gives the schema itself. Nothing is ever substituted:
what cannot be resolved is an Unresolved with its reason.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from lab.rooms.kernels.replay.args import DTYPES, FLOATS, Arg, Launch, RawArgs, TensorArg, contiguous_stride

NO = -(10**6)  # a score that rules a schema out
HOLE = "nullptr"  # how an execution trace writes the type of a tensor that is not there
ALIAS = re.compile(r"\([a-z|!>\-* ]*\)")
TENSOR_LIKE = ("Tensor", "Tensor?")
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
    for piece in _split(inside):
        if piece == "*":
            kwarg_only = True
            continue
        declared, _, default = piece.partition("=")
        kind, _, name = declared.rpartition(" ")
        params.append(Param(name, _plain_type(kind), default or None, kwarg_only))
    return Schema(head["name"], head["overload"] or "", tuple(params), text)


def from_trace(
    raw: RawArgs, schemas: Sequence[Schema], launches: Sequence[Launch]
) -> tuple[Schema, tuple[Arg, ...]]:
    """The best schema for what a chrome trace recorded, and its arguments. Raises Unresolved."""
    if not schemas:
        raise Unresolved("this torch has no schema of that name")
    fitting = [schema for schema in schemas if len(schema.params) == len(raw.types)]
    if not fitting:
        raise Unresolved(f"no overload takes {len(raw.types)} arguments")
    scored = [
        (sum(_score(param, raw, i) for i, param in enumerate(schema.params)), -place, schema)
        for place, schema in enumerate(fitting)
    ]
    best, _, schema = max(scored, key=lambda row: row[:2])
    if best < NO / 2:
        raise Unresolved("no overload fits the recorded types")
    args = tuple(_arg_of_trace(param, raw, i, launches) for i, param in enumerate(schema.params))
    args = _with_real_tensors(_with_copy_devices(schema.name, args, launches))
    return schema, with_bounds(schema.name, args)


def from_node(schema_text: str, inputs: dict[str, Any]) -> tuple[Schema, tuple[Arg, ...]]:
    """Exact overload and arguments of an execution trace's node. Raises Unresolved."""
    schema = parse_schema(schema_text)
    values, kinds = inputs.get("values", []), inputs.get("types", [])
    shapes, strides = inputs.get("shapes", []), inputs.get("strides", [])
    if not (len(schema.params) == len(values) == len(kinds) == len(shapes)):
        raise Unresolved(f"the node holds {len(values)} arguments, its schema {len(schema.params)}")
    strides = strides if len(strides) == len(values) else [[]] * len(values)
    # A copy has a real tensor on either side, whatever its size.
    on_gpu = any("cuda" in str(value) for value in values) and "copy" not in schema.name
    args = tuple(
        _arg_of_node(param, value, kind, shape, stride, on_gpu)
        for param, value, kind, shape, stride in zip(
            schema.params, values, kinds, shapes, strides, strict=True
        )
    )
    return schema, with_bounds(schema.name, args)


def with_bounds(op: str, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """Integer tensors get the largest value that another argument allows; others are synthetic zeros."""
    by_name = {arg.name: arg for arg in args}
    return tuple(_bounded(op, arg, by_name) for arg in args)


def _bounded(op: str, arg: Arg, by_name: dict[str, Arg]) -> Arg:
    if arg.tensor is not None:
        tensor, src = _bounded_tensor(op, arg.name, 0, arg.tensor, arg.src, by_name)
        return msgspec.structs.replace(arg, tensor=tensor, src=src)
    if arg.tensors is not None:
        found = [
            _bounded_tensor(op, arg.name, i, tensor, arg.src, by_name) if tensor else (None, arg.src)
            for i, tensor in enumerate(arg.tensors)
        ]
        worst = max((src for _, src in found), key=_rank, default=arg.src)
        return msgspec.structs.replace(arg, tensors=tuple(tensor for tensor, _ in found), src=worst)
    return arg


def _bounded_tensor(
    op: str, name: str, place: int, tensor: TensorArg, src: str, by_name: dict[str, Arg]
) -> tuple[TensorArg, str]:
    if tensor.dtype in FLOATS or tensor.dtype == "bool" or tensor.number:
        return tensor, src
    high = index_limit(op.removeprefix("aten::").rstrip("_"), name, place, by_name)
    if tensor.low is not None:  # a recorder saw its values
        return msgspec.structs.replace(tensor, index=high is not None), src
    if high is None:
        return tensor, src if math.prod(tensor.shape) == 0 else max(src, "synthetic", key=_rank)
    return msgspec.structs.replace(tensor, low=0, high=max(high - 1, 0), index=True), max(
        src, "bounded", key=_rank
    )


def index_limit(op: str, name: str, place: int, by_name: dict[str, Arg]) -> int | None:
    """Smallest value that integers of argument `name` must stay below; None: no rule is known."""
    first = _first_shape(by_name, "self", "weight", "input")
    if op in ("embedding", "_embedding_bag", "embedding_bag", "embedding_renorm") and name == "indices":
        return first[0] if first else None
    if (op, name) == ("embedding_dense_backward", "indices"):
        return _int_of(by_name, "num_weights")
    if name == "offsets":
        return 1
    if op.startswith("nll_loss") and name == "target":
        shape = _first_shape(by_name, "self")
        return shape[1 if len(shape) > 1 else 0] if shape else None
    if name == "indices" and (op.startswith(("index", "_index_put", "_unsafe_index"))):
        return first[place] if first and place < len(first) else None
    if name == "index" and op.startswith(("index_", "gather", "scatter", "take_along")):
        dim = _int_of(by_name, "dim")
        return _size_along(first, dim) if first and dim is not None else None
    if name == "index" and op == "take":
        return math.prod(first) if first else None
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
    return ("recorded", "ranged", "bounded", "default", "synthetic").index(src)


# A. the chrome trace ------------------------------------------------------------------------------------------------


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
        # Before torch 2.1 the profiler leaves scalars empty; only a default can stand for one.
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
        tensor = _traced_tensor(kind, raw.dims[i], stride)
        return Arg(**common, tensor=tensor, src="synthetic" if tensor.number else "recorded")
    if kind == "TensorList":
        dtype = dtype_of_launches(launches)
        sizes = raw.dims[i]
        steps = stride if len(stride) == len(sizes) else [[]] * len(sizes)
        if not sizes or not all(isinstance(size, list) for size in sizes):
            raise Unresolved("the trace lost the sizes of a list of tensors")
        tensors = tuple(
            _traced_tensor(dtype, size, step, number=False) for size, step in zip(sizes, steps, strict=True)
        )
        return Arg(**common, tensors=tensors, src="synthetic")
    if literal:
        return Arg(**common, value=literal_of(literal))
    return _missing(param, common, kind)


def _missing(param: Param, common: dict[str, Any], kind: str) -> Arg:
    """An argument that the trace left out: None, the schema's default, or, for a lost number, 1."""
    if param.type.endswith("?") and kind == "":
        return Arg(**common, value=None)
    if param.default is not None:
        return Arg(**common, value=literal_of(param.default), src="default")
    if kind == "Scalar":
        return Arg(**common, value=False if param.type == "bool" else 1, src="synthetic")
    raise Unresolved(f"the trace lost the argument {param.name!r} of type {param.type}")


def _traced_tensor(kind: str, size: list[int], stride: list[int], *, number: bool | None = None) -> TensorArg:
    shape = tuple(size)
    steps = tuple(stride) if len(stride) == len(shape) else contiguous_stride(shape)
    # A Python number is recorded as a 0-dim double or long; the caller's tensors are rarely so.
    is_number = shape == () and kind in ("double", "long int") if number is None else number
    return TensorArg(dtype=DTYPES.get(kind, kind), shape=shape, stride=steps, number=is_number)


def _with_real_tensors(args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """A 0-dim tensor with no other tensor beside it was no Python number: nothing would have chosen the GPU."""
    if any((arg.tensor and not arg.tensor.number) or arg.tensors for arg in args):
        return args
    real = [
        msgspec.structs.replace(arg, tensor=msgspec.structs.replace(arg.tensor, number=False), src="recorded")
        if arg.tensor
        else arg
        for arg in args
    ]
    return tuple(real)


def _with_copy_devices(op: str, args: tuple[Arg, ...], launches: Sequence[Launch]) -> tuple[Arg, ...]:
    """A chrome trace has no devices, but the name of a copy tells its two ends."""
    ends = next(
        (
            re.search(r"Memcpy (\w)to(\w) ?(?:\((\w+) -> (\w+)\))?", launch.name)
            for launch in launches
            if launch.kind == "memcpy"
        ),
        None,
    )
    if op not in ("aten::copy_", "aten::_to_copy") or not ends:
        return args
    here = {"self": ends[2], "src": ends[1]} if op == "aten::copy_" else {"self": ends[1]}
    pinned = {"self": ends[4] == "Pinned", "src": ends[3] == "Pinned"}

    def placed(arg: Arg) -> Arg:
        if arg.tensor is None or arg.name not in here:
            return arg
        device = "cpu" if here[arg.name] == "H" else "cuda"
        tensor = msgspec.structs.replace(
            arg.tensor, device=device, number=False, pinned=device == "cpu" and pinned[arg.name]
        )
        return msgspec.structs.replace(arg, tensor=tensor)

    return tuple(placed(arg) for arg in args)


def dtype_of_launches(launches: Sequence[Launch]) -> str:
    """The element type that a kernel's template arguments name; float32 where they name none."""
    text = " ".join(launch.name for launch in launches)
    for pattern, dtype in (
        ("BFloat16", "bfloat16"),
        ("Half", "float16"),
        (r"OpaqueType<2u?>", "float16"),
        (r"OpaqueType<4u?>", "float32"),
        (r"OpaqueType<8u?>", "int64"),
        (r"OpaqueType<1u?>", "bool"),
        (r"\bdouble\b", "float64"),
        (r"\blong\b", "int64"),
        (r"\bbool\b", "bool"),
    ):
        if re.search(pattern, text):
            return dtype
    return "float32"


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


# B. the execution trace -----------------------------------------------------------------------------------------


def _arg_of_node(param: Param, value: Any, kind: str, shape: Any, stride: Any, on_gpu: bool) -> Arg:
    common: dict[str, Any] = {"name": param.name, "type": param.type, "kwarg_only": param.kwarg_only}
    if kind.startswith("Tensor(") and HOLE in kind:
        return Arg(**common)
    if kind.startswith("Tensor("):
        tensor = _node_tensor(value, kind[7:-1], shape, stride, on_gpu)
        return Arg(**common, tensor=tensor, src="synthetic" if tensor.number else "recorded")
    if kind.startswith("GenericList[") and "Tensor(" in kind:
        kinds = _split(kind[12:-1])
        steps = stride if len(stride) == len(value) else [[]] * len(value)
        tensors = tuple(
            _node_tensor(one, its[7:-1], size, step, False)
            if its.startswith("Tensor(") and HOLE not in its
            else None
            for one, its, size, step in zip(value, kinds, shape, steps, strict=True)
        )
        return Arg(**common, tensors=tensors)
    if kind == "GenericList[]" and param.type in TENSOR_LISTS:
        return Arg(**common, tensors=())
    if kind in ("None", "NoneType") or value == "<None>":
        return Arg(**common)
    if kind == "Generator":
        return Arg(**common)
    return Arg(**common, value=value)


def _node_tensor(value: Any, kind: str, shape: Any, stride: Any, on_gpu: bool) -> TensorArg:
    """[tensor id, storage id, offset, numel, itemsize, device] with its dtype, sizes and steps."""
    if kind not in DTYPES:
        raise Unresolved(f"tensors of type {kind!r} are not rebuilt")
    if not isinstance(value, list) or len(value) != 6:
        raise Unresolved(
            "a tensor of the execution trace is not [id, storage, offset, numel, itemsize, device]"
        )
    sizes, dtype, device = tuple(shape), DTYPES[kind], str(value[5]).split(":")[0]
    steps = tuple(stride) if len(stride) == len(sizes) else contiguous_stride(sizes)
    # 0-dim, on the CPU beside tensors of the GPU: a Python number that the dispatcher wrapped.
    number = sizes == () and device == "cpu" and on_gpu and dtype in ("float64", "int64", "bool")
    return TensorArg(
        dtype=dtype,
        shape=sizes,
        stride=steps,
        device=device,
        align_bytes=int(value[2]) * int(value[4]) % 16,
        number=number,
    )


# Schema text ----------------------------------------------------------------------------------------------------


def _plain_type(kind: str) -> str:
    """`Tensor(a!)[]` -> `Tensor[]`, `SymInt[2]` -> `int[]`."""
    plain = re.sub(r"\[\d*\]", "[]", ALIAS.sub("", kind.strip()))
    return plain.replace("SymInt", "int").replace("__torch__.", "")


def _until_closed(text: str, start: int) -> str:
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return text[start:place]
    raise Unresolved(f"a schema without an end: {text[:80]!r}")


def _split(text: str) -> list[str]:
    """Parts between commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]
