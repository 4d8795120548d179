"""Distinct calls of a recording, with the calls that share them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence

import msgspec

from lab.rooms.kernels.catalogue.execution_trace import Node
from lab.rooms.kernels.replay.args import Call, Launch, Orphan, RawArgs, Signature
from lab.rooms.kernels.replay.arguments.described import Described, from_execution_trace, from_recorder
from lab.rooms.kernels.replay.arguments.schemas import Unresolved
from lab.rooms.kernels.replay.calls.cpu_ops import working
from lab.rooms.kernels.replay.calls.forwards import ForwardSpans
from lab.rooms.kernels.replay.calls.inductor import InductorKernels, is_inductor
from lab.rooms.kernels.replay.calls.owners import COLLECTIVE, why_orphan
from lab.rooms.kernels.replay.calls.recorded_calls import RecordedCalls
from lab.rooms.kernels.replay.calls.trace import Event, Op, TraceArgs, as_number, launch_of


class SignatureBook:
    """Signatures and calls in the order they are added; equal calls share a signature."""

    def __init__(
        self,
        ops: list[Op],
        nodes: dict[int, Node],
        recorder: RecordedCalls,
        inductor: InductorKernels | None = None,
    ) -> None:
        self._ops, self._nodes, self._recorder, self._inductor = ops, nodes, recorder, inductor
        self._index: dict[bytes, int] = {}
        self.signatures: list[Signature] = []
        self.calls: list[Call] = []
        self.orphans: list[Orphan] = []

    def add_launches(
        self,
        gpu: Sequence[tuple[Event, TraceArgs]],
        owners: dict[int, int],
        forwards: ForwardSpans,
        of_graphs: Collection[int] = (),
    ) -> None:
        """Group launches by the op that owns them; collectives and launches without op are orphans."""
        groups: dict[int, list[int]] = defaultdict(list)
        for index, (event, args) in enumerate(gpu):
            owner = owners.get(index, -1)
            reason = why_orphan(event.name, self._ops[owner] if owner >= 0 else None)
            if index in of_graphs:
                reason = "a graph replayed it: replay an eager trace of the same model"
            reason = reason or self._why_not(self._ops[owner])
            if reason:
                self.orphans.append(Orphan(launch_of(event, args), event.dur, reason))
            else:
                groups[owner].append(index)
        for owner, indices in sorted(groups.items()):
            events = [gpu[index] for index in indices]
            launches = tuple(launch_of(event, args) for event, args in events)
            self._add(owner, launches, events, forwards.at(self._ops[owner].event.ts))

    def _why_not(self, op: Op) -> str:
        """Why an Inductor kernel cannot be replayed; "" for other ops."""
        if self._inductor is None or not is_inductor(op.event.name):
            return ""
        return self._inductor.reason(op)

    def add_leaves(self, forwards: ForwardSpans) -> None:
        """Without a GPU: every op that works on data, with its own time instead of a kernel's."""
        leaves = {op: op for op in working(self._ops)}
        if self._recorder.calls and not self._nodes:
            leaves = self._recorder.recorded_owners(leaves, self._ops)
        for op in sorted(set(leaves.values())):
            event = self._ops[op].event
            if event.name.startswith("c10d::"):
                launch = Launch(name=event.name, kind="cpu_op")
                self.orphans.append(Orphan(launch, event.dur, COLLECTIVE))
                continue
            self._add(op, (), [(event, self._ops[op].args)], forwards.at(event.ts))

    def _add(
        self,
        owner: int,
        launches: tuple[Launch, ...],
        events: Sequence[tuple[Event, TraceArgs]],
        forward: int,
    ) -> None:
        described = self._describe(owner)
        call = Call(
            sig=self._signature(self._ops[owner], launches, described),
            forward=forward,
            dur_us=tuple(event.dur for event, _ in events),
            ts_us=tuple(round(event.ts, 3) for event, _ in events),
            ins=described.ins,
            outs=described.outs,
            stream=as_number(events[0][1].stream),
        )
        self.calls.append(call)

    def _signature(self, op: Op, launches: tuple[Launch, ...], described: Described) -> int:
        """Index of the signature of a call, added if it is new."""
        raw = _raw(op) if described.args is None else None
        key = msgspec.json.encode((op.event.name, described.overload, described.args, raw, launches))
        index = self._index.setdefault(key, len(self.signatures))
        if index < len(self.signatures):
            return index
        reason = ""
        if described.args is None and raw is None:
            reason = described.reason or "the trace has no argument types: record with record_shapes=True"
        signature = Signature(
            sig_id=hashlib.sha256(key).hexdigest()[:12],
            op=described.op or op.event.name,
            overload=described.overload,
            args=described.args,
            raw=raw,
            outs=described.shapes,
            origin=described.origin,
            launches=launches,
            reason=reason,
        )
        self.signatures.append(signature)
        return index

    def _describe(self, owner: int) -> Described:
        """From the execution trace or the recorder; if neither can, a description without arguments."""
        op, call = self._ops[owner], self._recorder.call(owner)
        node = self._nodes.get(op.args.rf_id)
        try:
            if self._inductor is not None and is_inductor(op.event.name):
                return self._inductor.describe(op)
            if node is not None and node.name == op.event.name and node.op_schema:
                return from_execution_trace(node, call)
            if call is not None and not self._nodes:
                return from_recorder(call)
        except Unresolved as why:
            return Described(reason=str(why))
        return Described()


def _raw(op: Op) -> RawArgs | None:
    """The arguments as the trace records them; None without argument types."""
    args = op.args
    if args.types is None:
        return None
    return RawArgs(args.types, args.dims, args.strides, args.concrete)
