"""A Kineto trace as a replay reads it: ops, GPU work, runtime calls and marks of forwards."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError
from lab.rooms.kernels.catalogue.execution_trace import read_json_bytes
from lab.rooms.kernels.replay.args import Launch

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


class TraceArgs(msgspec.Struct, gc=False):
    """The `args` of an event."""

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


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"")


class Document(msgspec.Struct):
    events: tuple[Event, ...] = msgspec.field(name="traceEvents")
    devices: list[dict[str, Any]] = msgspec.field(name="deviceProperties", default_factory=list)


class Op(msgspec.Struct):
    """An op of the trace; parent is its index in the list of ops, -1 none."""

    event: Event
    args: TraceArgs
    parent: int = -1


def decode_trace(trace: Path) -> Document:
    """A Kineto trace, gzip or plain. Raises MissingError and BadDataError."""
    data = read_json_bytes(trace, "trace")
    try:
        return msgspec.json.decode(data, type=Document)
    except msgspec.DecodeError as error:
        raise BadDataError(
            f"not a readable Kineto trace: {error}",
            location=trace,
            fix="name a trace that torch.profiler wrote; record it again if it is truncated",
        ) from error


def sort_events(
    events: Iterable[Event],
) -> tuple[list[Op], list[tuple[Event, TraceArgs]], dict[int, Event], list[Event]]:
    """Ops by start, GPU work by start, runtime calls by correlation, marks of forwards."""
    ops, gpu, runtime, marks = [], [], {}, []
    for event in events:
        if event.ph != "X":
            continue
        category = event.cat.lower()
        if category in OPS:
            ops.append(Op(event, event_args(event)))
        elif category in KINDS:
            gpu.append((event, event_args(event)))
        elif category in RUNTIME:
            runtime[event_args(event).correlation] = event
        elif category == "user_annotation" and FORWARD.match(event.name):
            marks.append(event)
    ops.sort(key=lambda op: (op.event.ts, -op.event.dur, op.args.external_id))
    gpu.sort(key=lambda pair: (pair[0].ts, pair[1].correlation))
    return ops, gpu, runtime, marks


_ARGS = msgspec.json.Decoder(TraceArgs)
_LOOSE = msgspec.json.Decoder(TraceArgs, strict=False)


def event_args(event: Event) -> TraceArgs:
    if not bytes(event.args):
        return TraceArgs()
    try:
        return _ARGS.decode(event.args)
    except msgspec.ValidationError:
        return _loose(event)


def _loose(event: Event) -> TraceArgs:
    """Arguments with numbers written as text, as ROCm does."""
    try:
        return _LOOSE.decode(event.args)
    except msgspec.DecodeError as error:
        raise BadDataError(f"unexpected arguments of event {event.name!r}: {error}") from error


def launch_of(event: Event, args: TraceArgs) -> Launch:
    return Launch(
        name=event.name,
        kind=KINDS[event.cat.lower()],
        grid=args.grid,
        block=args.block,
        smem_bytes=args.smem,
        bytes=as_number(args.bytes_),
    )


def as_number(value: int | str) -> int:
    """-1 for a text that is not a number."""
    if isinstance(value, int):
        return value
    return int(value) if value.lstrip("-").isdecimal() else -1
