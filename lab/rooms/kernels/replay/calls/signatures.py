"""An op's overload, arguments and memory, from a better source than the trace."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from lab.perfmodel.classes import kernel_class
from lab.recordings.compiled import is_inductor
from lab.rooms.kernels.catalogue.rank import RankData, mark_of
from lab.rooms.kernels.replay.args import Arg, Call, Launch, Orphan, RawArgs, Signature
from lab.rooms.kernels.replay.arguments import recorded
from lab.rooms.kernels.replay.arguments.execution_trace import Node, from_node, out_shapes, tensor_slots
from lab.rooms.kernels.replay.arguments.schemas import Unresolved
from lab.rooms.kernels.replay.calls.launches import launches_of
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


COLLECTIVE = "a collective: it needs the other ranks, and a replay is one process"
REPLAYED = "a graph replayed it: replay an eager trace of the same model"
# Ops that cannot be called by themselves: the op around them is replayed instead.
INTERNAL = re.compile(r"aten::_(flash|efficient|cudnn)_attention_(forward|backward)\Z")
_ARGUMENTS = ("types_id", "dims_id", "strides_id", "concrete_id")


class SignatureBook:
    """Signatures and calls in the order of the recording; equal calls share a signature.

    Ops are rows of the trace's operators.
    """

    def __init__(self, rank: RankData, nodes: dict[int, Node]) -> None:
        self._rank, self._nodes = rank, nodes
        self._ops = rank.trace.operators
        self._names = rank.trace.text(self._ops.name_id).tolist()
        self._parents = rank.parent.tolist()
        self._zero_ns = rank.trace.meta.base_ns or int(self._ops.start_ns.min())
        self._marks = mark_of(self._ops.start_ns, rank.marks)
        self._index: dict[bytes, int] = {}
        self.signatures: list[Signature] = []
        self.calls: list[Call] = []
        self.orphans: list[Orphan] = []

    def add_launches(self) -> None:
        """Group launches by the op to call for them; collectives and launches without op are orphans."""
        rank, ops = self._rank, self._rank.trace.ops
        order = np.lexsort((ops.corr, ops.start_ns))
        inside = rank.replayed.inside if rank.replayed is not None else np.zeros(len(ops), dtype=bool)
        owners = [
            self._known(self._callable(owner)) if 0 <= owner < len(self._names) and not graph else -1
            for owner, graph in zip(rank.owner[order].tolist(), inside[order].tolist(), strict=True)
        ]
        outermost = self._outermost(set(owners) - {-1})
        launches = launches_of(rank.trace, order)
        start_us = ((ops.start_ns[order] - self._zero_ns) / 1000).tolist()
        dur_us, streams = (ops.dur_ns[order] / 1000).tolist(), ops.stream[order].tolist()
        groups: dict[int, list[int]] = defaultdict(list)
        for index, (launch, owner) in enumerate(zip(launches, owners, strict=True)):
            op = outermost.get(owner, -1)
            name = self._names[op] if op >= 0 else None
            reason = REPLAYED if inside[order[index]] else why_orphan(launch.name, name)
            if reason:
                self.orphans.append(Orphan(launch, dur_us[index], reason))
            else:
                groups[op].append(index)
        for op in self._by_start(groups):
            rows = groups[op]
            times_us = [(start_us[row], dur_us[row]) for row in rows]
            self._add(op, tuple(launches[row] for row in rows), times_us, streams[rows[0]])

    def add_leaves(self) -> None:
        """Without a GPU: every op that works on data, with its own time instead of a kernel's."""
        for op in self._by_start({self._known(row) for row in self._rank.rows.tolist()}):
            dur_us = float(self._ops.dur_ns[op]) / 1000
            if self._names[op].startswith("c10d::"):
                self.orphans.append(Orphan(Launch(name=self._names[op], kind="cpu_op"), dur_us, COLLECTIVE))
            else:
                self._add(op, (), [(float(self._ops.start_ns[op] - self._zero_ns) / 1000, dur_us)])

    def _callable(self, op: int) -> int:
        """The nearest op, from `op` upwards, that can be called by itself."""
        while self._parents[op] >= 0 and (INTERNAL.match(self._names[op]) or "::" not in self._names[op]):
            if is_inductor(self._names[op]):
                break
            op = self._parents[op]
        return op

    def _known(self, op: int) -> int:
        """Without an execution trace, the nearest recorded op around `op`: only its arguments are known."""
        if self._nodes or not self._rank.recorded:
            return op
        above = op
        while above >= 0 and self._rank.call[above] < 0:
            above = self._parents[above]
        return above if above >= 0 else op

    def _outermost(self, launching: set[int]) -> dict[int, int]:
        """Each op that launches -> the outermost one around it that does: calling it calls its inner ops."""
        outermost = {}
        for owner in launching:
            best, above = owner, self._parents[owner]
            while above >= 0:
                best = above if above in launching and "::" in self._names[above] else best
                above = self._parents[above]
            outermost[owner] = best
        return outermost

    def _by_start(self, rows: Any) -> list[int]:
        ops = self._ops
        return sorted(rows, key=lambda row: (ops.start_ns[row], -ops.dur_ns[row], ops.external_id[row]))

    def _add(
        self,
        op: int,
        launches: tuple[Launch, ...],
        times_us: Sequence[tuple[float, float]],
        stream: int = 0,
    ) -> None:
        described = self._describe(op)
        mark = int(self._marks[op])
        self.calls.append(
            Call(
                sig=self._signature(op, launches, described),
                forward=mark if mark >= 0 else len(self._rank.marks.names),
                dur_us=tuple(dur_us for _, dur_us in times_us),
                ts_us=tuple(start_us for start_us, _ in times_us),
                ins=described.ins,
                outs=described.outs,
                stream=stream,
            )
        )

    def _signature(self, op: int, launches: tuple[Launch, ...], described: Described) -> int:
        """Index of the signature of a call, added if it is new."""
        raw = self._raw(op) if described.args is None else None
        key = msgspec.json.encode((self._names[op], described.overload, described.args, raw, launches))
        index = self._index.setdefault(key, len(self.signatures))
        if index < len(self.signatures):
            return index
        reason = ""
        if described.args is None and raw is None:
            reason = described.reason or "the trace has no argument types: record with record_shapes=True"
        self.signatures.append(
            Signature(
                sig_id=hashlib.sha256(key).hexdigest()[:12],
                op=described.op or self._names[op],
                overload=described.overload,
                args=described.args,
                raw=raw,
                outs=described.shapes,
                origin=described.origin,
                launches=launches,
                reason=reason,
            )
        )
        return index

    def _describe(self, op: int) -> Described:
        """From the execution trace or the recorder; if neither can, a description without arguments."""
        node, call = self._nodes.get(int(self._ops.rf_id[op])), self._call(op)
        try:
            if node is not None and node.name == self._names[op] and node.op_schema:
                return from_execution_trace(node, call)
            if call is not None and not self._nodes:
                return from_recorder(call)
        except Unresolved as reason:
            return Described(reason=str(reason))
        return Described()

    def _call(self, op: int) -> RecordedOp | None:
        index = int(self._rank.call[op])
        return self._rank.recorded[index] if index >= 0 else None

    def _raw(self, op: int) -> RawArgs | None:
        """The arguments as the trace records them; None without argument types."""
        trace = self._rank.trace
        types, *texts = (trace.name(int(getattr(self._ops, name)[op])) for name in _ARGUMENTS)
        if types in ("", "null"):
            return None
        dims, strides, concrete = texts
        return RawArgs(_texts(types), _items(dims), _items(strides), _texts(concrete))


def why_orphan(kernel: str, op: str | None) -> str:
    """Why a launch cannot be replayed through its op; "" if it can."""
    if kernel_class(kernel, op or "") == "comm":
        return COLLECTIVE
    if op is None:
        return "no op owns it"
    if is_inductor(op):
        return "a kernel of torch.compile: replay an eager trace of the same model"
    return "" if "::" in op else f"launched by {op!r}, which is not a registered op"


@lru_cache(maxsize=1 << 16)
def _items(text: str) -> tuple[Any, ...]:
    items = msgspec.json.decode(text) if text else []
    return tuple(items) if isinstance(items, list) else ()


@lru_cache(maxsize=1 << 16)
def _texts(text: str) -> tuple[str, ...]:
    return tuple(item if isinstance(item, str) else str(item) for item in _items(text))
