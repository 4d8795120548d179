"""Arguments of an op as a Kineto trace records them: sizes, strides, types and literals, without names.

A trace has no devices, generators, strings or long lists: those become `other`. torch 1.12 has no scalars
either.
"""

from __future__ import annotations

import ast
import json
import re
from functools import lru_cache
from typing import Any

from lab.perfmodel.dtypes import dtype_name
from lab.rooms.kernels.replay.args import contiguous_stride
from lab.rooms.kernels.schema import Arg

_INT = re.compile(r"[+-]?\d+\Z")
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z|[+-]?(inf|nan)\Z")


@lru_cache(maxsize=1 << 16)
def args_of(dims: str, types: str, strides: str, concrete: str) -> tuple[Arg, ...]:
    """The arguments of one call from the four JSON texts of its event; () where shapes were not recorded."""
    every_dims, every_type = _list(dims), _list(types)
    every_stride, every_literal = _list(strides), _list(concrete)
    return tuple(
        _arg(
            str(kind), _at(every_dims, index), _at(every_stride, index), str(_at(every_literal, index) or "")
        )
        for index, kind in enumerate(every_type)
    )


def _arg(kind: str, dims: Any, stride: Any, literal: str) -> Arg:
    dtype = dtype_name(kind)
    if dtype is not None:
        return Arg(kind="tensor", dtype=dtype, shape=_ints(dims), stride=_ints(stride))
    if kind in ("TensorList", "Tensor[]") or (dims and isinstance(dims[0], list)):
        return Arg(kind="tensors", items=_tensors(dims, stride))
    if literal == "":
        return Arg(kind="other" if kind else "none")
    return literal_arg(literal)


def literal_arg(literal: str) -> Arg:
    """A number, bool or list from its text; anything else stays a text."""
    if literal in ("True", "False"):
        return Arg(kind="bool", value=literal == "True")
    if _INT.match(literal):
        return Arg(kind="int", value=int(literal))
    if _FLOAT.match(literal):
        special = literal.strip("+-") in ("inf", "nan")
        return Arg(kind="float", value=literal.lstrip("+") if special else float(literal))
    if literal.startswith("["):
        return _list_arg(literal)
    return Arg(kind="str", value=literal)


def _list_arg(literal: str) -> Arg:
    try:
        values = ast.literal_eval(literal)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return Arg(kind="other", value=literal[:200])
    for kind, of in (("bools", bool), ("ints", int), ("floats", (int, float))):
        if isinstance(values, list) and all(isinstance(value, of) for value in values):
            return Arg(kind=kind, value=values)
    return Arg(kind="other", value=literal[:200])


def _tensors(dims: Any, strides: Any) -> list[Arg | None]:
    """The tensors of a list: their sizes, no dtypes. Old traces record nothing of a list."""
    if not isinstance(dims, list):
        return []
    tensors: list[Arg | None] = []
    for index, sizes in enumerate(dims):
        if isinstance(sizes, list):
            stride = _at(strides if isinstance(strides, list) else [], index)
            tensors.append(Arg(kind="tensor", shape=_ints(sizes), stride=_ints(stride)))
    return tensors


def _ints(value: Any) -> list[int] | None:
    sound = isinstance(value, list) and all(isinstance(part, int) for part in value)
    return value if sound else None


def _list(text: str) -> list[Any]:
    try:
        items = json.loads(text) if text else []
    except ValueError:
        return []
    return items if isinstance(items, list) else []


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


_SHORT = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b",
}


def summary(args: tuple[Arg, ...] | list[Arg], max_chars: int = 160) -> str:
    """Arguments in one line: `f16[1,16,1024] f16[3072,1024]:1,1024 0.5`; strides only if not contiguous."""
    text = " ".join(word for word in map(_word, args) if word)
    return text if len(text) <= max_chars else text[: max_chars - 2] + " …"


def _word(arg: Arg | None) -> str:
    if arg is None or arg.kind == "none" or arg.src == "default":
        return ""
    if arg.kind == "tensor":
        dtype = _SHORT.get(arg.dtype or "", arg.dtype or "")
        sizes = ",".join(map(str, arg.shape)) if arg.shape is not None else "?"
        dense = arg.stride is None or arg.shape is None or 0 in arg.shape
        dense = dense or tuple(arg.stride or ()) == contiguous_stride(arg.shape or ())
        return f"{dtype}[{sizes}]" + ("" if dense else ":" + ",".join(map(str, arg.stride or [])))
    if arg.kind == "tensors":
        return "(" + " ".join(map(_word, arg.items or [])) + ")"
    return "" if arg.kind == "other" else str(arg.value).replace(" ", "")
