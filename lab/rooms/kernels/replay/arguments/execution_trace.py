"""Exact overload and arguments of a call by an execution trace (chakra JSON), whose nodes hold the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lab.core.words import plural
from lab.errors import BadDataError
from lab.rooms.kernels.replay.args import DTYPES, Arg, TensorArg, contiguous_stride
from lab.rooms.kernels.replay.arguments.schemas import (
    TENSOR_LISTS,
    Param,
    Schema,
    Unresolved,
    parse_schema,
    split_args,
    with_bounds,
)
from lab.rooms.kernels.trails import read_json


class _Attribute(msgspec.Struct, frozen=True, gc=False):
    name: str
    value: Any = None


class Node(msgspec.Struct, frozen=True):
    """One op; inputs and outputs hold values, shapes, types and (since schema 1.1.1) strides per argument."""

    id: int
    name: str
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    attrs: tuple[_Attribute, ...] = ()

    def attribute(self, name: str) -> Any:
        return next((attr.value for attr in self.attrs if attr.name == name), None)

    @property
    def op_schema(self) -> str:
        return str(self.attribute("op_schema") or "")


class ExecutionTrace(msgspec.Struct):
    schema: str
    nodes: tuple[Node, ...]


def read_execution_trace(path: Path) -> dict[int, Node]:
    """Nodes by rf_id, above 0.

    Raises MissingError, or BadDataError for a file that is truncated, foreign or too old.
    """
    try:
        document = read_json(path, ExecutionTrace)
    except BadDataError as error:
        error.fix = "record it again; an observer that is not stopped leaves a truncated file"
        raise
    nodes = {}
    for node in document.nodes:
        rf_id = node.attribute("rf_id")
        if isinstance(rf_id, int) and rf_id > 0:
            nodes[rf_id] = node
    if not nodes:
        raise BadDataError(
            f"no node of this execution trace (schema {document.schema}) has an rf_id",
            location=path,
            fix="record it with torch 2.1 or newer",
        )
    return nodes


HOLE = "nullptr"  # in the type of a missing tensor


def from_node(schema_text: str, inputs: dict[str, Any]) -> tuple[Schema, tuple[Arg, ...]]:
    """Exact overload and arguments of an execution trace's node. Raises Unresolved."""
    schema = parse_schema(schema_text)
    values, kinds = inputs.get("values", []), inputs.get("types", [])
    shapes, strides = inputs.get("shapes", []), inputs.get("strides", [])
    if not (len(schema.params) == len(values) == len(kinds) == len(shapes)):
        raise Unresolved(f"the node holds {plural(len(values), 'argument')}, its schema {len(schema.params)}")
    strides = strides if len(strides) == len(values) else [[]] * len(values)
    # Both sides of a copy are real tensors, whatever their size.
    on_gpu = any("cuda" in str(value) for value in values) and "copy" not in schema.name
    rows = zip(schema.params, values, kinds, shapes, strides, strict=True)
    args = tuple(_arg_of_node(*row, on_gpu) for row in rows)
    return schema, with_bounds(schema.name, args)


def _arg_of_node(param: Param, value: Any, kind: str, shape: Any, stride: Any, on_gpu: bool) -> Arg:
    common: dict[str, Any] = {"name": param.name, "type": param.type, "kwarg_only": param.kwarg_only}
    if kind.startswith("Tensor(") and HOLE in kind:
        return Arg(**common)
    if kind.startswith("Tensor("):
        tensor = _node_tensor(value, kind[7:-1], shape, stride, on_gpu)
        return Arg(**common, tensor=tensor, src="synthetic" if tensor.number else "recorded")
    if kind.startswith("GenericList[") and "Tensor(" in kind:
        kinds = split_args(kind[12:-1])
        steps = stride if len(stride) == len(value) else [[]] * len(value)
        tensors = tuple(
            _node_tensor(item, item_kind[7:-1], size, step, False)
            if item_kind.startswith("Tensor(") and HOLE not in item_kind
            else None
            for item, item_kind, size, step in zip(value, kinds, shape, steps, strict=True)
        )
        return Arg(**common, tensors=tensors)
    if kind == "GenericList[]" and param.type in TENSOR_LISTS:
        return Arg(**common, tensors=())
    if kind in ("None", "NoneType", "Generator") or value == "<None>":
        return Arg(**common)
    return Arg(**common, value=value)


def _node_tensor(value: Any, kind: str, shape: Any, stride: Any, on_gpu: bool) -> TensorArg:
    """[tensor id, storage id, offset, numel, itemsize, device] with its dtype, sizes and steps."""
    if kind not in DTYPES:
        raise Unresolved(f"tensors of type {kind!r} cannot be rebuilt")
    if not isinstance(value, list) or len(value) != 6:
        raise Unresolved(
            "a tensor of the execution trace is not [id, storage, offset, numel, itemsize, device]"
        )
    sizes, dtype, device = tuple(shape), DTYPES[kind], str(value[5]).split(":")[0]
    steps = tuple(stride) if len(stride) == len(sizes) else contiguous_stride(sizes)
    # 0-dim on the CPU, beside tensors on the GPU: a Python number that the dispatcher wrapped.
    number = sizes == () and device == "cpu" and on_gpu and dtype in ("float64", "int64", "bool")
    return TensorArg(
        dtype=dtype,
        shape=sizes,
        stride=steps,
        device=device,
        align_bytes=int(value[2]) * int(value[4]) % 16,
        number=number,
    )


def tensor_slots(side: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """[storage id, offset] of each tensor among a node's inputs or outputs, lists flattened."""
    slots: list[tuple[int, int]] = []
    for value, kind in zip(side.get("values", []), side.get("types", []), strict=False):
        if str(kind).startswith("Tensor(") and HOLE not in str(kind):
            slots.append((int(value[1]), int(value[2])))
        elif "List[" in str(kind) and "Tensor(" in str(kind):
            tensors = [part for part in value if isinstance(part, list) and len(part) == 6 and part[5]]
            slots += [(int(tensor[1]), int(tensor[2])) for tensor in tensors]
    return tuple(slots)


def out_shapes(side: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The shape of each tensor among a node's outputs, lists flattened."""
    shapes: list[tuple[int, ...]] = []
    for shape, kind in zip(side.get("shapes", []), side.get("types", []), strict=False):
        if str(kind).startswith("Tensor("):
            shapes.append(tuple(shape))
        elif "Tensor(" in str(kind):
            shapes += [tuple(one) for one in shape]
    return tuple(shapes)
