"""Arguments of a call as C++ expressions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lab.perfmodel.dtypes import ITEM_BYTES
from lab.rooms.kernels.replay.args import Arg, TensorArg, fill_of
from lab.rooms.kernels.tensors import extent

FILLS = {"floats": 0, "positive": 1, "bools": 2, "bounded": 3, "zeros": 4, "ones": 5}
SCALAR_TYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "float8_e4m3fnuz": "Float8_e4m3fnuz",
    "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
}


def value(op: str, arg: Arg, seed: int) -> str:
    """The C++ expression of one argument."""
    if arg.tensor is not None:
        return f"c10::IValue({_tensor(op, arg.tensor, seed)})"
    if arg.tensors is not None:
        seeds = [seed + 31 * i for i in range(len(arg.tensors))]
        pairs = zip(arg.tensors, seeds, strict=True)
        tensors = [_tensor(op, one, its_seed) if one else "c10::nullopt" for one, its_seed in pairs]
        name = "lab::optional_tensors" if arg.type == "Tensor?[]" else "lab::tensors"
        return f"{name}({{{', '.join(tensors)}}})"
    return _plain(arg)


def _plain(arg: Arg) -> str:
    base, value = arg.type.rstrip("?"), arg.value
    if value is None:
        return "c10::IValue()"
    if base == "Device":
        return f"c10::IValue(lab::device_of(o, {_bool(not str(value).startswith(('cuda', 'hip')))}))"
    if isinstance(value, list):
        return _list(base, value)
    if base == "bool" or isinstance(value, bool):
        return f"c10::IValue({_bool(bool(value))})"
    if base == "float" or isinstance(value, float) or value in ("inf", "-inf", "nan"):
        return f"c10::IValue({_double(value)})"
    if isinstance(value, int):
        return f"c10::IValue(static_cast<int64_t>({value}LL))"
    return f"c10::IValue(std::string({json.dumps(str(value))}))"


def _list(base: str, values: list[Any]) -> str:
    kinds: dict[str, tuple[str, Callable[[Any], str]]] = {
        "bool[]": ("bool", lambda item: _bool(bool(item))),
        "float[]": ("double", _double),
        "Scalar[]": (
            "at::Scalar",
            lambda item: f"at::Scalar({_double(item) if isinstance(item, float) else item})",
        ),
        "str[]": ("std::string", lambda item: json.dumps(str(item))),
    }
    kind, write = kinds.get(base, ("int64_t", lambda item: str(int(item))))
    return f"lab::list_of<{kind}>({{{', '.join(write(item) for item in values)}}})"


def _tensor(op: str, spec: TensorArg, seed: int) -> str:
    if spec.number:
        dtype = "at::kLong" if spec.dtype in ("int64", "bool") else "at::kDouble"
        return f"lab::number({dtype}, true)"
    lead = spec.align_bytes // ITEM_BYTES[spec.dtype]
    fields = (
        f"at::ScalarType::{SCALAR_TYPES[spec.dtype]}",
        _braced(spec.shape),
        _braced(spec.stride),
        str(lead),
        str(lead + extent(spec.shape, spec.stride)),
        str(seed),
        str(FILLS[fill_of(op, spec)]),
        str(spec.low or 0),
        str(spec.high or 0),
        _bool(spec.device == "cpu"),
    )
    return f"lab::make({{{', '.join(fields)}}}, o)"


def _braced(values: tuple[int, ...]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _double(value: Any) -> str:
    special = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}
    text = special.get(str(value)) or repr(float(value))
    return f"static_cast<double>({text})"
