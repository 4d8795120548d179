"""An op's overload, arguments and memory, from a better source than the trace."""

from __future__ import annotations

import msgspec

from lab.rooms.kernels.catalogue.execution_trace import Node
from lab.rooms.kernels.replay.args import Arg
from lab.rooms.kernels.replay.arguments import recorded
from lab.rooms.kernels.replay.arguments.from_node import from_node, out_shapes, tensor_slots
from lab.rooms.kernels.schema import RecordedOp


class Described(msgspec.Struct, kw_only=True):
    """What a better source says of one op, or the reason why it cannot; all empty without such a source."""

    op: str = ""
    overload: str | None = None
    args: tuple[Arg, ...] | None = None
    ins: tuple[tuple[int, int], ...] = ()
    outs: tuple[tuple[int, int], ...] = ()
    shapes: tuple[tuple[int, ...], ...] | None = None
    origin: str = "trace"
    reason: str = ""


def from_execution_trace(node: Node, call: RecordedOp | None) -> Described:
    """The node's arguments, with the ranges of integers that the recorder saw. Raises Unresolved."""
    schema, args = from_node(node.op_schema, node.inputs)
    if call is not None and call.name == schema.name and call.overload == schema.overload:
        args = recorded.with_ranges(args, call)
    return Described(
        overload=schema.overload,
        args=args,
        ins=tensor_slots(node.inputs),
        outs=tensor_slots(node.outputs),
        shapes=out_shapes(node.outputs),
        origin="execution_trace",
    )


def from_recorder(call: RecordedOp) -> Described:
    """Raises Unresolved."""
    return Described(
        op=call.name,
        overload=call.overload,
        args=recorded.arguments(call),
        ins=recorded.tensor_slots(call.args),
        outs=recorded.tensor_slots(call.outs),
        shapes=recorded.shapes(call),
        origin="recorder",
    )
