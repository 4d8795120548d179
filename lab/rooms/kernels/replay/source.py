"""From recordings to a ReplayPlan: which op owns each launch, and what it was called with.

A launch belongs to the innermost op around it (External id; on torch 1.12 correlation, then the op around the runtime
call). Arguments come from the execution trace where its node joins by record-function id, else from the trace itself.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError
from lab.rooms.kernels.catalogue.execution_trace import Node, read_execution_trace, read_json_bytes
from lab.rooms.kernels.replay.args import (
    Arg,
    Call,
    Forward,
    Launch,
    Origin,
    Orphan,
    RawArgs,
    ReplayPlan,
    Signature,
)
from lab.rooms.kernels.replay.resolve import HOLE, Unresolved, from_node
from lab.rooms.kernels.schema import RecordedOp

KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
OPS = ("cpu_op", "operator")
RUNTIME = ("cuda_runtime", "runtime", "cuda_driver", "hip_runtime")
FORWARD = re.compile(r"(prefill|decode)(?:_(\d+))?\Z")
# Ops that no one can call alone, or that only wrap others: their parent is replayed in their place.
CLIMB = re.compile(r"aten::_(flash|efficient|cudnn)_attention_(forward|backward)\Z")
COLLECTIVES = re.compile(r"nccl|rccl|all_?reduce.*kernel", re.IGNORECASE)
# Leaf ops of a CPU recording that move no data.
NO_WORK = re.compile(
    r"aten::(_?(unsafe_)?view\w*|as_strided|_reshape_alias|empty\w*|detach\w*|alias|expand|permute|transpose|t|select"
    r"|slice|unsqueeze|squeeze|split\w*|chunk|unbind|narrow|unfold|resize_|set_|is_\w+|item|numpy_T|lift_fresh|diagonal"
    r"|result_type|can_cast|_has\w*|record_stream|size|stride|dim|to|_assert\w*|resolve_\w+)\Z"
)

# What other ops call for themselves: no work of its own beside them.
HELPERS = re.compile(
    r"aten::(copy_|_to_copy|clone|contiguous|fill_|zero_|reshape|expand_as|resolve_conj|lift_fresh)\Z"
)


class _Args(msgspec.Struct, gc=False):
    external_id: int = msgspec.field(name="External id", default=-1)
    rf_id: int = msgspec.field(name="Record function id", default=-1)
    correlation: int = -1
    device: int | str = -1
    stream: int | str = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    smem: int = msgspec.field(name="shared memory", default=0)
    bytes_: int | str = msgspec.field(name="bytes", default=-1)
    types: tuple[str, ...] | None = msgspec.field(name="Input type", default=None)
    dims: tuple[Any, ...] = msgspec.field(name="Input Dims", default=())
    strides: tuple[Any, ...] = msgspec.field(name="Input Strides", default=())
    concrete: tuple[str, ...] = msgspec.field(name="Concrete Inputs", default=())


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"")


class _Document(msgspec.Struct):
    events: tuple[_Event, ...] = msgspec.field(name="traceEvents")
    devices: list[dict[str, Any]] = msgspec.field(name="deviceProperties", default_factory=list)


class _Op(msgspec.Struct):
    """An op of the trace, its parent as a place in the list of ops."""

    event: _Event
    args: _Args
    parent: int = -1
    children: int = 0


def read_plan(
    trace: Path,
    execution_trace: Path | None = None,
    recorded_ops: Path | None = None,
    *,
    run: str = "",
    state: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    torch_version: str = "",
) -> ReplayPlan:
    """Everything a replay of `trace` needs. Raises MissingError and BadDataError for what cannot be read."""
    document = decode_trace(trace)
    ops, gpu, runtime, marks = _sorted_out(document.events)
    if not ops:
        raise BadDataError(
            "the trace holds no ops: nothing says what launched its kernels",
            where=trace,
            fix="record CPU and CUDA activities together, with record_shapes",
        )
    nodes = read_execution_trace(execution_trace) if execution_trace else {}
    _nest(ops)
    recorder = _Recorder(ops, marks, recorded_ops)
    book = _Book(ops, nodes, recorder)
    owners = _gather(ops, recorder.lifted(_owners(ops, gpu, runtime), ops, nodes)) if gpu else {}
    forwards = _Forwards(marks, ops)
    if gpu:
        book.add_launches(gpu, owners, forwards)
    else:
        book.add_leaves(forwards)
    device = document.devices[0] if document.devices else {}
    origin = Origin(
        recorder=str(recorded_ops or ""),
        trace=str(trace),
        execution_trace=str(execution_trace or ""),
        run=run,
        torch_version=torch_version,
        device_name=str(device.get("name", "")),
        num_sms=int(device.get("numSms", 0)),
        has_kernels=bool(gpu),
        model=str((config or {}).get("model", "")),
    )
    return ReplayPlan(
        origin=origin,
        forwards=forwards.finished(book.calls, bool(gpu)),
        signatures=tuple(book.signatures),
        calls=tuple(book.calls),
        orphans=tuple(book.orphans),
        state=state or {},
        config=config or {},
        notes=tuple(_notes(book, nodes, execution_trace, recorded_ops)),
    )


def working_ops(trace: Path) -> list[int]:
    """External ids of a CPU recording's ops that stand in for launches."""
    ops = _sorted_out(decode_trace(trace).events)[0]
    _nest(ops)
    return [ops[place].args.external_id for place in _working(ops)]


def _working(ops: list[_Op]) -> list[int]:
    """Ops that do the work: outermost ones without another inside, but for copies and fills they make for themselves."""
    heavy = [_can_work(op) and not HELPERS.match(op.event.name) for op in ops]
    holds = [False] * len(ops)
    for place in range(len(ops) - 1, -1, -1):  # children come after their parents
        if ops[place].parent >= 0 and (heavy[place] or holds[place]):
            holds[ops[place].parent] = True
    inside, found = [False] * len(ops), []
    for place, op in enumerate(ops):
        inside[place] = op.parent >= 0 and inside[op.parent]
        if not inside[place] and _can_work(op) and not holds[place]:
            inside[place] = True
            found.append(place)
    return found


def _can_work(op: _Op) -> bool:
    return "::" in op.event.name and not NO_WORK.match(op.event.name)


def decode_trace(trace: Path) -> _Document:
    data = read_json_bytes(trace, "trace")
    try:
        return msgspec.json.decode(data, type=_Document)
    except msgspec.DecodeError as error:
        raise BadDataError(
            f"not a readable Kineto trace: {error}",
            where=trace,
            fix="name a trace that torch.profiler wrote; record it again if it was cut",
        ) from error


def _sorted_out(
    events: Iterable[_Event],
) -> tuple[list[_Op], list[tuple[_Event, _Args]], dict[int, _Event], list[_Event]]:
    """Ops by start, GPU work by start, runtime calls by correlation, marks of forwards."""
    ops, gpu, runtime, marks = [], [], {}, []
    for event in events:
        if event.ph != "X":
            continue
        category = event.cat.lower()
        if category in OPS:
            ops.append(_Op(event, event_args(event)))
        elif category in KINDS:
            gpu.append((event, event_args(event)))
        elif category in RUNTIME:
            runtime[event_args(event).correlation] = event
        elif category == "user_annotation" and FORWARD.match(event.name):
            marks.append(event)
    ops.sort(key=lambda op: (op.event.ts, -op.event.dur, op.args.external_id))
    gpu.sort(key=lambda pair: (pair[0].ts, pair[1].correlation))
    return ops, gpu, runtime, marks


_ARGS = msgspec.json.Decoder(_Args)
_LOOSE = msgspec.json.Decoder(_Args, strict=False)


def event_args(event: _Event) -> _Args:
    if not bytes(event.args):
        return _Args()
    try:
        return _ARGS.decode(event.args)
    except msgspec.ValidationError:
        return _loose(event)


def _loose(event: _Event) -> _Args:
    """Arguments of which some are numbers written as text, as ROCm does."""
    try:
        return _LOOSE.decode(event.args)
    except msgspec.DecodeError as error:
        raise BadDataError(f"the arguments of {event.name!r} do not fit: {error}") from error


def _nest(ops: list[_Op]) -> None:
    """Set each op's parent: the innermost one of its thread that contains it."""
    open_by_thread: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for place, op in enumerate(ops):
        stack = open_by_thread[(op.event.pid, op.event.tid)]
        end = op.event.ts + op.event.dur
        while stack and ops[stack[-1]].event.ts + ops[stack[-1]].event.dur < end - 1e-6:
            stack.pop()
        if stack:
            op.parent = stack[-1]
            ops[stack[-1]].children += 1
        stack.append(place)


def _owners(
    ops: list[_Op], gpu: Sequence[tuple[_Event, _Args]], runtime: dict[int, _Event]
) -> dict[int, int]:
    """GPU event -> op, as places in both lists; launches that no op owns are absent."""
    by_id = {op.args.external_id: place for place, op in enumerate(ops) if op.args.external_id >= 0}
    threads: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for place, op in enumerate(ops):
        threads[(op.event.pid, op.event.tid)].append(place)
    found = {}
    for place, (_, args) in enumerate(gpu):
        owner = by_id.get(args.external_id, -1)
        if owner < 0 and args.correlation in runtime:
            owner = _around(ops, threads, runtime[args.correlation])
        if owner >= 0:
            found[place] = _climb(ops, owner)
    return found


def _around(ops: list[_Op], threads: dict[tuple[Any, Any], list[int]], call: _Event) -> int:
    """The innermost op of the call's thread that runs when the call begins, or -1."""
    places = threads.get((call.pid, call.tid), [])
    at = bisect_right(places, call.ts, key=lambda place: ops[place].event.ts) - 1
    place = places[at] if at >= 0 else -1
    while place >= 0 and ops[place].event.ts + ops[place].event.dur < call.ts:
        place = ops[place].parent
    return place


def _climb(ops: list[_Op], place: int) -> int:
    """Up to an op that can be called by itself."""
    while ops[place].parent >= 0 and (
        CLIMB.match(ops[place].event.name) or "::" not in ops[place].event.name
    ):
        place = ops[place].parent
    return place


def _gather(ops: list[_Op], owners: dict[int, int]) -> dict[int, int]:
    """An op that launches takes in what the ops inside it launch: calling it launches all of them again."""
    launching, top = set(owners.values()), {}
    for owner in launching:
        best, place = owner, ops[owner].parent
        while place >= 0:
            best, place = (place if place in launching else best), ops[place].parent
        top[owner] = best
    return {launch: top[owner] for launch, owner in owners.items()}


class _Recorder:
    """The recorder's calls beside the trace's ops; empty without its file."""

    def __init__(self, ops: list[_Op], marks: list[_Event], path: Path | None) -> None:
        self.calls: list[RecordedOp] = []
        self._of = [-1] * len(ops)
        if path is not None:
            # Imported here: aligning needs numpy, and a trace alone does not.
            from lab.rooms.kernels.replay import recorded as replay_recorded

            self.calls = replay_recorded.read_recorded(path)
            self._of = replay_recorded.joined(ops, sorted(marks, key=lambda mark: mark.ts), self.calls)

    def call(self, place: int) -> RecordedOp | None:
        """The recorded call that an op of the trace stands for."""
        return self.calls[self._of[place]] if self._of[place] >= 0 else None

    def lifted(self, owners: dict[int, int], ops: list[_Op], nodes: dict[int, Node]) -> dict[int, int]:
        """Without an execution trace, launches go to the recorded op around their owner: only its arguments are known."""
        if nodes or not self.calls:
            return owners
        return {launch: self._up(owner, ops) for launch, owner in owners.items()}

    def _up(self, owner: int, ops: list[_Op]) -> int:
        place = owner
        while place >= 0 and self._of[place] < 0:
            place = ops[place].parent
        return place if place >= 0 else owner


class _Forwards:
    """The marked forwards, by the host's time; without marks one span holds all."""

    def __init__(self, marks: list[_Event], ops: list[_Op]) -> None:
        self.marks = sorted(marks, key=lambda mark: mark.ts)
        self._starts = [mark.ts for mark in self.marks]
        self.outside = len(self.marks)  # the place of what lies between marks, or of everything
        self._span = (ops[0].event.ts, max(op.event.ts + op.event.dur for op in ops))

    def at(self, ts: float) -> int:
        place = bisect_right(self._starts, ts) - 1
        if place >= 0 and ts <= self.marks[place].ts + self.marks[place].dur:
            return place
        return self.outside

    def finished(self, calls: Sequence[Call], on_gpu: bool) -> tuple[Forward, ...]:
        """Names, phases, and the union of the GPU's work that each span launched."""
        spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for call in calls:
            spans[call.forward] += [(ts, ts + dur) for ts, dur in zip(call.ts_us, call.dur_us, strict=True)]
        named = [(mark.name, FORWARD.match(mark.name)[1], mark.dur) for mark in self.marks]  # type: ignore[index]
        rest = ("between", "between", 0.0) if self.marks else ("all", "all", self._span[1] - self._span[0])
        return tuple(
            Forward(
                name=name,
                phase=phase,
                wall_us=round(wall, 3),
                busy_us=round(_covered(spans[place]), 3) if on_gpu else 0.0,
            )
            for place, (name, phase, wall) in enumerate([*named, rest])
        )


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of [start, end) spans."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


class _Book:
    """Signatures and calls as they come; equal calls share a signature."""

    def __init__(self, ops: list[_Op], nodes: dict[int, Node], recorder: _Recorder) -> None:
        self._ops, self._nodes, self._recorder = ops, nodes, recorder
        self._places: dict[bytes, int] = {}
        self.signatures: list[Signature] = []
        self.calls: list[Call] = []
        self.orphans: list[Orphan] = []

    def add_launches(
        self, gpu: Sequence[tuple[_Event, _Args]], owners: dict[int, int], forwards: _Forwards
    ) -> None:
        """Group launches by the op that owns them; collectives and launches without op are orphans."""
        groups: dict[int, list[int]] = defaultdict(list)
        for place, (event, args) in enumerate(gpu):
            owner = owners.get(place, -1)
            reason = _why_orphan(event.name, self._ops[owner] if owner >= 0 else None)
            if reason:
                self.orphans.append(Orphan(launch_of(event, args), event.dur, reason))
            else:
                groups[owner].append(place)
        for owner, places in sorted(groups.items()):
            events = [gpu[place] for place in places]
            launches = tuple(launch_of(event, args) for event, args in events)
            self._add(owner, launches, events, forwards.at(self._ops[owner].event.ts))

    def add_leaves(self, forwards: _Forwards) -> None:
        """Without a GPU: every op that works on data, its own time in place of a kernel's."""
        whole = {place: place for place in _working(self._ops)}
        for place in sorted(set(self._recorder.lifted(whole, self._ops, self._nodes).values())):
            event = self._ops[place].event
            self._add(place, (), [(event, self._ops[place].args)], forwards.at(event.ts))

    def _add(
        self, owner: int, launches: tuple[Launch, ...], events: Sequence[tuple[_Event, _Args]], forward: int
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
                stream=_number(events[0][1].stream),
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

    def _told(self, owner: int) -> _Told:
        """What the better sources say of one op; without any, why."""
        op, call = self._ops[owner], self._recorder.call(owner)
        node = self._nodes.get(op.args.rf_id)
        try:
            if node is not None and node.name == op.event.name and node.op_schema:
                return _from_execution_trace(node, call)
            if call is not None and not self._nodes:
                return _from_recorder(call)
        except Unresolved as why:
            return _Told(reason=str(why))
        return _Told()


class _Told(msgspec.Struct, kw_only=True):
    """An op's overload, arguments and memory from a source better than the trace; all empty where there is none."""

    op: str = ""
    overload: str | None = None
    args: tuple[Arg, ...] | None = None
    ins: tuple[tuple[int, int], ...] = ()
    outs: tuple[tuple[int, int], ...] = ()
    shapes: tuple[tuple[int, ...], ...] | None = None
    origin: str = "trace"
    reason: str = ""


def _from_execution_trace(node: Node, call: RecordedOp | None) -> _Told:
    schema, args = from_node(node.op_schema, node.inputs)
    if call is not None and call.name == schema.name and call.overload == schema.overload:
        from lab.rooms.kernels.replay.recorded import with_ranges

        args = with_ranges(args, call)
    return _Told(
        overload=schema.overload,
        args=args,
        ins=tensor_places(node.inputs),
        outs=tensor_places(node.outputs),
        shapes=out_shapes(node.outputs),
        origin="execution_trace",
    )


def _from_recorder(call: RecordedOp) -> _Told:
    from lab.rooms.kernels.replay.recorded import arguments, places, shapes

    return _Told(
        op=call.name,
        overload=call.overload,
        args=arguments(call),
        ins=places(call.args),
        outs=places(call.outs),
        shapes=shapes(call),
        origin="recorder",
    )


def _raw(op: _Op, reason: str) -> tuple[RawArgs | None, str]:
    if op.args.types is None:
        return None, reason or "the trace holds no argument types: record with record_shapes=True"
    found = op.args
    return RawArgs(found.types or (), found.dims, found.strides, found.concrete), reason


def _why_orphan(name: str, op: _Op | None) -> str:
    if COLLECTIVES.search(name):
        return "a collective: replayed apart, by size"
    if op is None:
        return "no op owns it"
    return "" if "::" in op.event.name else f"launched by {op.event.name!r}, which is no registered op"


def launch_of(event: _Event, args: _Args) -> Launch:
    return Launch(
        name=event.name,
        kind=KINDS[event.cat.lower()],
        grid=args.grid,
        block=args.block,
        smem_bytes=args.smem,
        bytes=_number(args.bytes_),
    )


def _number(value: int | str) -> int:
    return value if isinstance(value, int) else int(value) if value.lstrip("-").isdecimal() else -1


def tensor_places(side: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """[storage id, offset] of each tensor among a node's inputs or outputs, lists flattened."""
    found: list[tuple[int, int]] = []
    for value, kind in zip(side.get("values", []), side.get("types", []), strict=False):
        if str(kind).startswith("Tensor(") and HOLE not in str(kind):
            found.append((int(value[1]), int(value[2])))
        elif "List[" in str(kind) and "Tensor(" in str(kind):
            there = [one for one in value if isinstance(one, list) and len(one) == 6 and one[5]]
            found += [(int(one[1]), int(one[2])) for one in there]
    return tuple(found)


def out_shapes(side: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The shape of each tensor among a node's outputs, lists flattened."""
    found: list[tuple[int, ...]] = []
    for shape, kind in zip(side.get("shapes", []), side.get("types", []), strict=False):
        if str(kind).startswith("Tensor("):
            found.append(tuple(shape))
        elif "Tensor(" in str(kind):
            found += [tuple(one) for one in shape]
    return tuple(found)


def flat_tensors(args: Iterable[Arg]) -> list[Any]:
    """The TensorArgs among `args` in the order of `tensor_places`."""
    found: list[Any] = []
    for arg in args:
        found += [arg.tensor] if arg.tensor else [one for one in arg.tensors or () if one]
    return found


def _notes(book: _Book, nodes: dict[int, Node], path: Path | None, recorded: Path | None) -> list[str]:
    if path is None and recorded is not None:
        return [
            "no execution trace: arguments come from the dispatch recorder, which saw another pass of the same run"
        ]
    if path is None:
        return ["no execution trace: overloads are inferred, and which tensors share memory is not known"]
    joined = sum(1 for signature in book.signatures if signature.args is not None)
    if joined == 0 and nodes:
        raise BadDataError(
            "no op of the trace joins a node of the execution trace: they are of different runs",
            where=path,
            fix="give the execution trace that was recorded together with this trace",
        )
    return []
