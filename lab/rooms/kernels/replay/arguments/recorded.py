"""The dispatch recorder's calls as arguments of a replay: exact overload, every argument, ranges of integers.

The recorder saw another pass of the same generation. Without an execution trace (torch 1.12) it is the only
complete source; beside an execution trace it adds the ranges of integer tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lab.perfmodel.dtypes import ITEM_BYTES
from lab.rooms.kernels.replay.args import FLOATS, Arg, TensorArg
from lab.rooms.kernels.replay.arguments.schemas import Unresolved, with_bounds
from lab.rooms.kernels.schema import Arg as RecordedArg
from lab.rooms.kernels.schema import RecordedOp

# Numbers of dtypes, layouts and memory formats in c10 (ScalarType.h, Layout.h, MemoryFormat.h).
DTYPE_NUMBERS = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "bfloat16": 15,
    "float8_e5m2": 23,
    "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25,
    "float8_e4m3fnuz": 26,
}
NAMED = {
    "dtype": DTYPE_NUMBERS,
    "layout": {"strided": 0},
    "memory_format": {
        "contiguous_format": 0,
        "preserve_format": 1,
        "channels_last": 2,
        "channels_last_3d": 3,
    },
}
TYPES = {
    "device": "Device",
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "bools": "bool[]",
    "ints": "int[]",
    "floats": "float[]",
}


def arguments(op: RecordedOp) -> tuple[Arg, ...]:
    """The call's arguments. Raises Unresolved for an argument that a replay cannot rebuild."""
    on_gpu = any(str(tensor.device).startswith("cuda") for arg in op.args for tensor in _tensors(arg))
    return with_bounds(op.name, tuple(_arg(op, arg, on_gpu and "copy" not in op.name) for arg in op.args))


def tensor_slots(args: Sequence[RecordedArg]) -> tuple[tuple[int, int], ...]:
    """[storage, offset] of each tensor, lists flattened; storage -1 if unknown."""
    return tuple(
        (-1 if tensor.storage is None else tensor.storage, tensor.offset)
        for arg in args
        for tensor in _tensors(arg)
    )


def shapes(op: RecordedOp) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape or ()) for arg in op.outs for tensor in _tensors(arg))


def with_ranges(args: tuple[Arg, ...], op: RecordedOp) -> tuple[Arg, ...]:
    """The same arguments with the ranges that the recorder saw in integer tensors of the same shape."""
    recorded = {arg.name: arg for arg in op.args}
    return tuple(_ranged(arg, recorded[arg.name]) if arg.name in recorded else arg for arg in args)


def _ranged(arg: Arg, recorded: RecordedArg) -> Arg:
    if arg.tensor is not None:
        tensor = _with_range(arg.tensor, recorded)
        return arg if tensor is arg.tensor else msgspec.structs.replace(arg, tensor=tensor, src="ranged")
    if arg.tensors and recorded.items and len(arg.tensors) == len(recorded.items):
        tensors = tuple(
            _with_range(tensor, recorded_item) if tensor and recorded_item else tensor
            for tensor, recorded_item in zip(arg.tensors, recorded.items, strict=True)
        )
        return arg if tensors == arg.tensors else msgspec.structs.replace(arg, tensors=tensors, src="ranged")
    return arg


def _with_range(tensor: TensorArg, recorded: RecordedArg) -> TensorArg:
    whole_numbers = tensor.dtype not in FLOATS and tensor.dtype != "bool" and not tensor.number
    if recorded.range is None or not whole_numbers or list(tensor.shape) != recorded.shape:
        return tensor
    return msgspec.structs.replace(tensor, low=recorded.range[0], high=recorded.range[1])


def _arg(op: RecordedOp, arg: RecordedArg, numbers: bool) -> Arg:
    src = "default" if arg.src == "default" else "recorded"
    if arg.kind == "tensor":
        tensor = _tensor(arg, numbers)
        ranged = tensor.high is not None and not tensor.number
        return Arg(
            name=arg.name,
            type="Tensor",
            tensor=tensor,
            src="synthetic" if tensor.number else "ranged" if ranged else src,
        )
    if arg.kind == "tensors":
        tensors = tuple(_tensor(item, False) if item else None for item in arg.items or ())
        optional = arg.name == "indices" or None in tensors
        ranged = any(tensor and tensor.high is not None for tensor in tensors)
        return Arg(
            name=arg.name,
            type="Tensor?[]" if optional else "Tensor[]",
            tensors=tensors,
            src="ranged" if ranged else src,
        )
    if arg.kind in ("none", "generator"):
        return Arg(name=arg.name, src=src)
    if arg.kind in NAMED:
        if arg.value not in NAMED[arg.kind]:
            raise Unresolved(f"{arg.kind} {arg.value!r} cannot be rebuilt")
        return Arg(name=arg.name, type="int", value=NAMED[arg.kind][arg.value], src=src)
    if arg.kind in ("other", "complex"):
        raise Unresolved(f"the recorder could not describe the argument {arg.name!r}")
    return Arg(name=arg.name, type=TYPES[arg.kind], value=arg.value, src=src)


def _tensor(arg: RecordedArg, numbers: bool) -> TensorArg:
    if arg.dtype not in ITEM_BYTES or arg.stride is None:
        raise Unresolved(f"tensors of type {arg.dtype!r} or without strides cannot be rebuilt")
    shape, device = tuple(arg.shape or ()), str(arg.device).split(":")[0]
    number = numbers and shape == () and device == "cpu" and arg.dtype in ("float64", "int64", "bool")
    keeps = arg.range is not None and arg.dtype not in FLOATS and arg.dtype != "bool"
    low, high = arg.range if keeps and arg.range else (None, None)
    return TensorArg(
        dtype=arg.dtype,
        shape=shape,
        stride=tuple(arg.stride),
        device=device,
        low=low,
        high=high,
        number=number,
        align_bytes=arg.offset * ITEM_BYTES[arg.dtype] % 16,
    )


def _tensors(arg: RecordedArg) -> list[RecordedArg]:
    return [arg] if arg.kind == "tensor" else [item for item in arg.items or () if item]
