"""Distinct calls of a recording, with the calls that share them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from lab.rooms.kernels.catalogue.execution_trace import Node
from lab.rooms.kernels.replay.args import Call, Launch, Orphan, Signature
from lab.rooms.kernels.replay.arguments.described import Described, from_execution_trace, from_recorder
from lab.rooms.kernels.replay.arguments.schemas import Unresolved
from lab.rooms.kernels.replay.calls.cpu_ops import working
from lab.rooms.kernels.replay.calls.forwards import ForwardSpans
from lab.rooms.kernels.replay.calls.inductor import InductorKernels, is_inductor
from lab.rooms.kernels.replay.calls.owners import COLLECTIVE, why_orphan
from lab.rooms.kernels.replay.calls.recorded_calls import RecordedCalls
from lab.rooms.kernels.replay.calls.recording import GpuWork, Op


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
        work: Sequence[GpuWork],
        owners: Mapping[int, int],
        forwards: ForwardSpans,
    ) -> None:
        """Group launches by the op that owns them; collectives and launches without op are orphans."""
        groups: dict[int, list[int]] = defaultdict(list)
        for index, row in enumerate(work):
            owner = owners.get(index, -1)
            reason = why_orphan(row.launch.name, self._ops[owner] if owner >= 0 else None)
            if row.replayed:
                reason = "a graph replayed it: replay an eager trace of the same model"
            reason = reason or self._why_not(self._ops[owner])
            if reason:
                self.orphans.append(Orphan(row.launch, row.dur_us, reason))
            else:
                groups[owner].append(index)
        for owner, indices in sorted(groups.items()):
            rows = [work[index] for index in indices]
            launches = tuple(row.launch for row in rows)
            times = [(row.start_us, row.dur_us) for row in rows]
            self._add(owner, launches, times, forwards.at(self._ops[owner].start_us), rows[0].stream)

    def _why_not(self, op: Op) -> str:
        """Why an Inductor kernel cannot be replayed; "" for other ops."""
        if self._inductor is None or not is_inductor(op.name):
            return ""
        return self._inductor.reason(op)

    def add_leaves(self, forwards: ForwardSpans) -> None:
        """Without a GPU: every op that works on data, with its own time instead of a kernel's."""
        leaves = {op: op for op in working(self._ops)}
        if self._recorder.calls and not self._nodes:
            leaves = self._recorder.recorded_owners(leaves)
        for index in sorted(set(leaves.values())):
            op = self._ops[index]
            if op.name.startswith("c10d::"):
                self.orphans.append(Orphan(Launch(name=op.name, kind="cpu_op"), op.dur_us, COLLECTIVE))
                continue
            self._add(index, (), [(op.start_us, op.dur_us)], forwards.at(op.start_us))

    def _add(
        self,
        owner: int,
        launches: tuple[Launch, ...],
        times_us: Sequence[tuple[float, float]],
        forward: int,
        stream: int = 0,
    ) -> None:
        described = self._describe(owner)
        call = Call(
            sig=self._signature(self._ops[owner], launches, described),
            forward=forward,
            dur_us=tuple(dur_us for _, dur_us in times_us),
            ts_us=tuple(start_us for start_us, _ in times_us),
            ins=described.ins,
            outs=described.outs,
            stream=stream,
        )
        self.calls.append(call)

    def _signature(self, op: Op, launches: tuple[Launch, ...], described: Described) -> int:
        """Index of the signature of a call, added if it is new."""
        raw = op.raw if described.args is None else None
        key = msgspec.json.encode((op.name, described.overload, described.args, raw, launches))
        index = self._index.setdefault(key, len(self.signatures))
        if index < len(self.signatures):
            return index
        reason = ""
        if described.args is None and raw is None:
            reason = described.reason or "the trace has no argument types: record with record_shapes=True"
        signature = Signature(
            sig_id=hashlib.sha256(key).hexdigest()[:12],
            op=described.op or op.name,
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
        node = self._nodes.get(op.rf_id)
        try:
            if self._inductor is not None and is_inductor(op.name):
                return self._inductor.describe(op)
            if node is not None and node.name == op.name and node.op_schema:
                return from_execution_trace(node, call)
            if call is not None and not self._nodes:
                return from_recorder(call)
        except Unresolved as why:
            return Described(reason=str(why))
        return Described()
