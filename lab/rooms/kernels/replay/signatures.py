"""signatures"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from lab.rooms.kernels.catalogue.execution_trace import Node
from lab.rooms.kernels.replay.args import (
    Arg,
    Call,
    Launch,
    Orphan,
    RawArgs,
    Signature,
)
from lab.rooms.kernels.replay.cpu_ops import working
from lab.rooms.kernels.replay.forwards import ForwardSpans
from lab.rooms.kernels.replay.from_node import from_node
from lab.rooms.kernels.replay.node_tensors import out_shapes, tensor_slots
from lab.rooms.kernels.replay.owners import why_orphan
from lab.rooms.kernels.replay.recorded_calls import RecordedCalls
from lab.rooms.kernels.replay.schemas import Unresolved
from lab.rooms.kernels.replay.trace import Event, Op, TraceArgs, as_number, launch_of
from lab.rooms.kernels.schema import RecordedOp


class SignatureBook:
    """Signatures and calls as they come; equal calls share a signature."""

    def __init__(self, ops: list[Op], nodes: dict[int, Node], recorder: RecordedCalls) -> None:
        self._ops, self._nodes, self._recorder = ops, nodes, recorder
        self._places: dict[bytes, int] = {}
        self.signatures: list[Signature] = []
        self.calls: list[Call] = []
        self.orphans: list[Orphan] = []

    def add_launches(
        self, gpu: Sequence[tuple[Event, TraceArgs]], owners: dict[int, int], forwards: ForwardSpans
    ) -> None:
        """Group launches by the op that owns them; collectives and launches without op are orphans."""
        groups: dict[int, list[int]] = defaultdict(list)
        for place, (event, args) in enumerate(gpu):
            owner = owners.get(place, -1)
            reason = why_orphan(event.name, self._ops[owner] if owner >= 0 else None)
            if reason:
                self.orphans.append(Orphan(launch_of(event, args), event.dur, reason))
            else:
                groups[owner].append(place)
        for owner, places in sorted(groups.items()):
            events = [gpu[place] for place in places]
            launches = tuple(launch_of(event, args) for event, args in events)
            self._add(owner, launches, events, forwards.at(self._ops[owner].event.ts))

    def add_leaves(self, forwards: ForwardSpans) -> None:
        """Without a GPU: every op that works on data, its own time in place of a kernel's."""
        whole = {place: place for place in working(self._ops)}
        for place in sorted(set(self._recorder.lifted(whole, self._ops, self._nodes).values())):
            event = self._ops[place].event
            self._add(place, (), [(event, self._ops[place].args)], forwards.at(event.ts))

    def _add(
        self,
        owner: int,
        launches: tuple[Launch, ...],
        events: Sequence[tuple[Event, TraceArgs]],
        forward: int,
    ) -> None:
        key, signature, ins, outs = self._describe(owner, launches)
        place = self._places.setdefault(key, len(self.signatures))
        if place == len(self.signatures):
            self.signatures.append(signature)
        self.calls.append(
            Call(
                sig=place,
                forward=forward,
                dur_us=tuple(event.dur for event, _ in events),
                ts_us=tuple(round(event.ts, 3) for event, _ in events),
                ins=ins,
                outs=outs,
                stream=as_number(events[0][1].stream),
            )
        )

    def _describe(
        self, owner: int, launches: tuple[Launch, ...]
    ) -> tuple[bytes, Signature, tuple[Any, ...], tuple[Any, ...]]:
        op, told = self._ops[owner], self._told(owner)
        raw, reason = (None, "") if told.args is not None else _raw(op, told.reason)
        key = msgspec.json.encode((op.event.name, told.overload, told.args, raw, launches))
        signature = Signature(
            sig_id=hashlib.sha256(key).hexdigest()[:12],
            op=told.op or op.event.name,
            overload=told.overload,
            args=told.args,
            raw=raw,
            outs=told.shapes,
            origin=told.origin,
            launches=launches,
            reason=reason if raw is None and told.args is None else "",
        )
        return key, signature, told.ins, told.outs

    def _told(self, owner: int) -> Description:
        """What the better sources say of one op; without any, why."""
        op, call = self._ops[owner], self._recorder.call(owner)
        node = self._nodes.get(op.args.rf_id)
        try:
            if node is not None and node.name == op.event.name and node.op_schema:
                return _from_execution_trace(node, call)
            if call is not None and not self._nodes:
                return _from_recorder(call)
        except Unresolved as why:
            return Description(reason=str(why))
        return Description()


class Description(msgspec.Struct, kw_only=True):
    """An op's overload, arguments and memory from a source better than the trace; all empty where there is none."""

    op: str = ""
    overload: str | None = None
    args: tuple[Arg, ...] | None = None
    ins: tuple[tuple[int, int], ...] = ()
    outs: tuple[tuple[int, int], ...] = ()
    shapes: tuple[tuple[int, ...], ...] | None = None
    origin: str = "trace"
    reason: str = ""


def _from_execution_trace(node: Node, call: RecordedOp | None) -> Description:
    schema, args = from_node(node.op_schema, node.inputs)
    if call is not None and call.name == schema.name and call.overload == schema.overload:
        from lab.rooms.kernels.replay.recorded import with_ranges

        args = with_ranges(args, call)
    return Description(
        overload=schema.overload,
        args=args,
        ins=tensor_slots(node.inputs),
        outs=tensor_slots(node.outputs),
        shapes=out_shapes(node.outputs),
        origin="execution_trace",
    )


def _from_recorder(call: RecordedOp) -> Description:
    from lab.rooms.kernels.replay.recorded import arguments, places, shapes

    return Description(
        op=call.name,
        overload=call.overload,
        args=arguments(call),
        ins=places(call.args),
        outs=places(call.outs),
        shapes=shapes(call),
        origin="recorder",
    )


def _raw(op: Op, reason: str) -> tuple[RawArgs | None, str]:
    if op.args.types is None:
        return None, reason or "the trace holds no argument types: record with record_shapes=True"
    found = op.args
    return RawArgs(found.types or (), found.dims, found.strides, found.concrete), reason
